import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import (
    RULES,
    BinaryKL,
    EntropyScaled,
    ExplorationPreserving,
    FixedMagnitude,
    KeepAll,
    OutlierSuppressing,
    RatioInterval,
    SecondMoment,
    build_rule,
)

EVERY_RULE = [
    EntropyScaled(tau=0.3),
    RatioInterval(0.8, 1.3),
    BinaryKL(0.02),
    SecondMoment(0.04),
    SecondMoment(0.04, "harmful"),
    FixedMagnitude(0.3),
    ExplorationPreserving(0.3, 0.3),
    OutlierSuppressing(0.3, 0.3),
    KeepAll(),
]
seeds = st.integers(0, 10_000)


# entropy_scaled (Eqs. 14-16)


def test_entropy_scaled_by_hand(make_signals):
    signals = make_signals([[0.5, 0.5, -0.2, 0.2]], entropy=[[0.24, 0.23, 0.0, 0.1]])
    rule = EntropyScaled(tau=1.0, eps=0.01)
    torch.testing.assert_close(rule.score(signals), torch.tensor([[1.0, 0.25 / 0.24, 4.0, 0.04 / 0.11]]).double())
    assert EntropyScaled(1.02).keep(signals).tolist() == [[True, False, False, True]]


def test_entropy_scaled_includes_its_boundary(make_signals):
    # powers of two: delta^2 / (H + eps) = 0.25 / 0.25 exactly
    rule = EntropyScaled(tau=1.0, eps=0.125)
    delta = [[0.5, -0.5, math.nextafter(0.5, 1), -0.5]]
    signals = make_signals(delta, behavior=0.0, entropy=[[0.125, 0.125, 0.125, 0.125 - 1e-15]])
    assert rule.keep(signals).tolist() == [[True, True, False, False]]


def test_zero_entropy_leaves_the_floor_sqrt_tau_eps(make_signals):
    signals = make_signals([[0.126, 0.127]], entropy=[[0.0, -1e-7]])
    rule = EntropyScaled(tau=1.6, eps=0.01)  # sqrt(0.016) = 0.12649
    assert rule.keep(signals).tolist() == [[True, False]]
    assert rule.boundary(torch.zeros(1))[1].item() == pytest.approx(0.126491, abs=1e-6)


def test_a_rounded_negative_entropy_counts_as_zero_whatever_the_floor(make_signals):
    rule = EntropyScaled(tau=1.0, eps=1e-7)
    signals = make_signals([[0.5, 1e-4]], entropy=[[-5e-7, -5e-7]])
    assert rule.keep(signals).tolist() == [[False, True]]
    assert rule.boundary(signals.entropy)[1].tolist() == [[pytest.approx(math.sqrt(1e-7))] * 2]


def test_log_ratios_are_not_clamped_before_the_mask(make_signals):
    # sqrt(1.6 * 250.01) = 20.0004: a log-ratio limited to 20 would be kept
    signals = make_signals([[40.0, 20.0, -40.0]], entropy=250.0)
    assert EntropyScaled(1.6).keep(signals).tolist() == [[False, True, False]]
    assert FixedMagnitude(25.0).keep(signals).tolist() == [[False, True, False]]


@given(st.floats(0.01, 5), st.floats(0.001, 0.5), st.floats(0.01, 4), st.floats(0.05, 4))
def test_strict_generalization(tau, eps, crossover, distance):
    """Prop. 1 and A4: equal to the fixed rule c = sqrt(tau C) at H* = C - eps, tighter below, wider above."""
    fixed = math.sqrt(tau * (crossover + eps))
    entropy = torch.tensor([crossover, crossover + distance, max(crossover - distance, 0)], dtype=torch.double)
    at, above, below = EntropyScaled(tau, eps).boundary(entropy)[1].tolist()
    assert at == pytest.approx(fixed, rel=1e-12)
    assert above > fixed
    assert below < fixed
    assert below >= math.sqrt(tau * eps) * (1 - 1e-12)  # Eq. 43


@given(seeds)
def test_constant_scale_is_the_fixed_rule(random_signals, seed):
    """Prop. 1: with H_t + eps = C everywhere the mask is that of |delta| <= sqrt(tau C)."""
    signals = random_signals(seed)
    signals = replace(signals, entropy=torch.full_like(signals.entropy, 0.24))
    keep = EntropyScaled(tau=0.4, eps=0.01).keep(signals)
    assert torch.equal(keep, FixedMagnitude(math.sqrt(0.4 * 0.25)).keep(signals))
    assert 0 < keep.sum() < signals.response_tokens or signals.response_tokens < 20


