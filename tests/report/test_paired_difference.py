"""The paired bootstrap: hand-checkable cases and its behaviour at known spreads."""

import numpy as np
import pytest

from estr.evaluation.paired import paired_difference_interval


def test_identical_methods_differ_by_exactly_zero() -> None:
    values = np.random.default_rng(0).random((3, 50))
    result = paired_difference_interval(values, values, seed=0)
    assert (result.mean, result.low, result.high) == (0, 0, 0)


def test_a_constant_difference_is_exact() -> None:
    values = np.random.default_rng(1).integers(0, 4, (2, 30)) / 4
    result = paired_difference_interval(values + 0.25, values, seed=0)
    assert (result.mean, result.low, result.high) == (0.25, 0.25, 0.25)


def test_one_problem_and_two_seeds_span_the_two_seeds() -> None:
    """Resamples of the seed differences {0, 1} have means 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    result = paired_difference_interval(np.array([[0.0], [1.0]]), np.zeros((2, 1)), seed=0)
    assert (result.mean, result.low, result.high) == (0.5, 0, 1)
    half = paired_difference_interval(np.array([[0.0], [1.0]]), np.zeros((2, 1)), seed=0, level=0.4)
    assert (half.low, half.high) == (0.5, 0.5)


def test_the_interval_matches_the_standard_error_over_problems() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.binomial(1, 0.6, (1, 1000)), rng.binomial(1, 0.5, (1, 1000))
    result = paired_difference_interval(a, b, seed=3)
    error = (a - b).std() / np.sqrt(1000)
    assert result.mean == pytest.approx((a - b).mean())
    assert result.high - result.low == pytest.approx(2 * 1.96 * error, rel=0.06)
    assert result.low < result.mean < result.high


def test_a_spread_between_seeds_widens_the_interval() -> None:
    rng = np.random.default_rng(4)
    base = rng.random((4, 200))
    steady = paired_difference_interval(base + 0.1, base, seed=0)
    unsteady = paired_difference_interval(base + np.array([[0.0], [0.2], [-0.1], [0.3]]), base, seed=0)
    assert steady.mean == pytest.approx(unsteady.mean)
    assert unsteady.low < 0.05 < steady.low


def test_the_seed_decides_the_interval_and_blocks_do_not_change_its_size() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random((2, 1000)), rng.random((2, 1000))
    first = paired_difference_interval(a, b, seed=7)
    assert first == paired_difference_interval(a, b, seed=7)
    other = paired_difference_interval(a, b, seed=8)
    assert first.low != other.low and first.low == pytest.approx(other.low, abs=5e-3)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((3,), (3,)), ((0, 3), (0, 3))])
def test_arrays_that_cannot_be_paired_are_refused(shapes: tuple) -> None:
    with pytest.raises(ValueError, match="seeds, problems"):
        paired_difference_interval(np.zeros(shapes[0]), np.zeros(shapes[1]), seed=0)
