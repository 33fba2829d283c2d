"""The rollout pool: groups of trajectories, and replicas that write them.

Between two events a replica advances at a constant pace; its clock counts the tokens written per slot.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from estr.pipeline.settings import Costs, Pipeline


@dataclass(slots=True)
class Trajectory:
    """One response: tokens, seconds, versions of the weights that wrote its first and its last token."""

    group: int
    tokens: int
    started: float = math.nan
    finished: float = math.nan
    version_first: int = -1
    version_last: int = -1


class Groups:
    """Hands out trajectories, group by group, and says when a group is complete."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self._size = pipeline.group
        self._lengths = _endless_lengths(pipeline, seed)
        self._started = 0
        self._waiting: list[Trajectory] = []
        self._done: dict[int, list[Trajectory]] = {}

    def next(self, limit: float) -> Trajectory | None:
        """The next trajectory; None if it belongs to a group beyond the first `limit`."""
        if not self._waiting:
            if self._started >= limit:
                return None
            self._waiting = [Trajectory(self._started, next(self._lengths)) for _ in range(self._size)]
            self._started += 1
        return self._waiting.pop()

    def finish(self, trajectory: Trajectory) -> list[Trajectory] | None:
        """The whole group if this was its last trajectory."""
        members = self._done.setdefault(trajectory.group, [])
        members.append(trajectory)
        return self._done.pop(trajectory.group) if len(members) == self._size else None


def _endless_lengths(pipeline: Pipeline, seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from pipeline.lengths.draw(rng, pipeline.prompts * pipeline.group).tolist()


class _Replica:
    """Running trajectories by the token clock at which they end; the clock counts tokens written per slot."""

    __slots__ = ("clock", "clock_starts", "costs", "idle_seconds", "now", "paused_until", "running", "slot_seconds")

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.running: list[tuple[float, int, Trajectory]] = []
        self.clock = self.now = self.paused_until = 0.0
        self.clock_starts = 0.0  # sum over the running trajectories
        self.idle_seconds = self.slot_seconds = 0.0

    def pace(self) -> float:
        """Seconds per token at the present number of running slots."""
        return self.costs.token_seconds + len(self.running) * self.costs.slot_seconds

    def advance(self, now: float) -> None:
        if now == self.now:
            return
        start = self.now if self.now > self.paused_until else self.paused_until
        if self.running:
            self.slot_seconds += len(self.running) * (now - self.now)
            if now > start:
                self.clock += (now - start) / self.pace()
        elif now > start:
            self.idle_seconds += now - start
        self.now = now

    def finishes(self) -> float:
        """When the next trajectory ends if nothing changes; not before now, whatever rounding says."""
        remaining = self.running[0][0] - self.clock
        start = self.now if self.now > self.paused_until else self.paused_until
        return start + remaining * self.pace() if remaining > 0 else start

    def prefix_tokens(self) -> float:
        return len(self.running) * self.clock - self.clock_starts


class Pool:
    """The replicas that generate."""

    def __init__(self, pipeline: Pipeline, devices: int) -> None:
        self._slots, self._costs = pipeline.slots, pipeline.costs
        self._replicas = [_Replica(pipeline.costs) for _ in range(devices // pipeline.replica_devices)]
        self._running = [0] * len(self._replicas)
        self._events: list[tuple[float, int, int]] = []  # (time, replica, stamp)
        self._stamps = [0] * len(self._replicas)  # of the valid event of each replica
        self._changed: set[int] = set()  # replicas without a valid event
        self._order = self._finished = 0

    def fill(self, now: float, version: int, supply: Callable[[], Trajectory | None]) -> None:
        """Start trajectories in free slots, on the emptiest replica first, until the supply ends."""
        while (fewest := min(self._running)) < self._slots:
            trajectory = supply()
            if trajectory is None:
                return
            index = self._running.index(fewest)
            replica = self._replicas[index]
            replica.advance(now)
            trajectory.started, trajectory.version_first = now, version
            self._order += 1
            heappush(replica.running, (replica.clock + trajectory.tokens, self._order, trajectory))
            replica.clock_starts += replica.clock
            self._running[index] += 1
            self._changed.add(index)

    def next_finish(self) -> float:
        """Infinite if nothing runs."""
        for index in self._changed:
            self._stamps[index] += 1
            if self._running[index]:
                heappush(self._events, (self._replicas[index].finishes(), index, self._stamps[index]))
        self._changed.clear()
        while self._events and self._events[0][2] != self._stamps[self._events[0][1]]:
            heappop(self._events)
        return self._events[0][0] if self._events else math.inf

    def finish(self, version: int) -> Trajectory:
        """End the trajectory of `next_finish`."""
        now, index, _ = heappop(self._events)
        replica = self._replicas[index]
        replica.advance(now)
        end, _, trajectory = heappop(replica.running)
        replica.clock = end  # exact, so that equal lengths end together
        replica.clock_starts -= end - trajectory.tokens
        trajectory.finished, trajectory.version_last = now, version
        self._running[index] -= 1
        self._finished += 1
        self._changed.add(index)
        return trajectory

    def pause(self, now: float, seconds: float) -> None:
        """Stop every replica, and then let it read the prefixes of its running trajectories again."""
        for index, replica in enumerate(self._replicas):
            replica.advance(now)
            prefill = self._costs.prefill_seconds * replica.prefix_tokens()
            replica.paused_until = max(now, replica.paused_until) + seconds + prefill
            self._changed.add(index)

    def usage(self, now: float) -> np.ndarray:
        """Until now: idle seconds and used seconds of a slot, means over replicas; finished trajectories. `[3]`"""
        for index, replica in enumerate(self._replicas):
            replica.advance(now)
            self._changed.add(index)
        pairs = [(replica.idle_seconds, replica.slot_seconds / self._slots) for replica in self._replicas]
        return np.array([*np.mean(pairs, axis=0), self._finished])