# fixed_magnitude and v2's combinations


def test_fixed_magnitude_includes_its_boundary_and_ignores_entropy(make_signals):
    delta = [[0.3, -0.3, math.nextafter(0.3, 1), -math.nextafter(0.3, 1)]]
    signals = make_signals(delta, behavior=0.0, entropy=[[0.0, 5.0, 5.0, 0.1]])
    assert FixedMagnitude(0.3).keep(signals).tolist() == [[True, True, False, False]]


def test_combinations_by_hand(make_signals):
    # entropy boundary with tau = 1, eps = 0.01: 0.1 at H = 0, 1.005 at H = 1; fixed boundary 0.5
    signals = make_signals([[0.05, 0.3, 0.3, 0.8, 1.2]], entropy=[[0.0, 0.0, 1.0, 1.0, 1.0]])
    assert ExplorationPreserving(0.5, 1.0).keep(signals).tolist() == [[True, True, True, True, False]]
    assert OutlierSuppressing(0.5, 1.0).keep(signals).tolist() == [[True, False, True, False, False]]


@given(seeds)
def test_combinations_are_or_and_and(random_signals, seed):
    signals = random_signals(seed)
    fixed, entropy = FixedMagnitude(0.3).keep(signals), EntropyScaled(0.3).keep(signals)
    assert torch.equal(ExplorationPreserving(0.3, 0.3).keep(signals), fixed | entropy)
    assert torch.equal(OutlierSuppressing(0.3, 0.3).keep(signals), fixed & entropy)


# ratio_interval


def test_ratio_interval_by_hand(make_signals):
    ratios = torch.tensor([[0.49, 0.51, 1.0, 4.9, 5.1, 0.0]], dtype=torch.float64)
    assert RatioInterval().keep(make_signals(ratios.log())).tolist() == [[False, True, True, True, False, False]]


@pytest.mark.parametrize(("low", "high"), [(0.5, 5.0), (0.3, 1.7), (0.7, 3.1), (0.1, 10.0), (0.9, 1.1)])
def test_ratio_interval_includes_its_bounds(make_signals, low, high):
    """To the last bit of log r, which exp and a comparison of r would round away."""
    log_low, log_high = math.log(low), math.log(high)
    delta = [[log_low, math.nextafter(log_low, -9), log_high, math.nextafter(log_high, 9)]]
    keep = RatioInterval(low, high).keep(make_signals(delta, behavior=0.0))
    assert keep.tolist() == [[True, False, True, False]]


def test_ratio_interval_is_tested_in_log_space(make_signals):
    """exp(-800) = 0 and exp(800) = inf: only the logs still order them."""
    rule = RatioInterval(low=1e-300, high=1e300)
    assert rule.keep(make_signals([[-800.0, -600.0, 600.0, 800.0]])).tolist() == [[False, True, True, False]]
    assert rule.keep(make_signals([[-120.0, 100.0]], dtype=torch.float32)).all()


# binary_kl


