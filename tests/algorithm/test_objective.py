import logging
import math
from dataclasses import fields, replace
from statistics import fmean, median_low

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import (
    EntropyScaled,
    FixedMagnitude,
    KeepAll,
    SecondMoment,
    diagnose,
    k3,
    objective,
)

RULE = EntropyScaled(tau=0.4)
seeds = st.integers(0, 10_000)


def gradient(signals, rule, **options):
    """d loss / d log pi of every token."""
    leaf = signals.target_logprob.detach().requires_grad_()
    objective(replace(signals, target_logprob=leaf), rule, **options).loss.backward()
    return leaf.grad


def close(actual, expected, rel=1e-12):
    return pytest.approx(expected, rel=rel, abs=rel, nan_ok=True) == actual


# Eq. 19


def test_loss_by_hand(make_signals):
    ratios = torch.tensor([[1.1, 1.5, 0.5, 0.5, 1.5, 1.0, 3.0, 1.0]], dtype=torch.float64)
    signals = make_signals(
        ratios.log(),
        advantage=[[2.0, 2.0, -1.0, 1.0, -1.0, 0.0, 5.0, 9.0]],
        mask=[[True] * 7 + [False]],
        entropy=0.5,
    )
    # kept: 1.1 * 2, 1.28 * 2 (clipped), 0.8 * -1 (clipped), 0.5 * 1, 1.5 * -1, 0; masked: r = 3; then padding
    out = objective(signals, FixedMagnitude(0.8))
    assert out.keep.tolist() == [[True] * 6 + [False, False]]
    assert out.loss.item() == pytest.approx(-(2.2 + 2.56 - 0.8 + 0.5 - 1.5) / 7)
    assert gradient(signals, FixedMagnitude(0.8)).tolist() == [
        pytest.approx([-2.2 / 7, 0, 0, -0.5 / 7, 1.5 / 7, 0, 0, 0])
    ]


@given(seeds)
def test_gradient_is_mask_clip_ratio_advantage(random_signals, seed):
    """Eq. 48: autograd of Eq. 19 equals -M C r A / sum|o_i|, with C from Eq. 47."""
    signals = random_signals(seed)
    ratio, advantage = signals.log_ratio.detach().exp(), signals.advantage
    flat = ((advantage > 0) & (ratio > 1.28)) | ((advantage < 0) & (ratio < 0.8))
    keep = RULE.keep(signals)
    expected = -ratio * advantage * (keep & ~flat) / signals.response_tokens
    torch.testing.assert_close(gradient(signals, RULE), expected, rtol=1e-12, atol=0)


@given(seeds, st.sampled_from([torch.float32, torch.float64]))
def test_loss_and_gradient_are_those_of_autograd_on_eq_19(random_signals, seed, dtype):
    """Bit by bit: the equation in plain torch, as a reader would write it."""
    signals = random_signals(seed, dtype=dtype)
    leaf = signals.target_logprob.detach().requires_grad_()
    keep = RULE.keep(signals)
    ratio = torch.where(keep, leaf - signals.behavior_logprob, 0).exp()
    advantage = torch.where(keep, signals.advantage, 0)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).sum() / signals.response_tokens
    loss.backward()
    assert objective(signals, RULE).loss.item() == loss.item()
    assert torch.equal(gradient(signals, RULE), leaf.grad)


def test_clip_indicator_in_all_six_cases(make_signals):
    ratios = torch.tensor([[0.7, 1.0, 1.4, 0.7, 1.0, 1.4]], dtype=torch.float64)
    signals = make_signals(ratios.log(), advantage=[[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]])
    assert (gradient(signals, KeepAll()) != 0).tolist() == [[True, True, False, False, True, True]]
    diagnostics = objective(signals, KeepAll()).diagnostics
    assert close(diagnostics["clip_fraction_low"], 1 / 6)
    assert close(diagnostics["clip_fraction_high"], 1 / 6)


def test_clip_range_is_asymmetric_and_settable(make_signals):
    ratios = torch.tensor([[1.25, 1.25, 0.75]], dtype=torch.float64)
    signals = make_signals(ratios.log(), advantage=[[1.0, -1.0, -1.0]])
    assert (gradient(signals, KeepAll()) != 0).tolist() == [[True, True, False]]
    options = {"clip_low": 0.3, "clip_high": 0.2}
    assert (gradient(signals, KeepAll(), **options) != 0).tolist() == [[False, True, True]]
    assert objective(signals, KeepAll(), **options).loss.item() == pytest.approx(-(1.2 - 1.25 - 0.75) / 3)


