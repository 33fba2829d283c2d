"""Matched budgets (v1 Table 7, v2 Table 3): the threshold that masks a wanted fraction of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from estr.algorithm.rules import KeepRule, ThresholdRule
from estr.algorithm.signals import TokenSignals

COUNT_ROUNDING = 1e-9
"""A wanted count of tokens this little below an integer is that integer (0.29 * 100 is 28.999...)."""

TIE = 1e-9
"""Scores closer than this, relatively, are tied: thresholds are stored as ratios and come back rounded."""


@dataclass(frozen=True)
class Calibration:
    """The calibrated rule with the wanted and the achieved fraction of response tokens it masks."""

    rule: ThresholdRule
    wanted: float
    achieved: float


def calibrate(rule: KeepRule, batches: Sequence[TokenSignals], masked_fraction: float) -> Calibration:
    """The rule, its threshold moved so that it masks `masked_fraction` of all response tokens of these batches.

    Each batch is what one update would see: `second_moment` scores a token within its batch.

    Exact up to ties and never more than wanted: tokens of equal score are masked together or not at all.
    Tokens with non-finite signals count as masked. The threshold lies midway between the largest kept and the
    smallest masked score. Rules with two bounds keep their shape: `ratio_interval` becomes (low^s, high^s),
    the combined rules (s c, s^2 tau), both of which scale the bounds of log r by s; `second_moment` gets a
    budget that drops just the wanted number of largest delta^2.

    Raises:
        ValueError: the rule has no threshold, the fraction is not in [0, 1), the batches have no usable token
            or only scores of 0, non-finite tokens alone exceed the fraction, or no valid threshold does it.
    """
    if not isinstance(rule, ThresholdRule):
        raise ValueError(f"{rule.name} has no threshold to calibrate")
    if not 0 <= masked_fraction < 1:
        raise ValueError(f"{rule.name}: masked_fraction must be in [0, 1), got {masked_fraction}")
    tokens = sum(batch.response_tokens for batch in batches)
    parts = [rule.score(batch)[batch.usable] for batch in batches]
    scores = torch.cat(parts).sort().values if parts else torch.empty(0)
    if not len(scores) or scores[-1] == 0:
        raise ValueError(f"{rule.name}: no finite response token of these batches is off-policy")
    nonfinite = tokens - len(scores)
    wanted = math.floor(masked_fraction * tokens + COUNT_ROUNDING) - nonfinite
    if wanted < 0:
        raise ValueError(
            f"{rule.name}: cannot mask a fraction {masked_fraction} of {tokens} response tokens, "
            f"{nonfinite} are non-finite and always masked"
        )
    largest_kept = float(scores[max(len(scores) - 1 - wanted, 0)])
    tied_up_to = largest_kept * (1 + TIE)
    masked = scores[scores > tied_up_to]
    threshold = (tied_up_to + float(masked[0])) / 2 if len(masked) else tied_up_to
    try:
        calibrated = rule.with_threshold(threshold)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{rule.name}: no valid threshold masks a fraction {masked_fraction} ({error})") from error
    achieved = sum(int((batch.response_mask & ~calibrated.keep(batch)).sum()) for batch in batches) / tokens
    return Calibration(calibrated, masked_fraction, achieved)
