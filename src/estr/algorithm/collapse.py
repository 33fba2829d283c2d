"""When has a training run collapsed? One rule for every table, figure and claim; the paper gives none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 10
"""Steps that the reward is averaged over."""

SHARE = 0.5
"""A run has collapsed if its last mean reward is below this share of the highest."""


@dataclass(frozen=True)
class Collapse:
    """A run's reward that fell and stayed down.

    Attributes:
        step: the first step, counted from 1, from which on every mean stays below the bound; a mean belongs to
            the last of its steps.
        highest: largest of the first reward and all means.
        last: the last mean.
    """

    step: int
    highest: float
    last: float


def detect_collapse(reward: Sequence[float], window: int = WINDOW, share: float = SHARE) -> Collapse | None:
    """The collapse of a run with these rewards, one per step and >= 0, or None if it is stable at its end.

    Rewards are averaged over `window` consecutive steps (over all of them in a shorter run). The run has
    collapsed iff the last mean is below `share` of the highest of the first single reward and all means: the
    first reward is that of the starting policy, so that a run which falls at once has collapsed as well. A dip
    that is recovered from is no collapse.

    Raises:
        ValueError: no reward, a negative or non-finite one, a `window` below 1, or a `share` outside (0, 1].
    """
    if window < 1 or not 0 < share <= 1:
        raise ValueError(f"window must be >= 1 and share in (0, 1], got {window} and {share}")
    values = [float(value) for value in reward]
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("a collapse is defined for one or more finite rewards >= 0")
    width = min(window, len(values))
    means = [math.fsum(values[end - width : end]) / width for end in range(width, len(values) + 1)]
    highest = max(values[0], *means)
    below = [mean < share * highest for mean in means]
    if not below[-1]:
        return None
    stretch = next((length for length, low in enumerate(reversed(below)) if not low), len(below))
    return Collapse(step=len(values) - stretch + 1, highest=highest, last=means[-1])
