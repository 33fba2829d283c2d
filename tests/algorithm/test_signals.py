import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import TokenSignals, entropy_from_logits, logprob_and_entropy

INF, NAN = math.inf, math.nan


def test_log_ratio_is_target_minus_behavior_and_never_clamped(make_signals):
    signals = make_signals([[0.25, -0.5, 300.0, -4000.0]], behavior=-5.0)
    assert signals.log_ratio.tolist() == [[0.25, -0.5, 300.0, -4000.0]]


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_promoted_before_the_difference(half):
    behavior = torch.tensor([[-1.0]], dtype=half)
    target = torch.tensor([[-0.0078125]], dtype=half)
    signals = TokenSignals(
        behavior, target, target.abs(), target, torch.tensor([[True]]), torch.zeros(1, 1, dtype=torch.int64)
    )
    assert {signals.behavior_logprob.dtype, signals.target_logprob.dtype} == {torch.float32}
    assert {signals.entropy.dtype, signals.advantage.dtype} == {torch.float32}
    assert signals.log_ratio.item() == 0.9921875  # rounds to 0.99219 in bfloat16


def test_float64_is_kept(make_signals):
    signals = make_signals([[0.1]])
    assert signals.log_ratio.dtype == torch.float64


def test_only_the_target_logprob_carries_a_gradient():
    leaves = [torch.full((1, 2), -0.5, requires_grad=True) for _ in range(4)]
    signals = TokenSignals(*leaves, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.int64))
    assert signals.target_logprob.requires_grad
    others = (signals.behavior_logprob, signals.entropy, signals.advantage)
    assert not any(field.requires_grad for field in others)
    assert not signals.detach().target_logprob.requires_grad


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("entropy", torch.zeros(1, 3), "entropy has shape"),
        ("response_mask", torch.ones(2, dtype=torch.bool), "response_mask has shape"),
        ("response_mask", torch.ones(1, 2), "response_mask must be bool"),
        ("weight_version", torch.zeros(1, 2, dtype=torch.int32), "weight_version must be int64"),
        ("advantage", torch.zeros(1, 2, dtype=torch.int64), "advantage must be a float"),
        ("behavior_logprob", torch.zeros(2), r"behavior_logprob must be \[batch, length\]"),
    ],
)
def test_wrong_fields_are_rejected_by_name(make_signals, field, value, message):
    with pytest.raises(ValueError, match=message):
        replace(make_signals([[0.0, 0.0]]), **{field: value})


@pytest.mark.parametrize("field", ["behavior_logprob", "target_logprob", "entropy", "advantage"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_each_nonfinite_signal_is_seen(make_signals, field, value):
    signals = make_signals([[0.1, 0.1]])
    changed = getattr(signals, field).clone()
    changed[0, 1] = value
    assert replace(signals, **{field: changed}).finite.tolist() == [[True, False]]


def test_negative_entropy_counts_as_rounding_only_down_to_a_millionth(make_signals):
    assert make_signals([[0.0] * 3], entropy=[[-1e-7, -1e-5, 0.0]]).finite.tolist() == [[True, False, True]]


def test_usable_tokens_are_finite_response_tokens(make_signals):
    signals = make_signals([[0.1, NAN, 0.1, NAN]], mask=[[True, True, False, False]])
    assert signals.usable.tolist() == [[True, False, False, False]]
    assert signals.response_tokens == 2


def test_micro_batches_cut_where_tensor_split_cuts(random_signals):
    signals = random_signals(batch=7)
    parts = signals.micro_batches(3)
    expected = signals.target_logprob.tensor_split(3)
    assert [len(part.entropy) for part in parts] == [3, 2, 2]
    assert all(torch.equal(part.target_logprob, cut) for part, cut in zip(parts, expected, strict=True))
    assert torch.equal(signals.select([2, 0]).entropy, signals.entropy[[2, 0]])


@pytest.mark.parametrize("count", [0, -1, 7])
def test_micro_batches_need_a_possible_count(random_signals, count):
    with pytest.raises(ValueError, match="cannot split 6 trajectories"):
        random_signals(batch=6).micro_batches(count)


def test_entropy_of_known_distributions():
    logits = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0], [1, 0, 0, 0], [0.9, 0.1, 0, 0]]).log()
    binary = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    expected = torch.tensor([math.log(4), math.log(2), 0.0, binary])
    torch.testing.assert_close(entropy_from_logits(logits), expected)
    assert (entropy_from_logits(logits) >= 0).all()


def test_entropy_ignores_excluded_tokens_and_is_finite():
    logits = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    padded = torch.cat([logits, torch.full((5,), -INF, dtype=torch.float64)])
    torch.testing.assert_close(entropy_from_logits(padded), entropy_from_logits(logits))
    padded.requires_grad_()
    entropy_from_logits(padded).backward()
    assert padded.grad.isfinite().all()


@pytest.mark.parametrize("row", [[-INF, -INF], [NAN, 0.0], [INF, 0.0]])
def test_entropy_of_no_distribution_is_nan(row):
    assert entropy_from_logits(torch.tensor(row)).isnan()


def test_temperature_scales_the_logits():
    logits = torch.tensor([3.0, 1.0, -INF, 0.0], dtype=torch.float64)
    torch.testing.assert_close(entropy_from_logits(logits, 0.5), entropy_from_logits(2 * logits))
    logprob, _ = logprob_and_entropy(logits, torch.tensor(1), 2.0)
    torch.testing.assert_close(logprob, torch.log_softmax(logits / 2, -1)[1])
    for temperature in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="temperature"):
            entropy_from_logits(logits, temperature)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_logprob_and_entropy_agree_with_torch_distributions(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(3, 5, 50, generator=generator)).to(dtype)
    tokens = torch.randint(50, (3, 5), generator=generator)
    logprob, entropy = logprob_and_entropy(logits, tokens)
    reference = torch.distributions.Categorical(logits=logits.double())
    torch.testing.assert_close(logprob.double(), reference.log_prob(tokens), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), reference.entropy(), atol=1e-5, rtol=1e-5)
    assert logprob.dtype == entropy.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(entropy, entropy_from_logits(logits))


@given(st.lists(st.floats(-60, 60), min_size=2, max_size=20))
def test_entropy_lies_between_zero_and_the_log_of_the_vocabulary(logits):
    entropy = entropy_from_logits(torch.tensor(logits, dtype=torch.float64)).item()
    assert 0 <= entropy <= math.log(len(logits)) + 1e-12