def _binary_kl(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_binary_kl_is_the_larger_direction(make_signals, mu, pi):
    signals = make_signals([[math.log(pi / mu)]], behavior=math.log(mu))
    expected = max(_binary_kl(mu, pi), _binary_kl(pi, mu))
    score = BinaryKL().score(signals).item()
    assert score == pytest.approx(expected, rel=1e-6, abs=1e-12)
    if abs(expected - 0.1) > 1e-9:
        assert BinaryKL(0.1).keep(signals).item() == (expected <= 0.1)


@pytest.mark.parametrize(
    ("q", "phi", "low", "high"),  # bands of the ratio, facts.md 1.2
    [
        (0.01, 0.1, None, 8.05),
        (0.1, 0.1, 0.166, 2.57),
        (0.5, 0.1, 0.574, 1.43),
        (0.9, 0.1, 0.826, 1.093),
        (0.99, 0.1, 0.929, 1.010),
        (0.1, 2.0, None, 9.24),
        (0.5, 2.0, 0.0092, 1.99),
        (0.9, 2.0, 0.085, 1.11),
    ],
)
def test_binary_kl_bands(make_signals, q, phi, low, high):
    def keeps(ratio):
        ratio = min(ratio, (1 - 1e-12) / q)
        return BinaryKL(phi).keep(make_signals([[math.log(ratio)]], behavior=math.log(q))).item()

    step = 0.5 * 10 ** -(len(str(high).split(".")[1]))  # the table is rounded to its last digit
    assert keeps(high - step)
    assert not keeps(high + step) or (high + step) * q >= 1
    if low is not None:
        step = 0.5 * 10 ** -(len(str(low).split(".")[1]))
        assert keeps(low + step)
        assert not keeps(low - step)


def test_binary_kl_both_directions_decide(make_signals):
    # D(mu||pi) = 0.0767, D(pi||mu) = 0.1420 for mu = 0.01, pi = 0.1, and swapped
    pair = [[math.log(10.0), -math.log(10.0)]]
    signals = make_signals(pair, behavior=[[math.log(0.01), math.log(0.1)]])
    assert BinaryKL(0.1).keep(signals).tolist() == [[False, False]]
    assert BinaryKL(0.15).keep(signals).tolist() == [[True, True]]


def test_binary_kl_near_certainty_keeps_its_digits(make_signals):
    """1 - p = 1e-12 is lost in exp(log p) but not in expm1; expected values from log1p in exact form."""
    rest_mu, rest_pi = 1e-12, 0.02
    signals = make_signals([[math.log1p(-rest_pi) - math.log1p(-rest_mu)]], behavior=math.log1p(-rest_mu), entropy=0.0)
    backward = (1 - rest_pi) * math.log1p(-rest_pi) + rest_pi * math.log(rest_pi / rest_mu)
    assert BinaryKL().score(signals).item() == pytest.approx(backward, rel=1e-6)
    rest_mu, rest_pi = 1e-6, 3e-6  # below any clamp at 1e-6 the two would be equal
    signals = make_signals([[math.log1p(-rest_pi) - math.log1p(-rest_mu)]], behavior=math.log1p(-rest_mu), entropy=0.0)
    assert BinaryKL().score(signals).item() == pytest.approx(3e-6 * math.log(3) - 2e-6, rel=1e-3)


def test_binary_kl_of_nearly_equal_policies_is_not_negative(make_signals):
    generator = torch.Generator().manual_seed(0)
    behavior = -torch.rand(1, 1000, generator=generator, dtype=torch.float64)
    delta = 1e-9 * torch.randn(1, 1000, generator=generator, dtype=torch.float64)
    assert (BinaryKL().score(make_signals(delta, behavior=behavior)) >= 0).all()


def test_binary_kl_near_zero_probability_has_no_floor(make_signals):
    signals = make_signals([[math.log(3.0)]], behavior=math.log(1e-18))
    expected = 3e-18 * math.log(3) - 2e-18  # pi log(pi / mu) - (pi - mu)
    assert BinaryKL().score(signals).item() == pytest.approx(expected, rel=1e-6, abs=0)
    signals = make_signals([[500.0, -500.0]], behavior=[[-1000.0, -300.0]])
    score = BinaryKL().score(signals)
    assert (score >= 0).all()
    assert (score < 1e-100).all()
    assert BinaryKL(0.0).score(make_signals([[-750.0]], behavior=-0.5)).item() == pytest.approx(
        math.exp(-0.5) * 750 + (1 - math.exp(-0.5)) * math.log1p(-math.exp(-0.5)), rel=1e-9
    )


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float32, 2**-24), (torch.float64, 2**-53)])
def test_binary_kl_of_a_logprob_that_rounded_to_zero(make_signals, dtype, floor):
    """log mu = 0 says only that 1 - mu is below half an epsilon: the divergence is large but finite."""
    target = math.log1p(-1e-4)
    score = BinaryKL().score(make_signals([[target, 0.0]], behavior=0.0, dtype=dtype))
    assert score[0, 0].item() == pytest.approx(1e-4 * math.log(1e-4 / floor) - 1e-4, rel=1e-2)
    assert score[0, 1].item() == 0
    rounded_up = make_signals([[target]], behavior=1e-6, dtype=dtype)  # a log-prob above 0
    assert BinaryKL().score(rounded_up).isfinite().all()


