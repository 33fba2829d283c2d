import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from estr.algorithm import entropy_from_logits
from estr.diagnose.entropy_bounds import NotTopK, entropy_bounds, rounding

ROUNDING = 1e-9

logits = st.lists(st.floats(-30, 30), min_size=2, max_size=40)


def bounds(probabilities: list[float], vocabulary: int) -> tuple[float, float]:
    with np.errstate(divide="ignore"):
        lower, upper = entropy_bounds(np.log([probabilities]), vocabulary)
    return float(lower[0]), float(upper[0])


def entropy(*probabilities: float) -> float:
    return float(-sum(p * np.log(p) for p in probabilities if p > 0))


@settings(deadline=None)
@given(logits, st.data())
def test_the_true_entropy_lies_between(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    scores = torch.tensor(values, dtype=torch.float64)
    true = float(entropy_from_logits(scores))
    logprobs = torch.log_softmax(scores, 0).sort(descending=True).values
    lower, upper = (float(bound[0]) for bound in entropy_bounds(logprobs[None, :k].numpy(), len(values)))
    assert lower - ROUNDING <= true <= upper + ROUNDING
    if k < len(values):
        tighter = [float(bound[0]) for bound in entropy_bounds(logprobs[None, : k + 1].numpy(), len(values))]
        assert lower - ROUNDING <= tighter[0] and tighter[1] <= upper + ROUNDING
    else:
        assert lower == pytest.approx(true, abs=ROUNDING) and upper == pytest.approx(true, abs=ROUNDING)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**6), st.integers(1, 20), st.sampled_from(["bfloat16", "float16", "float32", "2 decimals"]))
def test_rounded_log_probs_bound_it_as_well(seed: int, k: int, kind: str) -> None:
    """A peaked head and a long thin tail, whose mass disappears in the rounding of the head."""
    rng = np.random.default_rng(seed)
    tail = 10 ** -rng.uniform(1, 5)
    size = rng.integers(25, 3000)
    probabilities = np.r_[(1 - tail) * rng.dirichlet(np.full(20, 0.3)), np.full(size, tail / size)]
    logprobs = np.sort(np.log(probabilities[probabilities > 0]))[::-1]
    top = logprobs[None, :k]
    if kind == "2 decimals":
        rounded = top.round(2)
    else:
        rounded = torch.from_numpy(top.copy()).to(getattr(torch, kind)).to(torch.float32).numpy()
    lower, upper = (float(bound[0]) for bound in entropy_bounds(rounded, len(logprobs)))
    true = float(-(np.exp(logprobs) * logprobs).sum())
    assert lower - ROUNDING <= true <= upper + ROUNDING
    assert lower < upper


def test_rounding_is_that_of_the_coarsest_numbers_that_hold_all() -> None:
    values = np.array([[-0.1234567, -3.1415926, -np.inf]])
    assert not rounding(values).any()
    half = values.astype(np.float16).astype(np.float32)
    coarse = torch.from_numpy(values).bfloat16().float().numpy()
    for found, size in ((values.astype(np.float32), 2**-24), (half, 2**-11), (coarse, 2**-8)):
        assert rounding(found)[0].tolist() == pytest.approx([0.1234567 * size, 3.1415926 * size, 0], rel=1e-2)
    assert rounding(values.clip(-9).round(3)).tolist() == [[0.0005] * 3]


def test_bounds_are_attained() -> None:
    """Of all distributions over four tokens whose largest probability is 0.4."""
    lower, upper = bounds([0.4], 4)
    assert lower == pytest.approx(entropy(0.4, 0.4, 0.2))
    assert upper == pytest.approx(entropy(0.4, 0.2, 0.2, 0.2))


def test_renormalized_top_k_is_no_bound() -> None:
    """Ten likely tokens, and 1 % of the mass in a long tail: the entropy of the renormalized top 20 is too small."""
    head, tail = np.geomspace(0.4, 0.01, 10), np.arange(1, 151_927) ** -1.5
    full = np.sort(np.concatenate([0.99 * head / head.sum(), 0.01 * tail / tail.sum()]))[::-1]
    top = full[:20]
    lower, upper = bounds(list(top), len(full))
    assert entropy(*(top / top.sum())) < lower <= entropy(*full) <= upper < lower + 0.03


def test_impossible_tokens_have_no_mass() -> None:
    assert bounds([0.5, 0.5, 0.0], 10) == pytest.approx((np.log(2), np.log(2)))


def test_order_does_not_matter() -> None:
    assert bounds([0.1, 0.4, 0.2], 9) == pytest.approx(bounds([0.4, 0.2, 0.1], 9))


def test_nan_stays_nan() -> None:
    lower, upper = entropy_bounds(np.array([[-1.0, np.nan], [np.log(0.5), np.log(0.5)]]), 5)
    assert np.isnan([lower[0], upper[0]]).all() and np.isfinite([lower[1], upper[1]]).all()


@pytest.mark.parametrize(
    ("rows", "vocabulary", "reason"),
    [
        ([[0.5, 0.5], [0.8, 0.4]], 100, "sum to 1.200"),
        ([[0.5, 0.5], [0.5, 0.05]], 6, "0.450 is left, more than 4 other tokens can hold"),
        ([[0.5, 0.5], [0.5, 0.05]], 2, "0.450 is left, more than 0"),
    ],
)
def test_what_no_distribution_has_is_refused(rows: list[list[float]], vocabulary: int, reason: str) -> None:
    with pytest.raises(NotTopK, match=reason) as caught:
        entropy_bounds(np.log(rows), vocabulary)
    assert caught.value.token == 1


def test_a_vocabulary_smaller_than_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="3 log-probs per token, but a vocabulary of 2"):
        entropy_bounds(np.log([[0.5, 0.3, 0.2]]), 2)
