"""The stage that measures the concurrent engine: what an update takes, who waits for whom, how stale the tokens are."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pyarrow as pa
import torch
from tqdm import tqdm

from estr.algorithm.objective import objective
from estr.algorithm.rules import KeepAll, KeepRule
from estr.algorithm.signals import TokenSignals
from estr.algorithm.staleness import staleness
from estr.config import RunConfig, keep_rule, load_method, load_sizes
from estr.data.read import read_problems
from estr.embedded.concurrent import Recipe, Update, colocated, disaggregated
from estr.errors import UserError
from estr.evaluation.metrics import bootstrap_interval
from estr.layout import Layout, existing
from estr.provenance import commit, file_digests, machine, packages, write_json
from estr.records import write_table
from estr.tasks import laptop_counterpart

CORES = 2
OBJECTIVE_CALLS = 50
Rows = list[dict[str, Any]]


def measure_throughput(layout: Layout, config: RunConfig) -> Path:
    """Run the concurrent engine for some updates and record how fast it was; returns the folder.

    A synchronous method is measured colocated, every other one disaggregated. `throughput.json` is about the measured
    updates, `steps.parquet` and `trajectories.parquet` have the ones before them too, which warm the engine up;
    docs/efficiency.md describes the files.

    Raises:
        UserError: data or warm start are missing, or the run is one at the matched budget.
        WorkerFailed: the engine's second process failed or is gone.
    """
    if config.matched_budget:
        raise UserError(
            f"{config.label}: throughput is measured at the published thresholds, not at the matched budget"
        )
    problems = read_problems(existing(layout.data(config.task) / "train.parquet", f"estr data prepare {config.task}"))
    start = existing(layout.warm_start(config.task) / "model.safetensors", f"estr pretrain {config.task}").parent
    settings, method = load_sizes(config.scale, config.task).concurrent, load_method(config.method)
    recipe = Recipe.prepare(config, laptop_counterpart(config.task, config.counterpart.model_dump()), problems, start)
    torch.set_num_threads(1)  # a core per process, whatever OMP_NUM_THREADS grants the job
    run = colocated if method.synchronous else disaggregated
    count = settings.warmup_steps + settings.steps
    with closing(run(recipe, settings)) as updates:
        seen = list(tqdm(islice(updates, count), total=count, desc=config.label, unit="step", disable=None))
    trajectories = [_trajectories(update) for update in seen]
    steps = _steps(seen, trajectories, settings.warmup_steps)
    window = _window(seen, trajectories, steps, settings.warmup_steps)
    record = {
        "scale": config.scale,
        "task": config.task,
        "label": config.label,
        "method": config.method,
        "title": method.title,
        "seed": config.seed,
        "commit": commit(),
        "machine": machine(),
        "packages": packages(),
        "config": config.model_dump(),
        "mode": "colocated" if method.synchronous else "disaggregated",
        "cores": CORES,
        "settings": settings.model_dump(),
        **window,
        "objective": _objective(config, seen[-1].signals, window["step_seconds"]["mean"]),
    }
    folder = layout.throughput(config)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(pa.Table.from_pylist(steps), folder / "steps.parquet")
    write_table(pa.Table.from_pylist([row for rows in trajectories for row in rows]), folder / "trajectories.parquet")
    files = file_digests(folder, ["steps.parquet", "trajectories.parquet"])
    write_json(folder / "throughput.json", record | {"files": files})
    return folder


def _trajectories(update: Update) -> Rows:
    """A row per response that the update consumed."""
    rows: Rows = []
    for group in update.groups:
        version = torch.from_numpy(group.version)
        stale = staleness(version, version >= 0, update.target_version)
        columns = zip(
            (version >= 0).sum(1).tolist(),
            group.started,
            group.finished,
            (update.target_version - stale.total).tolist(),
            (update.target_version - stale.inter).tolist(),
            group.resumed,
            strict=True,
        )
        for tokens, started, finished, first, last, resumed in columns:
            rows.append(
                {
                    "step": update.target_version + 1,
                    "response_tokens": tokens,
                    "started": started - update.origin,
                    "finished": finished - update.origin,
                    "version_first": first,
                    "version_last": last,
                    "target_version": update.target_version,
                    "resumed": resumed,
                }
            )
    return rows


def _steps(updates: Sequence[Update], trajectories: Sequence[Rows], warmup: int) -> Rows:
    """A row per update; `step_seconds` counts from the end of the update before."""
    rows = []
    before = 0.0
    for update, consumed in zip(updates, trajectories, strict=True):
        rows.append(
            {
                "step": update.target_version + 1,
                "measured": update.target_version >= warmup,
                "started": update.started,
                "wait_seconds": update.wait,
                "generate_seconds": update.generate,
                "train_seconds": update.train,
                "sync_seconds": update.sync,
                "step_seconds": update.finished - before,
                "response_tokens": float(sum(row["response_tokens"] for row in consumed)),
                "queue_length": float(update.queue_length),
                "staleness_intra": fmean(row["version_last"] - row["version_first"] for row in consumed),
                "staleness_inter": fmean(row["target_version"] - row["version_last"] for row in consumed),
                "reward": fmean(reward for group in update.groups for reward in group.reward),
            }
        )
        before = update.finished
    return rows


def _window(updates: Sequence[Update], trajectories: Sequence[Rows], steps: Rows, warmup: int) -> dict[str, Any]:
    """What throughput.json says about the measured updates."""
    last = updates[-1]
    started, rollout_idle, trainer_idle, generated = 0.0, 0.0, 0.0, 0
    if warmup:
        before = updates[warmup - 1]
        started, generated = before.finished, before.generated
        rollout_idle, trainer_idle = before.rollout_idle, before.trainer_idle
    wall, idle = last.finished - started, last.rollout_idle - rollout_idle
    measured, consumed = steps[warmup:], [row for rows in trajectories[warmup:] for row in rows]
    seconds = [row["step_seconds"] for row in measured]
    low, high = bootstrap_interval(seconds, seed=0)
    tokens = sum(row["response_tokens"] for row in consumed)
    if math.isnan(last.generate):
        generate = (wall - idle) / max(last.generated - generated, 1) * len(consumed) / len(measured)
    else:
        generate = fmean(row["generate_seconds"] for row in measured)
    return {
        "steps": len(measured),
        "tokens": tokens,
        "wall_seconds": wall,
        "step_seconds": {
            "mean": fmean(seconds),
            "sd": stdev(seconds) if len(seconds) > 1 else 0.0,
            "low": low,
            "high": high,
        },
        "tokens_per_second": tokens / wall,
        "tokens_per_second_per_core": tokens / wall / CORES,
        "trainer_idle_fraction": (last.trainer_idle - trainer_idle) / wall,
        "rollout_idle_fraction": idle / wall,
        "staleness": _staleness(consumed),
        "partial_rollouts": sum(row["resumed"] > 0 for row in consumed),
        "dropped_stale": 0,  # the rollout pauses before the queue is full; nothing is thrown away
        "stages": {
            "generate_seconds": generate,
            "train_seconds": fmean(row["train_seconds"] for row in measured),
            "sync_seconds": fmean(row["sync_seconds"] for row in measured),
        },
    }


def _staleness(consumed: Rows) -> dict[str, Any]:
    intra = [row["version_last"] - row["version_first"] for row in consumed]
    inter = [row["target_version"] - row["version_last"] for row in consumed]
    return {
        "intra_mean": fmean(intra),
        "inter_mean": fmean(inter),
        "intra_max": max(intra),
        "inter_max": max(inter),
        "histogram": {
            name: {str(value): count for value, count in sorted(Counter(values).items())}
            for name, values in (("intra", intra), ("inter", inter))
        },
    }


def _objective(config: RunConfig, signals: TokenSignals, step_seconds: float) -> dict[str, float]:
    """Median seconds of the objective on a batch of the run: with the run's rule, and with none, in turn."""
    leaf = replace(signals, target_logprob=signals.target_logprob.detach().requires_grad_())
    rules: tuple[KeepRule, ...] = (keep_rule(config), KeepAll())
    taken: list[list[float]] = [[] for _ in rules]
    for _ in range(OBJECTIVE_CALLS):
        for rule, seconds in zip(rules, taken, strict=True):
            started = time.perf_counter()
            objective(leaf, rule, clip_low=config.train.clip_low, clip_high=config.train.clip_high)
            seconds.append(time.perf_counter() - started)
    ours, keep_all = map(median, taken)
    return {"seconds_rule": ours, "seconds_keep_all": keep_all, "share_of_step": ours / step_seconds}
