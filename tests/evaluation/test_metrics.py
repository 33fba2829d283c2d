from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.evaluation import metrics
from estr.evaluation.metrics import (
    best_at_k,
    bootstrap_interval,
    bootstrap_interval_over_sets,
    calibration,
    pass_at_k,
    recall,
)

SAMPLES_CORRECT_K = st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(SAMPLES_CORRECT_K)
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_answer(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([min(s) < c for s in subsets]))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (4, 5, 4), (4, -1, 2), (4, 2, 0)])
def test_pass_at_k_refuses_the_impossible(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, 4))))
def test_best_at_k_is_the_share_of_draws_with_replacement_that_hold_a_correct_answer(
    case: tuple[int, int, int],
) -> None:
    n, c, k = case
    draws = list(product(range(n), repeat=k))
    assert best_at_k([c], n, k)[0] == pytest.approx(np.mean([min(draw) < c for draw in draws]))


def test_best_at_k_is_what_verls_resampling_estimates() -> None:
    n = k = 4
    rng = np.random.default_rng(0)
    for c in range(n + 1):
        scores = np.array([1.0] * c + [0.0] * (n - c))
        resampled = scores[rng.integers(0, n, (20_000, k))].max(axis=1).mean()
        assert best_at_k([c], n, k)[0] == pytest.approx(resampled, abs=0.015)
    assert best_at_k([1], 4, 4)[0] == pytest.approx(0.68359375)


@given(SAMPLES_CORRECT_K)
def test_best_at_k_is_never_above_pass_at_k(case: tuple[int, int, int]) -> None:
    n, c, k = case
    assert best_at_k([c], n, k)[0] <= pass_at_k(n, c, k) + 1e-12


@pytest.mark.parametrize(("counts", "n", "k"), [([5], 4, 4), ([-1], 4, 4), ([0], 4, 0), ([0], 0, 1)])
def test_best_at_k_refuses_the_impossible(counts: list[int], n: int, k: int) -> None:
    with pytest.raises(ValueError):
        best_at_k(counts, n, k)


def test_bootstrap_interval_has_the_width_of_the_standard_error() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(values, seed=1)
    assert low < values.mean() < high
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert bootstrap_interval(values, seed=1) == (low, high)
    assert bootstrap_interval([0.5] * 9, seed=0) == (0.5, 0.5)
    with pytest.raises(ValueError):
        bootstrap_interval([], seed=0)


def test_bootstrap_interval_does_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=37)
    whole = bootstrap_interval(values, seed=3)
    monkeypatch.setattr(metrics, "_BLOCK", 100)
    assert bootstrap_interval(values, seed=3) == whole


def test_interval_over_sets_weighs_every_set_alike() -> None:
    rng = np.random.default_rng(0)
    small, large = rng.normal(0.0, 1.0, 30), rng.normal(1.0, 1.0, 3000)
    low, high = bootstrap_interval_over_sets([small, large], seed=0)
    mean = (small.mean() + large.mean()) / 2
    error = np.hypot(small.std() / np.sqrt(30), large.std() / np.sqrt(3000)) / 2
    assert (low + high) / 2 == pytest.approx(mean, abs=error / 3)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    with pytest.raises(ValueError):
        bootstrap_interval_over_sets([small, []], seed=0)


def test_calibration_error_counts_the_last_bin() -> None:
    # all of it in the last bin: confidence 0.95, accuracy 0.25
    stated = calibration([0.9, 1.0, 0.95, 0.95], [True, False, False, False])
    assert stated.error == pytest.approx(0.7)
    assert [inside.samples for inside in stated.bins] == [0] * 9 + [4]
    assert (stated.bins[-1].confidence, stated.bins[-1].accuracy) == (pytest.approx(0.95), 0.25)


def test_calibration_by_hand() -> None:
    stated = calibration([0.0, 0.05, None, 0.5, 0.55, None], [False, True, True, True, True, False])
    assert stated.error == pytest.approx(0.5 * abs(0.5 - 0.025) + 0.5 * abs(1.0 - 0.525))
    assert stated.unstated == 2
    assert sum(inside.samples for inside in stated.bins) == 4
    assert (stated.bins[0].low, stated.bins[-1].high) == (0.0, 1.0)
    assert stated.bins[1].accuracy is None


@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 1)), st.booleans())))
def test_every_sample_is_in_a_bin_or_counted_as_unstated(samples: list[tuple[float | None, bool]]) -> None:
    stated = calibration([c for c, _ in samples], [right for _, right in samples])
    assert sum(inside.samples for inside in stated.bins) + stated.unstated == len(samples)
    for inside in stated.bins:
        assert inside.confidence is None or inside.low - 1e-9 <= inside.confidence <= inside.high + 1e-9
    if any(c is not None for c, _ in samples):
        assert 0 <= stated.error <= 1
    else:
        assert stated.error is None


def test_a_perfectly_calibrated_policy_has_no_error() -> None:
    assert calibration([0.25] * 4 + [0.75] * 4, [True] + [False] * 3 + [True] * 3 + [False]).error == 0


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_calibration_refuses_what_is_no_probability(confidence: float) -> None:
    with pytest.raises(ValueError):
        calibration([confidence], [True])


def test_recall_counts_each_evidence_document_once() -> None:
    assert recall(["a", "a", "x"], ["a", "b"]) == 0.5
    assert recall([], ["a"]) == 0
    assert recall(["b", "a", "c"], ["a", "b"]) == 1
    with pytest.raises(ValueError):
        recall(["a"], [])
