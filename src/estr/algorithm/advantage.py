"""Group-normalized advantage (GRPO), the A_{i,t} of Eqs. 17 and 19."""

from __future__ import annotations

import torch
from torch import Tensor


def group_normalized_advantage(
    rewards: Tensor, group_ids: Tensor, eps: float = 1e-6, normalize_by_std: bool = True
) -> Tensor:
    """A_i = (R_i - mean of its group) / (std of its group + eps), the std unbiased (n - 1), as in verl.

    Groups without spread (one member, or equal rewards) carry no signal and get exactly 0. (verl gives the
    raw reward to a group of one.)

    Args:
        rewards: [trajectories], one reward per trajectory.
        group_ids: int [trajectories], equal for the trajectories of one prompt.
        eps: added to the standard deviation.
        normalize_by_std: False leaves R_i - mean (Dr. GRPO).

    Returns:
        [trajectories] in the dtype of the rewards; float32 if they are integers or half precision.

    Raises:
        ValueError: shapes differ, ids are not integers, or a reward is not finite.
    """
    if rewards.ndim != 1 or group_ids.shape != rewards.shape:
        raise ValueError(f"rewards {tuple(rewards.shape)} and group_ids {tuple(group_ids.shape)} must be equal [n]")
    if group_ids.is_floating_point() or group_ids.dtype == torch.bool:
        raise ValueError(f"group_ids must be integers, got {group_ids.dtype}")
    if not rewards.isfinite().all():
        raise ValueError(f"reward of trajectory {int((~rewards.isfinite()).nonzero()[0])} is not finite")

    values = rewards.double()
    _, group, size = torch.unique(group_ids, return_inverse=True, return_counts=True)
    zeros = values.new_zeros(len(size))
    mean = zeros.index_add(0, group, values) / size
    centered: Tensor = values - mean[group]
    lowest = zeros.scatter_reduce(0, group, values, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, group, values, "amax", include_self=False)
    scale = torch.ones_like(zeros)
    if normalize_by_std:
        variance = zeros.index_add(0, group, centered.square()) / (size - 1).clamp(min=1)
        scale = variance.sqrt() + eps
    advantage = (centered / scale[group]).masked_fill((lowest == highest)[group], 0.0)
    return advantage if rewards.dtype == torch.float64 else advantage.float()