@given(seeds)
def test_masked_tokens_contribute_exactly_zero(random_signals, seed):
    """Loss and gradient don't change, bit by bit, when the masked tokens' signals are replaced."""
    signals = random_signals(seed)
    keep = RULE.keep(signals)
    grad = gradient(signals, RULE)
    assert (grad[~keep] == 0).all()
    # other masked values: whatever they are, they add nothing
    changed = replace(
        signals,
        target_logprob=torch.where(keep, signals.target_logprob, -3.0),
        advantage=torch.where(keep, signals.advantage, 1e6),
    )
    assert torch.equal(gradient(changed, RULE, keep=keep), grad)
    assert objective(changed, RULE, keep=keep).loss.item() == objective(signals, RULE).loss.item()


def test_mask_and_behavior_side_are_stop_gradients(random_signals):
    """The gradient flows through target_logprob only, also when the other signals require one."""
    signals = random_signals()
    behavior, entropy, advantage = (
        getattr(signals, name).clone().requires_grad_() for name in ("behavior_logprob", "entropy", "advantage")
    )
    attached = replace(signals, behavior_logprob=behavior, entropy=entropy, advantage=advantage)
    out = objective(attached, RULE)
    out.loss.backward()
    assert behavior.grad is None and entropy.grad is None and advantage.grad is None
    assert out.keep.dtype == torch.bool and not out.keep.requires_grad
    assert all(isinstance(value, float) for value in out.diagnostics.values())


# denominators


@given(seeds, st.integers(1, 6), st.sampled_from([RULE, KeepAll(), SecondMoment(0.02)]))
def test_one_batch_equals_k_micro_batches(random_signals, seed, count, rule):
    signals = random_signals(seed)
    whole = objective(signals, rule)
    keep = rule.keep(signals)
    parts = [
        objective(part, rule, response_tokens=signals.response_tokens, keep=cut)
        for part, cut in zip(signals.micro_batches(count), keep.tensor_split(count), strict=True)
    ]
    assert close(sum(part.loss.item() for part in parts), whole.loss.item())
    assert torch.equal(torch.cat([part.keep for part in parts]), whole.keep)
    grads = torch.autograd.grad(sum(part.loss for part in parts), signals.target_logprob)[0]
    torch.testing.assert_close(grads, gradient(signals, rule), rtol=1e-12, atol=1e-15)


def test_denominator_counts_masked_tokens_but_not_padding(make_signals):
    signals = make_signals([[0.0, 0.0, 2.0, 0.0]], mask=[[True, True, True, False]])
    assert objective(signals, FixedMagnitude(1.0)).loss.item() == pytest.approx(-2 / 3)
    assert objective(signals, FixedMagnitude(1.0), response_tokens=30).loss.item() == pytest.approx(-2 / 30)


def test_batch_wide_rule_needs_the_global_mask(make_signals):
    """The mean delta^2 of the second row (0.031) fits the budget, that of the batch (0.047) does not."""
    signals = make_signals([[0.25, 0.25], [0.25, 0.0]], behavior=0.0)
    rule = SecondMoment(0.04)
    keep = rule.keep(signals)
    assert keep.tolist() == [[False, False], [False, True]]
    second = signals.select([1])
    assert objective(second, rule).keep.tolist() == [[True, True]]
    part = objective(second, rule, response_tokens=4, keep=keep[[1]])
    assert part.keep.tolist() == [[False, True]]
    assert part.loss.item() == -0.25


# numerics


def test_float32_and_bfloat16_follow_the_float64_reference(random_signals):
    reference = objective(random_signals(4, batch=16), RULE)
    single = objective(random_signals(4, batch=16, dtype=torch.float32), RULE)
    assert single.loss.dtype == torch.float32
    assert close(single.loss.item(), reference.loss.item(), rel=1e-5)
    for name, value in reference.diagnostics.items():
        assert single.diagnostics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    half = random_signals(4, batch=16, dtype=torch.bfloat16)
    widened = replace(
        half,
        **{
            field.name: getattr(half, field.name).double()
            for field in fields(half)
            if field.name not in ("response_mask", "weight_version")
        },
    )
    assert close(objective(half, RULE).loss.item(), objective(widened, RULE).loss.item(), rel=1e-5)


