"""The keep-gated clipped policy objective (Eq. 19) and its diagnostics."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from estr.algorithm.rules import KeepRule
from estr.algorithm.signals import TokenSignals

logger = logging.getLogger(__name__)

EXPONENT_LIMIT = 20.0
"""|log r| is limited to this inside exp only, so that no ratio overflows; beyond it the gradient is 0."""

BLOCK_TOKENS = 16384
"""Tokens that are diagnosed at once: few enough that a processor's cache holds what is computed from them."""


@dataclass(frozen=True, eq=False)
class ObjectiveOutput:
    """Loss (scalar, with gradient), the mask applied (bool [batch, length]) and the numbers of `diagnose`."""

    loss: Tensor
    keep: Tensor
    diagnostics: dict[str, float]


def objective(
    signals: TokenSignals,
    rule: KeepRule,
    *,
    clip_low: float = 0.20,
    clip_high: float = 0.28,
    response_tokens: int | None = None,
    keep: Tensor | None = None,
) -> ObjectiveOutput:
    """L = -1/sum_i|o_i| sum_{i,t} M_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) (Eq. 19).

    The mask is a stop-gradient gate: a masked token adds exactly nothing to loss and gradient, but still
    counts in the denominator. For k micro-batches of one batch, pass the batch's `response_tokens` and the
    part of its mask; the k losses then sum to the loss of the batch, and `diagnose` on the whole batch gives
    its diagnostics.

    Args:
        signals: the tokens; the gradient flows through `target_logprob`.
        rule: decides the mask, unless `keep` is given.
        clip_low: epsilon_low of the clip, in [0, 1).
        clip_high: epsilon_high of the clip, >= 0.
        response_tokens: response tokens of the global batch, kept or not; default: those of `signals`.
        keep: precomputed mask, bool [batch, length].

    Raises:
        ValueError: a clip range out of bounds, fewer `response_tokens` than `signals` has, or a malformed
        `keep`.
    """
    _check_clip(clip_low, clip_high)
    local_tokens = signals.response_tokens
    denominator = local_tokens if response_tokens is None else response_tokens
    if denominator < local_tokens:
        raise ValueError(f"response_tokens = {denominator}, but these signals alone have {local_tokens}")
    if keep is None:
        keep = rule.keep(signals)
    _check_mask(keep, signals)
    keep = keep & signals.usable

    advantage = torch.where(keep, signals.advantage, 0.0)
    ratio = _ratio(torch.where(keep, signals.log_ratio, 0.0))
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    loss = -surrogate.sum() / max(denominator, 1)

    diagnostics = diagnose(signals, keep, clip_low=clip_low, clip_high=clip_high)
    if diagnostics["nonfinite_fraction"] > 0:
        _log_nonfinite(signals)
    return ObjectiveOutput(loss, keep, diagnostics)


def k3(log_ratio: Tensor) -> Tensor:
    """r - 1 - log r per token: its mean under mu is KL(mu || pi_theta) (Eqs. 9, 37), in nats."""
    return torch.expm1(log_ratio.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)) - log_ratio


