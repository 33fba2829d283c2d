"""What a keep mask masks, and how far the policy is from the one that sampled, in numbers of a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from estr.algorithm.signals import TokenSignals, indicator, weights

EXPONENT_LIMIT = 20.0
"""|log r| is limited to this inside exp only, so that no ratio overflows; beyond it the gradient is 0."""

MEDIAN_SAMPLE = 512
MEDIAN_GUESSES = 12


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

    A rounded negative entropy counts as 0. Tokens are computed, and those of a trajectory added, in the precision of
    the log-ratio; trajectories are added in float64. Counts are exact up to 2^24 tokens a trajectory.
    """
    check_clip(clip_low, clip_high)
    check_mask(keep, signals)
    delta = signals.log_ratio.detach().nan_to_num_()
    usable, kept = weights(signals.usable, delta.dtype), weights(keep & signals.usable, delta.dtype)
    masked = usable - kept
    sums = _Sums(delta)
    sums.add("response", weights(signals.response_mask, delta.dtype))
    sums.add("usable", usable)
    sums.add("kept", kept)
    sums.add("logprob", signals.target_logprob.detach().nan_to_num(), usable)

    entropy = signals.entropy.nan_to_num().clamp_(min=0).mul_(usable)
    sums.add("entropy_kept", entropy, kept)
    sums.add("entropy_masked", entropy, masked)
    low = _lower_half(entropy, usable)
    sums.add("low", low)
    sums.add("masked_low", masked, low)
    del entropy  # what fits into the caches is several times as fast

    delta.mul_(usable)
    growth = delta.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).expm1_()  # r - 1
    pushed = indicator(torch.gt, growth * signals.advantage, 0.0).mul_(kept)  # the only tokens that a clip may cut
    sums.add("clip_low", indicator(torch.lt, growth, -clip_low), pushed)
    sums.add("clip_high", indicator(torch.gt, growth, clip_high), pushed)
    kl = torch.sub(growth, delta, out=pushed)
    sums.add("kl_kept", kl, kept)
    sums.add("kl_masked", kl, masked)
    sums.add("kl_low", kl, low)
    sums.add("kl_high", kl, usable.sub_(low))
    deviation, size = growth.abs_(), delta.abs_()
    sums.add("deviation_kept", deviation, kept)
    sums.add("deviation_masked", deviation, masked)
    sums.add("log_ratio", size)
    trajectories = sums.rows["response"] > 0
    untouched = sums.rows["response"] == sums.rows["kept"]
    total = sums.totals()

    n, kept_n, low_n = total["usable"], total["kept"], total["low"]
    masked_n, high_n = n - kept_n, n - low_n
    response_n = total["response"]
    deviation_sum = total["deviation_kept"] + total["deviation_masked"]
    return {
        "masked_fraction": _ratio(response_n - kept_n, response_n),
        "masked_entropy": _ratio(total["entropy_masked"], masked_n),
        "kept_entropy": _ratio(total["entropy_kept"], kept_n),
        "sequences_masked_fraction": _ratio(int((trajectories & ~untouched).sum()), int(trajectories.sum())),
        "clip_fraction_low": _ratio(total["clip_low"], response_n),
        "clip_fraction_high": _ratio(total["clip_high"], response_n),
        "ratio_deviation": _ratio(deviation_sum, n),
        "ratio_deviation_masked": _ratio(total["deviation_masked"], masked_n),
        "ratio_deviation_kept": _ratio(total["deviation_kept"], kept_n),
        "kl_to_behavior": _ratio(total["kl_kept"] + total["kl_masked"], n),
        "kl_to_behavior_masked": _ratio(total["kl_masked"], masked_n),
        "kl_to_behavior_kept": _ratio(total["kl_kept"], kept_n),
        "kl_to_behavior_low_entropy": _ratio(total["kl_low"], low_n),
        "kl_to_behavior_high_entropy": _ratio(total["kl_high"], high_n),
        "masked_fraction_low_entropy": _ratio(total["masked_low"], low_n),
        "masked_fraction_high_entropy": _ratio(masked_n - total["masked_low"], high_n),
        "entropy": _ratio(total["entropy_kept"] + total["entropy_masked"], n),
        "log_perplexity": -_ratio(total["logprob"], n),
        "log_ratio_abs": _ratio(total["log_ratio"], n),
        "log_ratio_max": float(size.amax()) if n else math.nan,
        "nonfinite_fraction": _ratio(response_n - n, response_n),
        "response_tokens": response_n,
    }


class _Sums:
    """Named sums over the tokens of a batch, read back at once."""

    def __init__(self, like: Tensor) -> None:
        self._product = torch.empty_like(like)
        self.rows: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor, subset: Tensor | None = None) -> None:
        """The sum of `values`, [batch, length], over all tokens or over a subset given as 0 and 1."""
        if subset is not None:
            values = torch.mul(values, subset, out=self._product)
        self.rows[name] = values.sum(1)

    def totals(self) -> dict[str, float]:
        return dict(zip(self.rows, torch.stack(list(self.rows.values())).double().sum(1).tolist(), strict=True))


def _lower_half(entropy: Tensor, usable: Tensor) -> Tensor:
    """1 on usable tokens whose entropy is at most their (lower) median, 0 elsewhere; `entropy` is 0 where not usable.

    Every value that has half of the tokens at or below it splits them like the median. To count is several times
    as fast as to select, so such a value is guessed, first from a sample, then by regula falsi. Where equal tokens
    leave no such value, or the guesses run out, the median is selected.
    """
    half = torch.zeros_like(entropy)
    usables = _count(usable)
    if usables == 0:
        return half
    values = entropy.flatten()
    below, upto = len(values) - usables, len(values)
    rank = below + (usables + 1) // 2
    sample = values[:: len(values) // MEDIAN_SAMPLE | 1].sort().values
    low, guess, high = 0.0, float(sample[rank * len(sample) // (upto + 1)]), float(entropy.amax())
    for _ in range(MEDIAN_GUESSES):
        count = _count(torch.le(entropy, guess, out=half))
        if count == rank:
            return half.mul_(usable)
        if count < rank:
            low, below = guess, count
        else:
            high, upto = guess, count
        guess = low + (high - low) * (rank - below) / (upto - below)
    median = torch.where(usable > 0, entropy, torch.nan).nanmedian()
    return indicator(torch.le, entropy, median).mul_(usable)


def _count(subset: Tensor) -> int:
    return int(subset.sum(1).double().sum())


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def check_clip(clip_low: float, clip_high: float) -> None:
    if not (0 <= clip_low < 1 and clip_high >= 0):
        raise ValueError(f"clip range ({clip_low}, {clip_high}) must satisfy 0 <= low < 1 and high >= 0")


def check_mask(keep: Tensor, signals: TokenSignals) -> None:
    if keep.dtype != torch.bool or keep.shape != signals.response_mask.shape:
        raise ValueError(
            f"keep must be bool {tuple(signals.response_mask.shape)}, got {keep.dtype} {tuple(keep.shape)}"
        )
