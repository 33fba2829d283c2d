"""Staleness of a trajectory, measured from the weight versions of its tokens (Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Staleness:
    """Per trajectory, in weight versions, int64 [batch].

    Attributes:
        intra: v_last - v_first, versions that passed while the trajectory was generated.
        inter: v_target - v_last, versions that passed between its last token and the update.
    """

    intra: Tensor
    inter: Tensor

    @property
    def total(self) -> Tensor:
        """v_target - v_first."""
        return self.intra + self.inter


def staleness(weight_version: Tensor, response_mask: Tensor, target_version: int) -> Staleness:
    """Delta_intra = v_last - v_first and Delta_inter = v_target - v_last (Eq. 2).

    First and last are the first and last response token; tool output between them is skipped. `intra` can be
    negative only if a trajectory moved to a replica with older weights.

    Args:
        weight_version: int64 [batch, length].
        response_mask: bool [batch, length].
        target_version: version of the weights being updated.

    Raises:
        ValueError: shapes differ, a trajectory has no response token, or was finished by weights newer than
            `target_version`.
    """
    if weight_version.shape != response_mask.shape or response_mask.ndim != 2:
        raise ValueError(
            f"weight_version {tuple(weight_version.shape)} and response_mask {tuple(response_mask.shape)} "
            "must be equal [batch, length]"
        )
    empty = ~response_mask.any(1)
    if empty.any():
        raise ValueError(f"trajectory {int(empty.nonzero()[0])} has no response token")
    positions = torch.arange(response_mask.shape[1], device=response_mask.device).expand_as(response_mask)
    first = positions.masked_fill(~response_mask, response_mask.shape[1]).amin(1, keepdim=True)
    last = positions.masked_fill(~response_mask, -1).amax(1, keepdim=True)
    version_first = weight_version.gather(1, first).squeeze(1)
    version_last = weight_version.gather(1, last).squeeze(1)
    inter = target_version - version_last
    if (inter < 0).any():
        row = int((inter < 0).nonzero()[0])
        raise ValueError(
            f"trajectory {row} ends with version {int(version_last[row])}, newer than target {target_version}"
        )
    return Staleness(intra=version_last - version_first, inter=inter)
