"""The model's parameters from a measurement, or from the few numbers that the paper gives.

A measurement calibrates its own model with what its stages took: how long an update's generation, training and a
synchronization lasted, how the pace of writing changed with the number of running responses, how long responses were.
The time of an update, the idle ratios and the staleness are not used; they are what the model is to predict.

The paper gives two times and two throughputs for one configuration. They fix the mean length, and one equation per
mode; the length skew and how much a replica slows down with its running slots stay open. So what comes out is one
member of a family, and its assumptions are arguments.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.pipeline.lengths import LognormalLengths, MeasuredLengths
from estr.pipeline.measurement import Measurement
from estr.pipeline.model import Outcome, simulate_colocated, simulate_disaggregated
from estr.pipeline.settings import Costs, Pipeline

SEEDS = 5  # simulations of a measured window
LEAST_SPREAD = 0.05  # of the number of running slots over its mean, below which its effect cannot be told
RATIOS = 101  # of fixed to per-slot cost that are tried
ROUNDS = 3  # until the modelled generation stage takes as long as the measured one

PAPER_RESPONSE_LIMIT = 12288
PAPER_SETTINGS: dict[str, Any] = {
    "prompts": 128,
    "group": 8,
    "devices": 16,
    "rollout_devices": 8,
    "replica_devices": 2,
    "slots": 128,
    "threshold": 20,
    "interval": 2,
}
"""DAPO-Math in v1's Table 3. The slots are not there: 128 is verl's default (16 prompts at once per replica), and what
a replica gets of a synchronous batch (1024 trajectories on 8 replicas)."""


@dataclass(frozen=True)
class Compared:
    """One quantity of a measured window, beside what the model says of it."""

    quantity: str
    unit: str
    modelled: float
    measured: float


def calibrate(measurement: Measurement) -> Pipeline:
    """The model of a measurement, in which generation, training and synchronization take as long as was measured.

    Its training cost is that of all devices that trained. Colocated, half of the cores stand for the rollout pool of
    the disaggregated mode, which this measurement did not use.

    Raises:
        UserError: no trajectory took any time.
    """
    settings, cores = measurement.record["settings"], measurement.record["cores"]
    train = measurement.record["config"]["train"]
    replicas = cores if measurement.colocated else cores - cores // 2
    trainers = cores if measurement.colocated else cores // 2
    rows = measurement.trajectories
    steps = measurement.steps[measurement.steps["measured"]]
    token_seconds, slot_seconds = _pace(measurement, replicas)
    synchronized = steps.loc[steps["sync_seconds"] > 0, "sync_seconds"]
    slots = int(settings["slots"])
    if measurement.colocated:  # the slots may lie in one process or in one per core
        slots = max(1, min(slots, math.ceil(_running(rows)[1].max() / cores)))
    pipeline = Pipeline(
        prompts=int(train["prompts"]),
        group=int(train["group"]),
        lengths=MeasuredLengths(rows["response_tokens"].to_numpy(np.int64)),
        costs=Costs(
            token_seconds=token_seconds,
            slot_seconds=slot_seconds,
            train_token_seconds=float(steps["train_seconds"].sum() / steps["response_tokens"].sum() * trainers),
            sync_seconds=float(synchronized.mean()) if len(synchronized) else 0.0,
        ),
        devices=cores,
        rollout_devices=cores - cores // 2,
        slots=slots,
        threshold=float(settings["staleness_threshold"]),
        interval=int(settings["sync_interval"]),
    )
    # between responses the rollout side scores them and reads prompts, which no trajectory's time contains
    for _ in range(ROUNDS):
        stretch = measurement.record["stages"]["generate_seconds"] / _window(measurement, pipeline, 0).generate_seconds
        if not 0 < stretch < math.inf:  # no response ended in the window
            break
        costs = pipeline.costs
        costs = replace(costs, token_seconds=stretch * costs.token_seconds, slot_seconds=stretch * costs.slot_seconds)
        pipeline = replace(pipeline, costs=costs)
    return pipeline


def _window(measurement: Measurement, pipeline: Pipeline, seed: int) -> Outcome:
    """As many updates as were measured, after as many as were not."""
    simulate = simulate_colocated if measurement.colocated else simulate_disaggregated
    warmup = int(measurement.record["settings"]["warmup_steps"])
    return simulate(pipeline, measurement.record["steps"], warmup, seed)


def predict(measurement: Measurement, seeds: int = SEEDS) -> list[Outcome]:
    """The measured window as its calibrated model sees it, warm-up included, once per seed."""
    pipeline = calibrate(measurement)
    return [_window(measurement, pipeline, seed) for seed in range(seeds)]


def compare(measurement: Measurement, outcomes: Sequence[Outcome]) -> list[Compared]:
    """Modelled against measured: time, throughput, idle ratios, staleness. `outcomes`: those of `predict`."""
    record = measurement.record

    def mean(value: Callable[[Outcome], float]) -> float:
        return float(np.mean([value(outcome) for outcome in outcomes]))

    return [
        Compared(
            "seconds per update", "s", mean(lambda o: o.seconds_per_update), float(measurement.step_seconds.mean())
        ),
        Compared(
            "throughput",
            "tokens/s per core",
            mean(lambda o: o.tokens_per_second_per_device),
            record["tokens_per_second_per_core"],
        ),
        Compared("trainer idle", "share", mean(lambda o: o.trainer_idle), record["trainer_idle_fraction"]),
        Compared("rollout idle", "share", mean(lambda o: o.rollout_idle), record["rollout_idle_fraction"]),
        Compared("staleness intra", "versions", mean(lambda o: o.intra.mean()), record["staleness"]["intra_mean"]),
        Compared("staleness inter", "versions", mean(lambda o: o.inter.mean()), record["staleness"]["inter_mean"]),
    ]


def calibrate_to_paper(
    sync_seconds: float,
    async_seconds: float,
    tokens_per_update: float,
    *,
    skew: float = 1.0,
    slot_growth: float = 0.0,
) -> Pipeline:
    """A member of the family of models that gives the paper's two step times on DAPO-Math.

    sync_seconds, async_seconds: per update, synchronous and ESTR. tokens_per_update: throughput times time times GPUs.

    Assumed, because two times cannot tell: the asynchronous run waits for its trainer and not for rollouts, training
    takes half as long on twice the GPUs, a synchronization takes nothing; lengths are lognormal with this `skew`, cut
    at the response limit; a replica is `1 + slot_growth` times slower with all slots running than with hardly any.

    Raises:
        UserError: no such model exists: the rollout GPUs could not keep up.
    """
    unit = Costs(token_seconds=1.0, slot_seconds=slot_growth / PAPER_SETTINGS["slots"])
    trajectories = PAPER_SETTINGS["prompts"] * PAPER_SETTINGS["group"]
    lengths = LognormalLengths(tokens_per_update / trajectories, skew, PAPER_RESPONSE_LIMIT)
    pipeline = Pipeline(lengths=lengths, costs=unit, **PAPER_SETTINGS)
    training = async_seconds * (pipeline.devices - pipeline.rollout_devices)  # device-seconds per update
    generation = sync_seconds - training / pipeline.devices
    pace = generation / simulate_colocated(pipeline, updates=40).seconds_per_update
    at_once = pipeline.rollout_devices // pipeline.replica_devices * pipeline.slots
    needed = tokens_per_update / at_once * pace * (1 + slot_growth)
    if needed > async_seconds:
        raise UserError(
            f"skew {skew:g} and slot growth {slot_growth:g} cannot explain the paper's times: its rollout GPUs would "
            f"need {needed:.0f} s for an update that takes {async_seconds:g} s; "
            "take a larger skew or a smaller slot growth"
        )
    costs = Costs(
        token_seconds=pace,
        slot_seconds=pace * unit.slot_seconds,
        train_token_seconds=training / tokens_per_update,
    )
    return replace(pipeline, costs=costs)


def _pace(measurement: Measurement, replicas: int) -> tuple[float, float]:
    """(token_seconds, slot_seconds), both at least 0, from when trajectories were written and how long they are.

    A replica with n running slots writes tokens at the rate 1 / (token_seconds + n * slot_seconds); integrated over a
    trajectory's time that is its length. Of all ratios of the two costs that one is taken which leaves the smallest
    sum of squared errors of the lengths, each over its length. n is the number of running trajectories over the
    replicas.
    """
    rows = measurement.trajectories
    rows = rows[rows["finished"] > rows["started"]]
    if rows.empty:
        raise UserError(f"{measurement.path / 'trajectories.parquet'}: no trajectory took any time")
    times, running = _running(rows)
    running = running / replicas
    if not measurement.colocated:
        # of the last trajectories' neighbours many were not consumed, and are not in the table
        known = rows["finished"] <= rows["finished"].max() - (rows["finished"] - rows["started"]).max()
        rows = rows[known] if known.sum() >= len(rows) / 4 else rows
    started, finished = (rows[name].to_numpy(np.float64) for name in ("started", "finished"))
    tokens = rows["response_tokens"].to_numpy(np.float64)

    def over_life(rate: np.ndarray) -> np.ndarray:
        """The integral of a rate between `times` over each trajectory's time."""
        area = np.concatenate([[0.0], np.cumsum(np.diff(times) * rate)])
        return np.asarray(np.interp(finished, times, area) - np.interp(started, times, area))

    lived = (finished - started).sum()
    mean = over_life(running).sum() / lived
    varied = over_life((running - mean) ** 2).sum() / lived > (LEAST_SPREAD * mean) ** 2
    fits = []
    for share in np.linspace(0, 1, RATIOS) if varied else [0.0]:
        written = over_life(1 / np.maximum(1 - share + share * running / mean, 1e-9))
        scale = written.sum() / tokens.sum()
        error = float(((written / scale - tokens) ** 2 / tokens).sum())
        fits.append((error, float(scale * (1 - share)), float(scale * share / mean)))
    _, *costs = min(fits)
    return costs[0], costs[1]


def _running(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(times `[n]`, trajectories that run between two of them `[n - 1]`), both in order of time."""
    started, finished = (rows[name].to_numpy(np.float64) for name in ("started", "finished"))
    times = np.unique(np.concatenate([started, finished]))
    change = np.zeros(len(times))
    np.add.at(change, np.searchsorted(times, started), 1)
    np.add.at(change, np.searchsorted(times, finished), -1)
    return times, np.cumsum(change)[:-1]
