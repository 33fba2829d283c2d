"""Discrete-event model of the training pipeline: a rollout pool and a trainer, apart or on the same devices.

A replica of the rollout pool writes one token in each of its n running slots in
`token_seconds + n * slot_seconds`. A free slot takes the next trajectory; a group is ready when its slowest member is.
The trainer takes the `prompts` groups that were ready first. After `interval` updates it hands its weights over: every
replica stops for `sync_seconds`, reads the prefixes of its running trajectories again and goes on with them under the
new weights (partial rollout). As in verl's fully asynchronous trainer, a group may start only while fewer than
(1 + threshold) * interval * prompts groups have been started and not trained by the last synchronization.

Seconds, tokens, versions; a version is an update, as in Eq. 2. Between two events every replica advances at a constant
pace, so that the model needs an event per trajectory and none per token.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from estr.errors import UserError
from estr.pipeline.replicas import Groups, Pool, Trajectory
from estr.pipeline.settings import Pipeline


@dataclass(frozen=True)
class Trajectories:
    """A row per trained trajectory, in the order of training; arrays `[trajectories]`.

    update from 1, warm-up included; group counts from 0 in the order of starting; tokens; started and finished in
    seconds; version_first and version_last of the weights that wrote the first and the last token.
    """

    update: np.ndarray
    group: np.ndarray
    tokens: np.ndarray
    started: np.ndarray
    finished: np.ndarray
    version_first: np.ndarray
    version_last: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What a simulation shows after its warm-up.

    ended `[warmup + updates]`: seconds at which each update was done, its synchronization included.
    trainer_idle: share of time in which the trainer waits for groups. rollout_idle: share in which a replica has no
    running trajectory. Colocated: both are the share of device time that is not used. slots_used: mean share of a
    replica's slots that run, while any does. generate_seconds: of an update's number of trajectories, idle time not
    counted; colocated, of a batch.
    """

    devices: int
    warmup: int
    ended: np.ndarray
    trainer_idle: float
    rollout_idle: float
    slots_used: float
    generate_seconds: float
    trajectories: Trajectories

    @property
    def step_seconds(self) -> np.ndarray:
        """`[updates]`"""
        return np.diff(self.ended[self.warmup - 1 :]) if self.warmup else np.diff(self.ended, prepend=0.0)

    @property
    def seconds_per_update(self) -> float:
        return float(self.step_seconds.mean())

    @property
    def tokens_per_second_per_device(self) -> float:
        tokens = self.trajectories.tokens[self._measured].sum()
        return float(tokens / self.step_seconds.sum() / self.devices)

    @property
    def intra(self) -> np.ndarray:
        """v_last - v_first of every measured trajectory, in versions (Eq. 2)."""
        return np.asarray((self.trajectories.version_last - self.trajectories.version_first)[self._measured])

    @property
    def inter(self) -> np.ndarray:
        """v_target - v_last of every measured trajectory, in versions (Eq. 2)."""
        return np.asarray((self.trajectories.update - 1 - self.trajectories.version_last)[self._measured])

    @property
    def _measured(self) -> np.ndarray:
        return self.trajectories.update > self.warmup


