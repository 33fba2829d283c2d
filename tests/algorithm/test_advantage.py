import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import group_normalized_advantage


def ids(*values):
    return torch.tensor(values)


def test_by_hand():
    rewards = torch.tensor([1.0, 5.0, 0.0, 3.0, 9.0], dtype=torch.float64)
    group = ids(7, 2, 7, 2, 2)
    # group 7: mean 0.5, std sqrt(0.5); group 2: 5, 3, 9: mean 17/3, std sqrt(28/3)
    half, spread = math.sqrt(0.5), math.sqrt(28 / 3)
    expected = [0.5 / half, (5 - 17 / 3) / spread, -0.5 / half, (3 - 17 / 3) / spread, (9 - 17 / 3) / spread]
    assert group_normalized_advantage(rewards, group, eps=0.0).tolist() == pytest.approx(expected)
    unscaled = group_normalized_advantage(rewards, group, normalize_by_std=False)
    assert unscaled.tolist() == pytest.approx([0.5, 5 - 17 / 3, -0.5, 3 - 17 / 3, 9 - 17 / 3])
    damped = group_normalized_advantage(rewards, group, eps=1.0)
    assert damped[0].item() == pytest.approx(0.5 / (half + 1))


@pytest.mark.parametrize("normalize", [True, False])
def test_groups_without_spread_get_exactly_zero(normalize):
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.7, 1.0, 0.0])
    group = ids(0, 0, 0, 1, 2, 2)
    advantage = group_normalized_advantage(rewards, group, eps=0.0, normalize_by_std=normalize)
    assert advantage[:4].tolist() == [0.0] * 4
    assert advantage[4] > 0 > advantage[5]


@given(
    st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(-3, 3)), min_size=1, max_size=20),
)
def test_against_the_statistics_module(pairs):
    rewards = torch.tensor([reward for reward, _ in pairs], dtype=torch.float64)
    groups = torch.tensor([group for _, group in pairs])
    expected = []
    for reward, group in pairs:
        members = [other for other, g in pairs if g == group]
        constant = len(set(members)) == 1
        expected.append(0.0 if constant else (reward - statistics.fmean(members)) / (statistics.stdev(members) + 1e-6))
    actual = group_normalized_advantage(rewards, groups)
    assert actual.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_dtypes_and_empty_input():
    group = ids(0, 0)
    assert group_normalized_advantage(torch.tensor([0, 1]), group).dtype == torch.float32
    assert group_normalized_advantage(torch.tensor([0.0, 1.0]).bfloat16(), group).dtype == torch.float32
    assert group_normalized_advantage(torch.tensor([0.0, 1.0]).double(), group).dtype == torch.float64
    assert group_normalized_advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("rewards", "group", "message"),
    [
        (torch.zeros(2), torch.zeros(3, dtype=torch.int64), r"must be equal \[n\]"),
        (torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.int64), r"must be equal \[n\]"),
        (torch.zeros(2), torch.zeros(2), "group_ids must be integers"),
        (torch.tensor([0.0, math.nan]), ids(0, 0), "reward of trajectory 1 is not finite"),
    ],
)
def test_bad_input_is_rejected(rewards, group, message):
    with pytest.raises(ValueError, match=message):
        group_normalized_advantage(rewards, group)
