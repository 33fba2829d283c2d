"""The diagnostics of `estr.algorithm.diagnose` as sums, which add up over micro-batches and ranks as means do not."""

from __future__ import annotations

import torch
from torch import Tensor

from estr.algorithm import TokenSignals, staleness
from estr.cluster.sums import DIVISORS


def token_sums(signals: TokenSignals, keep: Tensor, diagnostics: dict[str, float]) -> dict[str, float]:
    """Each diagnostic times the number of tokens that it is a mean of, and these numbers, by name."""
    kept = keep & signals.usable
    sizes = {"usable": int(signals.usable.sum()), "kept": int(kept.sum())}
    sizes["dropped"] = sizes["usable"] - sizes["kept"]
    sums: dict[str, float] = {}
    for divisor, size in ({"response_tokens": signals.response_tokens} | sizes).items():
        sums |= {name: diagnostics[name] * size if size else 0.0 for name in DIVISORS[divisor]}
    return sums | sizes


def trajectory_sums(signals: TokenSignals, keep: Tensor, target_version: int) -> dict[str, float]:
    """Staleness (Eq. 2) and masked trajectories, summed over the trajectories with a response token."""
    rows = signals.response_mask.any(1)
    masked = (signals.response_mask & ~keep).any(1)
    if not rows.any():
        return dict.fromkeys(("staleness_intra", "staleness_inter", "sequences_masked_fraction"), 0.0)
    measured = staleness(signals.weight_version[rows], signals.response_mask[rows], target_version)
    return {
        "staleness_intra": float(measured.intra.sum()),
        "staleness_inter": float(measured.inter.sum()),
        "sequences_masked_fraction": float(masked.sum()),
    }


def largest(signals: TokenSignals, target_version: int, target_entropy: Tensor | None = None) -> dict[str, float]:
    """The largest staleness of a trajectory (-1 if there is none) and the largest |log-ratio| of a token.

    With the trained policy's own entropy [batch, length] also the largest |H_trained - H_behavior|: on fresh weights
    what the two engines disagree by.
    """
    rows = signals.response_mask.any(1)
    size = torch.where(signals.usable, signals.log_ratio.detach().abs(), 0)
    peaks = {"staleness_intra_max": -1.0, "staleness_inter_max": -1.0, "log_ratio_max": float(size.max())}
    if rows.any():
        measured = staleness(signals.weight_version[rows], signals.response_mask[rows], target_version)
        peaks["staleness_intra_max"] = float(measured.intra.max())
        peaks["staleness_inter_max"] = float(measured.inter.max())
    if target_entropy is not None:
        shift = torch.where(signals.usable, (target_entropy - signals.entropy).abs(), 0)
        peaks["entropy_shift_max"] = float(shift.max())
    return peaks
