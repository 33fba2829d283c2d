"""Which split of the devices to take: every split simulated, beside synchronous training on all of them."""

import math
from dataclasses import dataclass, replace

from estr.pipeline.model import Outcome, simulate_colocated, simulate_disaggregated
from estr.pipeline.settings import Pipeline

UPDATES = 40  # observed
MOST_WARMUP = 120
TIE = 0.01  # relative difference in time that does not decide


@dataclass(frozen=True)
class Choice:
    """One split, asynchronous. speedup: step time of synchronous training on the same devices over its own."""

    pipeline: Pipeline
    outcome: Outcome
    speedup: float

    @property
    def staleness(self) -> float:
        """Versions between the first token and the update, mean."""
        return float(self.outcome.intra.mean() + self.outcome.inter.mean())


def warmup_updates(pipeline: Pipeline) -> int:
    """Updates after which the waiting groups have, or nearly have, come to the number that they stay at."""
    updates = 2 * (1 + pipeline.threshold) * pipeline.interval + 5
    return math.ceil(min(updates, MOST_WARMUP))


def splits(devices: int, replica_devices: int, most: int = 15) -> list[int]:
    """Devices for rollouts in whole replicas, at least one device left to train; at most so many, evenly spaced."""
    whole = list(range(replica_devices, devices, replica_devices))
    if len(whole) <= most:
        return whole
    return sorted({whole[round(i * (len(whole) - 1) / (most - 1))] for i in range(most)})


def simulate_sync(pipeline: Pipeline, updates: int = UPDATES, seed: int = 0) -> Outcome:
    """Synchronous training on all devices of the pipeline."""
    return simulate_colocated(pipeline, updates, seed=seed)


def try_split(pipeline: Pipeline, sync: Outcome, rollout_devices: int, updates: int = UPDATES, seed: int = 0) -> Choice:
    """The pipeline with so many devices for rollouts, beside synchronous training `sync`."""
    candidate = replace(pipeline, rollout_devices=rollout_devices)
    outcome = simulate_disaggregated(candidate, updates, warmup_updates(candidate), seed)
    return Choice(candidate, outcome, sync.seconds_per_update / outcome.seconds_per_update)


def recommend(choices: list[Choice]) -> Choice:
    """The fastest; among those within `TIE` of it, the one with the least stale trajectories."""
    fastest = min(choice.outcome.seconds_per_update for choice in choices)
    tied = [choice for choice in choices if choice.outcome.seconds_per_update <= (1 + TIE) * fastest]
    return min(tied, key=lambda choice: choice.staleness)
