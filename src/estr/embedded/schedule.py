"""Scheduled asynchrony: which weight version samples which token of the batch that an update consumes.

One process trains; the rollouts of an update are drawn from stored past weights, exactly as a rollout pool that
lags behind would have drawn them. So every trajectory has the wanted (intra, inter) staleness by construction, and
the run is bitwise reproducible.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Itinerary:
    """`versions` in the order of use; the i-th switch, to `versions[i + 1]`, comes before token `switch_at[i]`."""

    versions: tuple[int, ...]
    switch_at: tuple[int, ...]


def itinerary(target_version: int, intra: int, inter: int, length: int, rng: random.Random) -> Itinerary:
    """Versions `target - inter - intra .. target - inter` with switches at random positions in 1..length-1.

    The first updates of a run have no such past: versions below 0 do not exist and staleness ramps up. Positions
    are random because switches of a real engine fall anywhere; fixed ones would confound the effect of a switch
    with the kind of token that stands there.

    Raises:
        ValueError: `length` tokens cannot hold `intra` switches.
    """
    if intra > length - 1:
        raise ValueError(f"{length} tokens cannot span {intra} version switches")
    last = max(target_version - inter, 0)
    first = max(last - intra, 0)
    return Itinerary(
        versions=tuple(range(first, last + 1)),
        switch_at=tuple(sorted(rng.sample(range(1, length), last - first))),
    )


def oldest_needed(target_version: int, intra: int, inter: int) -> int:
    """The oldest version that the update at `target_version` or a later one still samples from."""
    return max(target_version - inter - intra, 0)
