from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.evaluation.metrics import avg_at_k, bootstrap_interval, pass_at_k


def test_avg_at_k_by_hand() -> None:
    assert avg_at_k([[1, 0, 1, 0], [0, 0, 0, 1]]).tolist() == [0.5, 0.25]


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_answer(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([min(s) < c for s in subsets]))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (4, 5, 4), (4, -1, 2), (4, 2, 0)])
def test_pass_at_k_refuses_the_impossible(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_bootstrap_interval_has_the_width_of_the_standard_error() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(values, seed=1)
    assert low < values.mean() < high
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert bootstrap_interval(values, seed=1) == (low, high)
    assert bootstrap_interval([0.5] * 9, seed=0) == (0.5, 0.5)
    with pytest.raises(ValueError):
        bootstrap_interval([], seed=0)
