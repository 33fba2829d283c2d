"""The keep-gated clipped policy objective (Eq. 19) and its diagnostics."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from estr.algorithm.rules import KeepRule
from estr.algorithm.signals import TokenSignals

logger = logging.getLogger(__name__)

EXPONENT_LIMIT = 20.0
"""|log r| is limited to this inside exp only, so that no ratio overflows; beyond it the gradient is 0."""


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
    kept = keep & usable
    masked = response & ~kept
    median = torch.where(usable, signals.entropy, torch.nan).nanmedian()
    low = usable & (signals.entropy <= median)
    tokens = response.sum().double()
    usables, keeps, drops = _Subset.of(usable), _Subset.of(kept), _Subset.of(usable & ~kept)
    lows, highs = _Subset.of(low), _Subset.of(usable & ~low)

    delta, entropy = _finite_part(signals.log_ratio, usable), _finite_part(signals.entropy, usable)
    growth = torch.expm1(delta.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT))  # r - 1
    size, deviation, kl = delta.abs(), growth.abs(), growth - delta
    ratio = (growth + 1).view_as(kept)
    clipped_low = kept & (signals.advantage < 0) & (ratio < 1 - clip_low)
    clipped_high = kept & (signals.advantage > 0) & (ratio > 1 + clip_high)
    values = {
        "masked_fraction": masked.sum() / tokens,
        "masked_entropy": drops.mean(entropy),
        "kept_entropy": keeps.mean(entropy),
        "sequences_masked_fraction": masked.any(1).sum().double() / response.any(1).sum(),
        "clip_fraction_low": clipped_low.sum() / tokens,
        "clip_fraction_high": clipped_high.sum() / tokens,
        "ratio_deviation": usables.mean(deviation),
        "ratio_deviation_masked": drops.mean(deviation),
        "ratio_deviation_kept": keeps.mean(deviation),
        "kl_to_behavior": usables.mean(kl),
        "kl_to_behavior_masked": drops.mean(kl),
        "kl_to_behavior_kept": keeps.mean(kl),
        "kl_to_behavior_low_entropy": lows.mean(kl),
        "kl_to_behavior_high_entropy": highs.mean(kl),
        "masked_fraction_low_entropy": lows.mean(drops.weights),
        "masked_fraction_high_entropy": highs.mean(drops.weights),
        "entropy": usables.mean(entropy),
        "log_perplexity": -usables.mean(_finite_part(signals.target_logprob, usable)),
        "log_ratio_abs": usables.mean(size),
        "log_ratio_max": size.max() if usable.any() else size.new_tensor(torch.nan),
        "nonfinite_fraction": (tokens - usables.size) / tokens,
        "response_tokens": tokens,
    }
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class _Subset:
    """Some of a batch's tokens as weights 0 and 1, float64 [tokens], so that a sum over them is one dot product."""

    weights: Tensor
    size: Tensor

    @classmethod
    def of(cls, where: Tensor) -> _Subset:
        weights = where.flatten().double()
        return cls(weights, weights.sum())

    def mean(self, values: Tensor) -> Tensor:
        return torch.dot(values, self.weights) / self.size


def _finite_part(values: Tensor, usable: Tensor) -> Tensor:
    """float64 [tokens], 0 where a signal may be NaN."""
    return torch.where(usable, values.detach(), 0).double().flatten()


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