@pytest.mark.parametrize("field", ["behavior_logprob", "target_logprob", "entropy", "advantage"])
def test_one_signal_in_float64_among_float32(random_signals, field):
    """Each is used as precisely as it is; neither mask nor clip depends on the mixture."""
    exact = random_signals(4, batch=16)
    single = random_signals(4, batch=16, dtype=torch.float32)
    mixed = replace(single, **{field: getattr(exact, field).detach()})
    torch.testing.assert_close(
        gradient(mixed, RULE), gradient(exact, RULE).to(mixed.target_logprob.dtype), rtol=1e-4, atol=1e-7
    )
    expected = objective(exact, RULE).diagnostics
    assert objective(mixed, RULE).diagnostics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    far = {"behavior_logprob": -1e300, "target_logprob": -1e300, "entropy": 1e300, "advantage": 1e300}
    assert replace(mixed, **{field: torch.full_like(getattr(mixed, field), far[field])}).finite.all()


def test_the_loss_may_be_scaled_in_place(random_signals):
    signals = random_signals()
    loss = objective(signals, RULE).loss
    loss /= 4
    loss.backward()
    torch.testing.assert_close(signals.target_logprob.grad, gradient(signals, RULE) / 4)


def test_extreme_ratios_stay_finite(make_signals):
    signals = make_signals(
        [[-5000.0, 5000.0, 5000.0, 19.0, -19.0]],
        advantage=[[1.0, 1.0, -1.0, -1.0, 1.0]],
        dtype=torch.float32,
    )
    out = objective(signals, KeepAll())
    assert out.keep.all()
    assert out.loss.isfinite()
    grad = gradient(signals, KeepAll())
    assert grad.isfinite().all()
    assert grad[0, 3].item() == pytest.approx(math.exp(19) / 5, rel=1e-5)
    for name in ("ratio_deviation", "kl_to_behavior", "log_perplexity", "log_ratio_abs"):
        assert math.isfinite(out.diagnostics[name])
    assert out.diagnostics["log_ratio_max"] == 5000.0


