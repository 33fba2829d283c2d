import pytest
import torch

from estr.algorithm import staleness


def test_by_hand():
    version = torch.tensor([[9, 3, 3, 4, 6, 9], [5, 5, 5, 5, 5, 5], [2, 7, 7, 7, 7, 7]])
    mask = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]]).bool()
    measured = staleness(version, mask, target_version=8)
    assert measured.intra.tolist() == [3, 0, 0]
    assert measured.inter.tolist() == [2, 3, 6]
    assert measured.total.tolist() == [5, 3, 6]  # v_target - v_first
    assert measured.intra.dtype == measured.inter.dtype == torch.int64


def test_synchronous_data_have_none():
    measured = staleness(torch.full((2, 3), 4), torch.ones(2, 3, dtype=torch.bool), 4)
    assert measured.total.tolist() == [0, 0]


def test_a_move_to_a_replica_with_older_weights_is_measured_as_it_is():
    measured = staleness(torch.tensor([[4, 3]]), torch.ones(1, 2, dtype=torch.bool), 5)
    assert (measured.intra.item(), measured.inter.item()) == (-1, 2)


@pytest.mark.parametrize(
    ("version", "mask", "target", "message"),
    [
        ([[1, 1], [1, 1]], [[1, 1], [0, 0]], 2, "trajectory 1 has no response token"),
        ([[1, 1], [1, 3]], [[1, 1], [1, 1]], 2, "trajectory 1 ends with version 3, newer than target 2"),
        ([[1, 1, 1]], [[1, 1]], 2, r"must be equal \[batch, length\]"),
    ],
)
def test_impossible_versions_are_rejected(version, mask, target, message):
    with pytest.raises(ValueError, match=message):
        staleness(torch.tensor(version), torch.tensor(mask).bool(), target)
