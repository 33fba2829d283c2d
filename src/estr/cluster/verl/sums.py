"""The diagnostics of `estr.algorithm.diagnose` as sums, which add up over micro-batches and ranks as means do not."""

from __future__ import annotations

import torch
from torch import Tensor

from estr.algorithm import TokenSignals, staleness

TOKEN_FRACTIONS = ("masked_fraction", "nonfinite_fraction", "clip_fraction_low", "clip_fraction_high")
MEANS = {
    "usable": ("entropy", "log_perplexity", "log_ratio_abs", "ratio_deviation", "kl_to_behavior"),
    "dropped": ("masked_entropy", "ratio_deviation_masked", "kl_to_behavior_masked"),
    "kept": ("kept_entropy", "ratio_deviation_kept", "kl_to_behavior_kept"),
}
"""Diagnostics that are means over a subset of the response tokens: those with finite signals, and of these the masked and
the kept ones."""


def token_sums(signals: TokenSignals, keep: Tensor, diagnostics: dict[str, float]) -> dict[str, float]:
    """Each diagnostic times the number of tokens that it is a mean of, and these numbers, by name."""
    kept = keep & signals.usable
    sizes = {"usable": int(signals.usable.sum()), "kept": int(kept.sum())}
    sizes["dropped"] = sizes["usable"] - sizes["kept"]
    sums = {name: diagnostics[name] * signals.response_tokens for name in TOKEN_FRACTIONS if signals.response_tokens}
    for subset, names in MEANS.items():
        sums |= {name: diagnostics[name] * sizes[subset] if sizes[subset] else 0.0 for name in names}
    return {name: sums.get(name, 0.0) for name in TOKEN_FRACTIONS} | sums | sizes


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


def largest(signals: TokenSignals, target_version: int) -> dict[str, float]:
    """The largest staleness of a trajectory and the largest |log-ratio|; -1 and NaN of an empty micro-batch."""
    rows = signals.response_mask.any(1)
    if not rows.any():
        return {"staleness_intra_max": -1.0, "staleness_inter_max": -1.0, "log_ratio_max": torch.nan}
    measured = staleness(signals.weight_version[rows], signals.response_mask[rows], target_version)
    size = torch.where(signals.usable, signals.log_ratio.detach().abs(), 0)
    return {
        "staleness_intra_max": float(measured.intra.max()),
        "staleness_inter_max": float(measured.inter.max()),
        "log_ratio_max": float(size.max()),
    }