@pytest.mark.parametrize("field", ["behavior_logprob", "target_logprob", "entropy", "advantage"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_tokens_are_masked_counted_and_logged_once(make_signals, caplog, field, value):
    signals = make_signals([[0.1, 0.2, 0.1], [0.1, 0.1, 0.1]], mask=[[True] * 3, [True, True, False]])
    broken = getattr(signals, field).clone()
    broken[0, 2] = broken[1, 1] = broken[1, 2] = value  # the last one is padding
    broken = replace(signals, **{field: broken})
    with caplog.at_level(logging.WARNING, logger="estr.algorithm.objective"):
        out = objective(broken, KeepAll())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "2 response tokens, first at sequence 0, position 2" in messages[0]
    assert out.loss.item() == pytest.approx(-(2 * math.exp(0.1) + math.exp(0.2)) / 5)
    grad = gradient(broken, KeepAll())
    assert grad.isfinite().all()
    assert (grad != 0).tolist() == [[True, True, False], [True, False, False]]
    assert close(out.diagnostics["nonfinite_fraction"], 2 / 5)
    assert close(out.diagnostics["masked_fraction"], 2 / 5)
    assert close(out.diagnostics["log_ratio_max"], 0.2)
    assert close(out.diagnostics["entropy"], 0.5)


def test_a_precomputed_mask_cannot_keep_nonfinite_or_padding_tokens(make_signals):
    signals = make_signals([[0.0, math.nan, 0.0]], mask=[[True, True, False]])
    out = objective(signals, KeepAll(), keep=torch.ones(1, 3, dtype=torch.bool))
    assert out.keep.tolist() == [[True, False, False]]
    assert out.loss.item() == -0.5


def test_finite_batches_log_nothing(random_signals, caplog):
    objective(random_signals(), RULE)
    assert not caplog.records


@pytest.mark.parametrize("mask", [True, False])
def test_nothing_kept_gives_zero_loss_with_a_graph(make_signals, mask):
    signals = make_signals([[3.0, -3.0]], mask=mask)
    leaf = signals.target_logprob.requires_grad_()
    out = objective(replace(signals, target_logprob=leaf), FixedMagnitude(1.0))
    assert out.loss.item() == 0
    out.loss.backward()
    assert leaf.grad.tolist() == [[0.0, 0.0]]
    assert math.isnan(out.diagnostics["kept_entropy"])
    assert close(out.diagnostics["masked_fraction"], 1.0 if mask else math.nan)
    assert out.diagnostics["response_tokens"] == (2.0 if mask else 0.0)


# diagnostics


def test_diagnostics_by_hand(make_signals):
    ratios = torch.tensor([[1.0, 2.0, 0.5], [0.7, 1.5, 1.0], [9.0, 9.0, 9.0]], dtype=torch.float64)
    signals = make_signals(
        ratios.log(),
        behavior=-2.0,
        entropy=[[0.1, 0.2, 0.3], [0.4, 0.6, 9.0], [9.0, 9.0, 9.0]],
        advantage=[[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
        mask=[[True, True, True], [True, True, False], [False, False, False]],
    )
    keep = torch.tensor([[True, False, False], [True, True, True], [False, False, True]])
    log2, log07, log15 = math.log(2), math.log(0.7), math.log(1.5)
    kl = [0.0, 1 - log2, -0.5 + log2, -0.3 - log07, 0.5 - log15]
    expected = {
        "masked_fraction": 2 / 5,
        "masked_entropy": 0.25,
        "kept_entropy": 1.1 / 3,
        "sequences_masked_fraction": 1 / 2,
        "clip_fraction_low": 1 / 5,
        "clip_fraction_high": 1 / 5,
        "ratio_deviation": (0 + 1 + 0.5 + 0.3 + 0.5) / 5,
        "ratio_deviation_masked": 0.75,
        "ratio_deviation_kept": 0.8 / 3,
        "kl_to_behavior": sum(kl) / 5,
        "kl_to_behavior_masked": (kl[1] + kl[2]) / 2,
        "kl_to_behavior_kept": (kl[0] + kl[3] + kl[4]) / 3,
        "kl_to_behavior_low_entropy": (kl[0] + kl[1] + kl[2]) / 3,
        "kl_to_behavior_high_entropy": (kl[3] + kl[4]) / 2,
        "masked_fraction_low_entropy": 2 / 3,
        "masked_fraction_high_entropy": 0.0,
        "entropy": 1.6 / 5,
        "log_perplexity": 2 - (log07 + log15) / 5,
        "log_ratio_abs": (2 * log2 - log07 + log15) / 5,
        "log_ratio_max": log2,
        "nonfinite_fraction": 0.0,
        "response_tokens": 5.0,
    }
    actual = diagnose(signals, keep)
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert list(actual) == list(expected)


@given(seeds)
def test_diagnostics_against_plain_python(random_signals, seed):
    signals = random_signals(seed)
    keep = RULE.keep(signals)
    rows = [
        {"row": i, "delta": d, "entropy": h, "kept": k}
        for i, (ds, hs, ks, ms) in enumerate(
            zip(
                signals.log_ratio.tolist(),
                signals.entropy.tolist(),
                keep.tolist(),
                signals.response_mask.tolist(),
                strict=True,
            )
        )
        for d, h, k, m in zip(ds, hs, ks, ms, strict=True)
        if m
    ]
    middle = median_low(row["entropy"] for row in rows)
    high = [row for row in rows if row["entropy"] > middle]
    dropped = [row for row in rows if not row["kept"]]

    def mean(values):
        values = list(values)
        return fmean(values) if values else math.nan

    expected = {
        "masked_fraction": mean(not row["kept"] for row in rows),
        "masked_entropy": mean(row["entropy"] for row in dropped),
        "sequences_masked_fraction": mean(
            any(row["row"] == i for row in dropped) for i in {row["row"] for row in rows}
        ),
        "kl_to_behavior_high_entropy": mean(math.exp(row["delta"]) - 1 - row["delta"] for row in high),
        "masked_fraction_high_entropy": mean(not row["kept"] for row in high),
        "ratio_deviation_masked": mean(abs(math.exp(row["delta"]) - 1) for row in dropped),
        "log_ratio_max": max(abs(row["delta"]) for row in rows),
    }
    actual = objective(signals, RULE).diagnostics
    for name, value in expected.items():
        assert close(actual[name], value, rel=1e-9), name


@given(seeds)
def test_loss_and_diagnostics_ignore_row_order_and_padding(random_signals, seed):
    signals = random_signals(seed)
    whole = objective(signals, RULE)
    order = torch.randperm(len(whole.keep), generator=torch.Generator().manual_seed(seed))
    shuffled = signals.select(order)
    wider = {
        field.name: torch.nn.functional.pad(
            getattr(shuffled, field.name),
            (0, 7),
            value=math.nan if getattr(shuffled, field.name).is_floating_point() else 0,
        )
        for field in fields(shuffled)
    }
    padded = objective(replace(shuffled, **wider), RULE)
    assert close(padded.loss.item(), whole.loss.item())
    assert padded.diagnostics == pytest.approx(whole.diagnostics, rel=1e-9, nan_ok=True)


def test_k3_is_accurate_for_tiny_and_finite_for_huge_log_ratios():
    delta = torch.tensor([1e-6, -1e-6, 0.0, math.log(3), -1000.0, 1000.0], dtype=torch.float64)
    expected = [5e-13, 5e-13, 0.0, 2 - math.log(3), 999.0, math.exp(20) - 1 - 1000]
    assert k3(delta).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-30)


@pytest.mark.parametrize("spread", ["many values", "few values", "one value", "mostly zero", "two clusters"])
@given(seed=seeds)
def test_low_entropy_is_at_most_the_lower_median_whatever_the_distribution(make_signals, spread, seed):
    """Of few tokens and of more than the median's sample; what is masked is what shows the two halves."""
    generator = torch.Generator().manual_seed(seed)
    batch, length = 1 + seed % 7, 1 + seed % 401
    uniform = torch.rand(batch, length, generator=generator, dtype=torch.float64)
    entropy = {
        "many values": 3 * uniform**3,
        "few values": (5 * uniform).floor() / 4,
        "one value": torch.ones_like(uniform),
        "mostly zero": (uniform - 0.6).clamp(min=0),
        "two clusters": 1e-9 * uniform + (uniform > 0.5) * 1e9,
    }[spread]
    mask = torch.rand(batch, length, generator=generator) < 0.7
    keep = torch.rand(batch, length, generator=generator) < 0.5
    actual = diagnose(make_signals(torch.zeros(batch, length), entropy=entropy, mask=mask), keep)
    tokens = [(h, not k) for h, k in zip(entropy[mask].tolist(), keep[mask].tolist(), strict=True)]
    middle = median_low(h for h, _ in tokens) if tokens else 0
    for name, half in (
        ("masked_fraction_low_entropy", [masked for h, masked in tokens if h <= middle]),
        ("masked_fraction_high_entropy", [masked for h, masked in tokens if h > middle]),
    ):
        assert close(actual[name], fmean(half) if half else math.nan), name


def test_autocast_changes_no_digit(random_signals):
    """verl calls a loss within autocast to bfloat16."""
    signals = random_signals(4, batch=16, dtype=torch.float32)
    expected = objective(signals, RULE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = objective(signals, RULE)
    assert actual.loss.item() == expected.loss.item()
    assert actual.diagnostics == expected.diagnostics


# errors


def test_a_second_derivative_is_refused(random_signals):
    signals = random_signals()
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = objective(replace(signals, target_logprob=signals.target_logprob * weight**2), RULE).loss
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, weight, create_graph=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 1.0}, "clip range"),
        ({"clip_low": -0.1}, "clip range"),
        ({"clip_high": -0.1}, "clip range"),
        ({"clip_high": math.nan}, "clip range"),
        ({"response_tokens": 2}, "these signals alone have 3"),
        ({"keep": torch.ones(1, 3)}, "keep must be bool"),
        ({"keep": torch.ones(1, 2, dtype=torch.bool)}, "keep must be bool"),
    ],
)
def test_bad_arguments_are_rejected(make_signals, options, message):
    with pytest.raises(ValueError, match=message):
        objective(make_signals([[0.0, 0.0, 0.0]]), RULE, **options)