def diagnose(
    signals: TokenSignals, keep: Tensor, *, clip_low: float = 0.20, clip_high: float = 0.28
) -> dict[str, float]:
    """Diagnostics of one batch and its mask; a mean over an empty set is NaN.

    Fractions are of all response tokens: `masked_fraction` (Eq. 21, non-finite tokens included),
    `nonfinite_fraction`, and `clip_fraction_low` / `clip_fraction_high`, the kept tokens on the flat branch
    of the clip (C_t = 0 in Eq. 47: A < 0 and r < 1 - clip_low; A > 0 and r > 1 + clip_high).
    `sequences_masked_fraction` is the fraction of trajectories with at least one masked token.

    Means are over response tokens with finite signals: `entropy` H_t, `log_perplexity` -log pi_theta,
    `log_ratio_abs` |delta| (and its maximum `log_ratio_max`), `ratio_deviation` |r - 1|, `kl_to_behavior`
    (k3). The endings `_masked` and `_kept` (and the names `masked_entropy`, `kept_entropy`) restrict a mean
    to the masked or kept ones; `_low_entropy` and `_high_entropy` to those at most and above the batch's
    (lower) median entropy.
    """
    _check_clip(clip_low, clip_high)
    _check_mask(keep, signals)
    response, usable = signals.response_mask, signals.usable
    masked = response & ~(keep & usable)
    median = torch.where(usable, signals.entropy, torch.nan).nanmedian()
    rows = max(BLOCK_TOKENS // max(response.shape[1], 1), 1)
    sums = torch.zeros(len(_QUANTITIES), len(_SUBSETS), dtype=torch.float64, device=keep.device)
    largest = math.nan
    for start in range(0, len(response), rows) if usable.any() else ():
        block_sums, block_largest = _sums(signals, keep, median, slice(start, start + rows), clip_low, clip_high)
        sums += block_sums
        largest = max(block_largest, largest)  # nan only until the first
    of = {name: dict(zip(_SUBSETS, row, strict=True)) for name, row in zip(_QUANTITIES, sums.tolist(), strict=True)}
    count, tokens, responses = of["one"], signals.response_tokens, int(response.any(1).sum())

    def mean(quantity: str, subset: str) -> float:
        return _quotient(of[quantity][subset], count[subset])

    return {
        "masked_fraction": _quotient(tokens - count["kept"], tokens),
        "masked_entropy": mean("entropy", "dropped"),
        "kept_entropy": mean("entropy", "kept"),
        "sequences_masked_fraction": _quotient(int(masked.any(1).sum()), responses),
        "clip_fraction_low": _quotient(of["clipped_low"]["kept"], tokens),
        "clip_fraction_high": _quotient(of["clipped_high"]["kept"], tokens),
        "ratio_deviation": mean("deviation", "usable"),
        "ratio_deviation_masked": mean("deviation", "dropped"),
        "ratio_deviation_kept": mean("deviation", "kept"),
        "kl_to_behavior": mean("k3", "usable"),
        "kl_to_behavior_masked": mean("k3", "dropped"),
        "kl_to_behavior_kept": mean("k3", "kept"),
        "kl_to_behavior_low_entropy": mean("k3", "low"),
        "kl_to_behavior_high_entropy": mean("k3", "high"),
        "masked_fraction_low_entropy": mean("dropped", "low"),
        "masked_fraction_high_entropy": mean("dropped", "high"),
        "entropy": mean("entropy", "usable"),
        "log_perplexity": -mean("target_logprob", "usable"),
        "log_ratio_abs": mean("size", "usable"),
        "log_ratio_max": largest,
        "nonfinite_fraction": _quotient(tokens - count["usable"], tokens),
        "response_tokens": float(tokens),
    }


_SUBSETS = ("usable", "kept", "dropped", "low", "high")
_QUANTITIES = (
    "one",
    "dropped",
    "clipped_low",
    "clipped_high",
    "entropy",
    "deviation",
    "k3",
    "target_logprob",
    "size",
)


def _sums(
    signals: TokenSignals, keep: Tensor, median: Tensor, rows: slice, clip_low: float, clip_high: float
) -> tuple[Tensor, float]:
    """Sums of every quantity over every subset of the rows' tokens, float64 [quantities, subsets]; largest |delta|."""
    usable = signals.usable[rows]
    kept = keep[rows] & usable
    low = usable & (signals.entropy[rows] <= median)
    subsets = torch.stack([usable, kept, usable & ~kept, low, usable & ~low]).flatten(1).double()
    target = signals.target_logprob[rows].detach()
    floats = torch.stack([target - signals.behavior_logprob[rows], signals.entropy[rows], target])
    delta, entropy, target = torch.where(usable, floats, 0).flatten(1).double()
    growth = torch.expm1(delta.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT))  # r - 1
    ratio, size, advantage = growth + 1, delta.abs(), signals.advantage[rows].flatten()
    quantities = [
        torch.ones_like(delta),
        subsets[_SUBSETS.index("dropped")],
        (advantage < 0) & (ratio < 1 - clip_low),
        (advantage > 0) & (ratio > 1 + clip_high),
        entropy,
        growth.abs(),
        growth - delta,
        target,
        size,
    ]
    return torch.stack([quantity.double() for quantity in quantities]) @ subsets.T, float(size.max())


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).exp()


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not (0 <= clip_low < 1 and clip_high >= 0):
        raise ValueError(f"clip range ({clip_low}, {clip_high}) must satisfy 0 <= low < 1 and high >= 0")


def _check_mask(keep: Tensor, signals: TokenSignals) -> None:
    if keep.dtype != torch.bool or keep.shape != signals.response_mask.shape:
        raise ValueError(
            f"keep must be bool {tuple(signals.response_mask.shape)}, got {keep.dtype} {tuple(keep.shape)}"
        )


def _log_nonfinite(signals: TokenSignals) -> None:
    bad = (signals.response_mask & ~signals.finite).nonzero()
    row, position = bad[0].tolist()
    logger.warning(
        "non-finite signals on %d response tokens, first at sequence %d, position %d: behavior_logprob %s, "
        "target_logprob %s, entropy %s, advantage %s; they are not kept",
        len(bad),
        row,
        position,
        *(
            float(values[row, position].detach())
            for values in (
                signals.behavior_logprob,
                signals.target_logprob,
                signals.entropy,
                signals.advantage,
            )
        ),
    )