def histogram(staleness: np.ndarray) -> dict[int, int]:
    """Trajectories per value of a staleness, ascending."""
    values, counts = np.unique(staleness, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def simulate_disaggregated(pipeline: Pipeline, updates: int, warmup: int = 0, seed: int = 0) -> Outcome:
    """Asynchronous training from an empty pipeline on; `updates` are observed after `warmup` others.

    Raises:
        UserError: no update is to be observed.
    """
    costs, prompts = pipeline.costs, pipeline.prompts
    trainers = pipeline.devices - pipeline.rollout_devices
    pool = Pool(pipeline, pipeline.rollout_devices)
    groups = Groups(pipeline, seed)
    log = _Log(pipeline, updates, warmup)
    ready: deque[list[Trajectory]] = deque()
    trained = synced = 0  # updates
    free_since: float | None = 0.0  # the trainer waits since then
    update_ends = sync_ends = math.inf

    def supply() -> Trajectory | None:
        return groups.next(synced * prompts + pipeline.group_limit)

    pool.fill(0.0, synced, supply)
    while not log.complete:
        finishes = pool.next_finish()
        now = min(finishes, update_ends, sync_ends)
        if now == finishes:
            complete = groups.finish(pool.finish(synced))
            if complete is not None:
                ready.append(complete)
            pool.fill(now, synced, supply)
        else:
            if now == update_ends:
                trained, update_ends = trained + 1, math.inf
                if trained % pipeline.interval == 0:
                    synced, sync_ends = trained, now + costs.sync_seconds
                    pool.pause(now, costs.sync_seconds)
                    continue
            sync_ends, free_since = math.inf, now
            pool.fill(now, synced, supply)
            log.end_update(now, pool)
        if free_since is not None and len(ready) >= prompts and not log.complete:
            log.wait(now - free_since)
            free_since = None
            tokens = log.train([ready.popleft() for _ in range(prompts)])
            update_ends = now + costs.train_seconds + tokens * costs.train_token_seconds / trainers
    return log.outcome()


def simulate_colocated(pipeline: Pipeline, updates: int, warmup: int = 0, seed: int = 0) -> Outcome:
    """Synchronous training: all devices generate the groups of an update, then all train on them.

    `rollout_devices`, `threshold` and `interval` have no meaning here. With the same seed the trajectories have the
    lengths of `simulate_disaggregated`.

    Raises:
        UserError: no update is to be observed.
    """
    costs = pipeline.costs
    pool = Pool(pipeline, pipeline.devices)
    groups = Groups(pipeline, seed)
    log = _Log(pipeline, updates, warmup, colocated=True)
    now = 0.0
    for version in range(warmup + updates):
        batch: list[list[Trajectory]] = []

        def supply(limit: int = (version + 1) * pipeline.prompts) -> Trajectory | None:
            return groups.next(limit)

        pool.fill(now, version, supply)
        while len(batch) < pipeline.prompts:
            now = pool.next_finish()
            complete = groups.finish(pool.finish(version))
            if complete is not None:
                batch.append(complete)
            pool.fill(now, version, supply)
        training = costs.train_seconds + log.train(batch) * costs.train_token_seconds / pipeline.devices
        training += costs.sync_seconds
        log.use_all_devices(training)
        now += training
        log.end_update(now, pool)
    return log.outcome()


class _Log:
    """Collects what `Outcome` shows."""

    def __init__(self, pipeline: Pipeline, updates: int, warmup: int, colocated: bool = False) -> None:
        if updates < 1 or warmup < 0:
            raise UserError(f"at least one update must be observed after a warm-up of at least 0, got {updates}")
        self._devices, self._colocated = pipeline.devices, colocated
        self._batch = pipeline.prompts * pipeline.group
        self._updates, self._warmup = updates, warmup
        self._ended: list[float] = []
        self._rows: list[tuple[float, ...]] = []
        self._trained = 0
        self._waited = self._all_used = 0.0
        self._start = self._window = np.zeros(5)  # waited, all_used, usage: before the window, in it

    @property
    def complete(self) -> bool:
        return len(self._ended) == self._warmup + self._updates

    def wait(self, seconds: float) -> None:
        self._waited += seconds

    def use_all_devices(self, seconds: float) -> None:
        """Colocated: the pool generates nothing meanwhile, yet no device is idle."""
        self._all_used += seconds

    def train(self, groups: list[list[Trajectory]]) -> int:
        """Note an update's groups; their tokens."""
        self._trained += 1
        members = [trajectory for group in groups for trajectory in group]
        self._rows += [
            (self._trained, t.group, t.tokens, t.started, t.finished, t.version_first, t.version_last) for t in members
        ]
        return sum(trajectory.tokens for trajectory in members)

    def end_update(self, now: float, pool: Pool) -> None:
        self._ended.append(now)
        if len(self._ended) == self._warmup:
            self._start = self._totals(now, pool)
        elif self.complete:
            self._window = self._totals(now, pool) - self._start

    def _totals(self, now: float, pool: Pool) -> np.ndarray:
        return np.array([self._waited, self._all_used, *pool.usage(now)])

    def outcome(self) -> Outcome:
        waited, all_used, idle, used, finished = self._window
        seconds = self._ended[-1] - (self._ended[self._warmup - 1] if self._warmup else 0.0)
        columns = np.array(self._rows).T
        update, group, tokens, first, last = (columns[i].astype(np.int64) for i in (0, 1, 2, 5, 6))
        rollout_idle = max(0.0, (idle - all_used) / seconds)  # rounding
        generating = seconds - (all_used if self._colocated else idle)
        return Outcome(
            devices=self._devices,
            warmup=self._warmup,
            ended=np.array(self._ended),
            trainer_idle=float(rollout_idle if self._colocated else waited / seconds),
            rollout_idle=float(rollout_idle),
            slots_used=float(used / (seconds - idle)) if idle < seconds else 0.0,
            generate_seconds=float(generating / finished * self._batch) if finished else math.nan,
            trajectories=Trajectories(update, group, tokens, columns[3], columns[4], first, last),
        )