@given(seeds, st.sampled_from([torch.float32, torch.float64]), st.sampled_from([0.0, 1e-9, 1e-6, 0.1, 2.0]))
def test_binary_kl_keeps_what_its_score_keeps(make_signals, seed, dtype, phi):
    """From near certainty to very rare tokens, of equal and of very different policies: the bound decides alike."""
    generator = torch.Generator().manual_seed(seed)
    behavior, target = -(10 ** (-9 + 11 * torch.rand(2, 40, 50, generator=generator, dtype=torch.float64)))
    spread = 10 ** -(4 * torch.rand(1, generator=generator, dtype=torch.float64))
    near = behavior * (1 + spread * torch.randn(40, 50, generator=generator, dtype=torch.float64))
    target = torch.where(torch.rand(40, 50, generator=generator) < 0.7, near, target)  # some of them above 0
    signals = make_signals(target - behavior, behavior=behavior, dtype=dtype)
    rule = BinaryKL(phi)
    assert torch.equal(rule.keep(signals), rule.score(signals) <= phi)


# second_moment


def test_second_moment_masks_the_largest_until_the_mean_of_the_rest_fits(make_signals):
    # delta^2 = 0.01, 0.04, 0.09, 0.25; prefix means 0.01, 0.025, 0.0467, 0.0975
    signals = make_signals([[0.5, -0.1, 0.3, -0.2]], behavior=0.0)
    assert SecondMoment(0.04).keep(signals).tolist() == [[False, True, False, True]]
    assert SecondMoment(0.05).keep(signals).tolist() == [[False, True, True, True]]
    assert SecondMoment(0.1).keep(signals).tolist() == [[True, True, True, True]]
    assert SecondMoment(0.02).keep(signals).tolist() == [[False, True, False, False]]


def test_second_moment_includes_the_budget(make_signals):
    signals = make_signals([[0.5, 0.25, 0.0, 0.0]], behavior=0.0)  # mean of delta^2 = 5/64 exactly
    assert SecondMoment(5 / 64).keep(signals).all()
    assert SecondMoment(math.nextafter(5 / 64, 0)).keep(signals).tolist() == [[False, True, True, True]]


def test_second_moment_masks_everything_when_even_the_smallest_exceeds_the_budget(make_signals):
    assert not SecondMoment(0.04).keep(make_signals([[0.3, -0.5, 0.21]])).any()


def test_second_moment_treats_equal_deviations_alike(make_signals):
    # all three: mean 0.06; one of the two ties would fit (mean 0.045), both do not
    signals = make_signals([[0.3, 0.0, -0.3]], behavior=0.0)
    assert SecondMoment(0.05).keep(signals).tolist() == [[False, True, False]]


def test_second_moment_harmful_judges_only_what_pushes_further_away(make_signals):
    signals = make_signals([[1.0, -1.0, 1.0, -1.0, 0.1, 1.0]], advantage=[[1.0, -1.0, -1.0, 1.0, 1.0, 0.0]])
    harmful = SecondMoment(0.04, "harmful").keep(signals)
    assert harmful.tolist() == [[False, False, True, True, True, True]]
    assert SecondMoment(0.04).keep(signals).tolist() == [[False, False, False, False, True, False]]
    # the mean runs over the harmful tokens only: (1 + 0.01) / 2, not diluted by the others
    diluted = make_signals([[1.0, 0.1] + [0.0] * 98], advantage=1.0)
    assert SecondMoment(0.04).keep(diluted).all()
    assert SecondMoment(0.04, "harmful").keep(diluted).tolist() == [[False] + [True] * 99]


def test_second_moment_takes_no_mean_over_nonfinite_tokens(make_signals):
    """(0.0625 + 0.01) / 2 exceeds the budget; a third, zero, deviation would bring the mean under it."""
    signals = make_signals([[0.25, 0.0, 0.1]], entropy=[[0.5, math.nan, 0.5]])
    assert SecondMoment(0.03).keep(signals).tolist() == [[False, False, True]]


@pytest.mark.parametrize("order", ["random", "sample too small", "sample too large", "many equal"])
@given(seeds, st.sampled_from([0.001, 0.02, 0.1]))
def test_second_moment_of_many_tokens_is_what_the_score_keeps(make_signals, order, seed, budget):
    """More tokens than its sample has; a sample that misleads costs time only."""
    generator = torch.Generator().manual_seed(seed)
    delta = 0.3 * torch.randn(9, 1001, generator=generator, dtype=torch.float64)
    flat = delta.view(-1)
    seen = slice(None, None, len(flat) // 2048 | 1)
    if order == "many equal":
        delta = (delta * 5).round() / 5
    elif order != "random":
        flat[seen] *= 0.01 if order == "sample too small" else 30
    mask = torch.rand(9, 1001, generator=generator) < 0.8
    signals, rule = make_signals(delta, mask=mask), SecondMoment(budget)
    assert torch.equal(rule.keep(signals), mask & (rule.score(signals) <= budget))


@given(seeds, st.floats(0.001, 0.3), st.sampled_from(["all", "harmful"]))
def test_second_moment_against_a_loop(random_signals, seed, budget, eligible):
    signals = random_signals(seed, batch=4, length=12)
    usable = signals.usable.flatten().tolist()
    deltas = signals.log_ratio.flatten().tolist()
    advantages = signals.advantage.flatten().tolist()
    candidates = [
        i
        for i, use in enumerate(usable)
        if use and (eligible == "all" or (advantages[i] > 0 < deltas[i]) or (advantages[i] < 0 > deltas[i]))
    ]
    rest = sorted(candidates, key=lambda i: deltas[i] ** 2)
    while rest and sum(deltas[i] ** 2 for i in rest) / len(rest) > budget:
        largest = deltas[rest[-1]] ** 2
        rest = [i for i in rest if deltas[i] ** 2 < largest]
    expected = [use and (i not in candidates or i in rest) for i, use in enumerate(usable)]
    assert SecondMoment(budget, eligible).keep(signals).flatten().tolist() == expected


# every rule


@pytest.mark.parametrize("rule", EVERY_RULE, ids=repr)
@given(seed=seeds)
def test_masks_follow_the_tokens_under_permutation_and_padding(random_signals, rule, seed):
    signals = random_signals(seed)
    keep = rule.keep(signals)
    order = torch.randperm(len(keep), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(rule.keep(signals.select(order)), keep[order])
    padding = torch.full((len(keep), 5), math.nan, dtype=torch.float64)
    padded = replace(
        signals,
        **{
            field.name: torch.cat([getattr(signals, field.name), padding.to(getattr(signals, field.name))], 1)
            for field in fields(signals)
            if field.name not in ("response_mask", "weight_version")
        },
        response_mask=torch.nn.functional.pad(signals.response_mask, (0, 5), value=False),
        weight_version=torch.nn.functional.pad(signals.weight_version, (0, 5)),
    )
    assert torch.equal(rule.keep(padded), torch.nn.functional.pad(keep, (0, 5), value=False))
    assert not keep[~signals.response_mask].any()


@pytest.mark.parametrize("rule", EVERY_RULE, ids=repr)
@pytest.mark.parametrize("field", ["behavior_logprob", "target_logprob", "entropy", "advantage"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_tokens_are_dropped_and_harm_no_other(make_signals, rule, field, value):
    signals = make_signals([[0.1, 0.0, 0.25, -0.1, 0.6]])
    broken = getattr(signals, field).clone()
    broken[0, 1] = value
    keep = rule.keep(replace(signals, **{field: broken}))
    without = signals.select([0])
    without = replace(without, response_mask=torch.tensor([[True, False, True, True, True]]))
    assert torch.equal(keep, rule.keep(without))
    assert not keep[0, 1]


@pytest.mark.parametrize("rule", EVERY_RULE, ids=repr)
def test_empty_responses_and_empty_batches(make_signals, rule):
    assert not rule.keep(make_signals([[0.1, 0.2]], mask=False)).any()
    assert rule.keep(make_signals(torch.zeros(0, 3))).shape == (0, 3)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=repr)
def test_float32_and_bfloat16_agree_with_float64(random_signals, rule):
    """Random data hardly ever sits on a threshold: the verdicts must not depend on the precision."""
    reference = random_signals(1, dtype=torch.float64)
    assert torch.equal(rule.keep(random_signals(1, dtype=torch.float32)), rule.keep(reference))
    coarse = random_signals(1, dtype=torch.bfloat16)
    exact = replace(
        coarse,
        target_logprob=coarse.target_logprob.double(),
        behavior_logprob=coarse.behavior_logprob.double(),
    )
    assert torch.equal(rule.keep(coarse), rule.keep(exact))


@pytest.mark.parametrize("rule", EVERY_RULE, ids=repr)
def test_boundary_separates_kept_from_masked(random_signals, rule):
    signals = random_signals(2)
    bounds = rule.boundary(signals.entropy)
    if isinstance(rule, BinaryKL | SecondMoment | KeepAll):
        assert bounds is None
        return
    lower, upper = bounds
    assert lower.shape == upper.shape == signals.entropy.shape
    inside = signals.usable & (signals.log_ratio >= lower) & (signals.log_ratio <= upper)
    assert torch.equal(rule.keep(signals), inside)
    assert 0 < inside.sum() < signals.response_tokens


@pytest.mark.parametrize("rule", EVERY_RULE[:-1], ids=repr)
def test_score_and_threshold_are_the_rule(random_signals, rule):
    signals = random_signals(3)
    assert torch.equal(rule.keep(signals), signals.usable & (rule.score(signals) <= rule.threshold))
    same = rule.with_threshold(rule.threshold)
    assert torch.equal(same.keep(signals), rule.keep(signals))
    wider = rule.with_threshold(1.7 * rule.threshold)
    assert torch.equal(wider.keep(signals), signals.usable & (rule.score(signals) <= 1.7 * rule.threshold))
    assert wider.keep(signals).sum() > rule.keep(signals).sum()


def test_scaled_shapes():
    wider = RatioInterval(0.5, 5.0).with_threshold(2.0)
    assert (wider.low, wider.high) == (pytest.approx(0.25), pytest.approx(25.0))
    combined = OutlierSuppressing(c=0.5, tau=1.0).with_threshold(2.0)
    assert (combined.c, combined.tau, combined.eps) == (1.0, 4.0, 0.01)


# registry


def test_defaults_are_the_published_thresholds():
    assert build_rule("entropy_scaled") == EntropyScaled(tau=1.6, eps=0.01)
    assert build_rule("ratio_interval") == RatioInterval(low=0.5, high=5.0)
    assert build_rule("binary_kl") == BinaryKL(phi=0.1)
    assert build_rule("second_moment") == SecondMoment(budget=0.04, eligible="all")
    assert build_rule("keep_all") == KeepAll()
    assert build_rule("exploration_preserving", c=1).eps == 0.01
    assert build_rule("entropy_scaled", tau=1, eps=0.1) == EntropyScaled(1.0, 0.1)
    assert {name for name, rule in RULES.items() if rule.name == name} == set(RULES)
    assert len(RULES) == 8


@pytest.mark.parametrize(
    ("name", "thresholds", "message"),
    [
        ("estr", {}, "unknown keep rule 'estr', choose from entropy_scaled"),
        ("entropy_scaled", {"tua": 1.0}, "entropy_scaled: unknown threshold 'tua'"),
        ("keep_all", {"tau": 1.0}, "keep_all: unknown threshold 'tau'"),
        ("fixed_magnitude", {}, "fixed_magnitude: threshold 'c' is missing"),
        ("outlier_suppressing", {"tau": 1.0}, "outlier_suppressing: threshold 'c' is missing"),
        ("entropy_scaled", {"tau": -0.1}, "entropy_scaled: tau must be >= 0, got -0.1"),
        ("entropy_scaled", {"eps": 0.0}, "entropy_scaled: eps must be > 0"),
        ("entropy_scaled", {"tau": math.nan}, "entropy_scaled: tau must be a finite number"),
        ("entropy_scaled", {"tau": "1.6"}, "entropy_scaled: tau must be a finite number"),
        ("entropy_scaled", {"tau": True}, "entropy_scaled: tau must be a finite number"),
        ("ratio_interval", {"low": 5.0}, "ratio_interval: low must be < high"),
        ("ratio_interval", {"low": 0.0}, "ratio_interval: low must be in"),
        ("ratio_interval", {"low": -0.5}, "ratio_interval: low must be in"),
        ("ratio_interval", {"low": 1.5}, "ratio_interval: low must be in"),
        ("ratio_interval", {"high": 0.9}, "ratio_interval: high must be > 1"),
        ("ratio_interval", {"high": math.inf}, "ratio_interval: high must be a finite number"),
        ("binary_kl", {"phi": -1e-9}, "binary_kl: phi must be >= 0"),
        ("second_moment", {"budget": 0.0}, "second_moment: budget must be > 0"),
        ("second_moment", {"eligible": "some"}, "second_moment: eligible must be 'all' or 'harmful'"),
        ("fixed_magnitude", {"c": -1.0}, "fixed_magnitude: c must be >= 0"),
        ("exploration_preserving", {"c": 0.0}, "exploration_preserving: c must be > 0"),
        ("exploration_preserving", {"c": 1.0, "tau": 0.0}, "exploration_preserving: tau must be > 0"),
    ],
)
def test_bad_thresholds_name_rule_and_field(name, thresholds, message):
    with pytest.raises(ValueError, match=message):
        build_rule(name, **thresholds)
