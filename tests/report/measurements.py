"""Synthetic throughput measurements, written by the contract of the concurrent engine's files.

A simulated pipeline stands for the engine, so that what was put in is known.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.pipeline.lengths import LognormalLengths
from estr.pipeline.model import Outcome, histogram, simulate_colocated, simulate_disaggregated
from estr.pipeline.settings import Costs, Pipeline

TITLES = {"sync": "GRPO (sync)", "async": "GRPO (async)", "m2po": "M2PO", "estr": "ESTR"}
UPDATES, WARMUP = 12, 4
ENGINE = Pipeline(
    prompts=8,
    group=4,
    lengths=LognormalLengths(20.0, 0.6, 60),
    costs=Costs(token_seconds=0.004, slot_seconds=0.001, train_token_seconds=0.0005, sync_seconds=0.01),
    devices=2,
    rollout_devices=1,
    slots=16,
    threshold=2,
    interval=2,
)


def simulated(label: str, seed: int = 0, engine: Pipeline = ENGINE) -> Outcome:
    """What the engine does: sync colocated, everything else disaggregated."""
    simulate = simulate_colocated if label == "sync" else simulate_disaggregated
    return simulate(engine, UPDATES, WARMUP, seed)


def write_measurement(
    root: Path, label: str, *, task: str = "dapo_math", seed: int = 0, engine: Pipeline = ENGINE
) -> Path:
    """results/laptop/throughput/<task>/<label>/seed<N> under `root`."""
    outcome = simulated(label, seed, engine)
    colocated = label == "sync"
    folder = root / "results" / "laptop" / "throughput" / task / label / f"seed{seed}"
    folder.mkdir(parents=True)
    steps, trajectories = _steps(outcome, engine, colocated), _trajectories(outcome)
    steps.to_parquet(folder / "steps.parquet")
    trajectories.to_parquet(folder / "trajectories.parquet")
    window = steps[steps["measured"]]
    seconds = float(window["step_seconds"].sum())
    tokens = int(window["response_tokens"].sum())
    record = {
        "scale": "laptop",
        "task": task,
        "label": label,
        "method": label,
        "title": TITLES[label],
        "seed": seed,
        "commit": "0123abc",
        "machine": {"processor": "test cpu", "cores": 2},
        "packages": {"torch": "2.13.0"},
        "config": {"train": {"prompts": engine.prompts, "group": engine.group}},
        "mode": "colocated" if colocated else "disaggregated",
        "cores": 2,
        "settings": {
            "steps": UPDATES,
            "warmup_steps": WARMUP,
            "staleness_threshold": engine.threshold,
            "sync_interval": engine.interval,
            "slots": engine.slots,
        },
        "steps": UPDATES,
        "tokens": tokens,
        "wall_seconds": seconds,
        "step_seconds": {"mean": seconds / UPDATES, "sd": 0.0, "low": 0.0, "high": 0.0},
        "tokens_per_second": tokens / seconds,
        "tokens_per_second_per_core": tokens / seconds / 2,
        "trainer_idle_fraction": outcome.trainer_idle,
        "rollout_idle_fraction": outcome.rollout_idle,
        "staleness": _staleness(outcome),
        "partial_rollouts": int((outcome.intra > 0).sum()),
        "dropped_stale": 0,
        "stages": {
            "generate_seconds": outcome.generate_seconds,
            "train_seconds": float(window["train_seconds"].mean()),
            "sync_seconds": float(window["sync_seconds"].mean()),
        },
        "objective": {"seconds_rule": 2.2e-4, "seconds_keep_all": 2e-4, "share_of_step": 2.2e-4 * UPDATES / seconds},
    }
    (folder / "throughput.json").write_text(json.dumps(record))
    return folder


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of a measurement's throughput.json."""
    path = folder / "throughput.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _steps(outcome: Outcome, engine: Pipeline, colocated: bool) -> pd.DataFrame:
    costs = engine.costs
    tokens = pd.Series(outcome.trajectories.tokens).groupby(outcome.trajectories.update).sum().to_numpy()
    step = np.arange(1, UPDATES + WARMUP + 1)
    seconds = np.diff(outcome.ended, prepend=0.0)
    synchronized = np.full(len(step), colocated) | (step % engine.interval == 0)
    train = tokens * costs.train_token_seconds / (2 if colocated else 1)
    sync = np.where(synchronized, costs.sync_seconds, 0.0)
    rest = seconds - train - sync
    return pd.DataFrame(
        {
            "step": step,
            "measured": step > WARMUP,
            "started": outcome.ended - seconds,
            "wait_seconds": np.zeros(len(step)) if colocated else rest,
            "generate_seconds": rest if colocated else np.full(len(step), np.nan),
            "train_seconds": train,
            "sync_seconds": sync,
            "step_seconds": seconds,
            "response_tokens": tokens,
            "queue_length": 0,
            "reward": 0.5,
        }
    )


def _trajectories(outcome: Outcome) -> pd.DataFrame:
    rows = outcome.trajectories
    return pd.DataFrame(
        {
            "step": rows.update,
            "response_tokens": rows.tokens,
            "started": rows.started,
            "finished": rows.finished,
            "version_first": rows.version_first,
            "version_last": rows.version_last,
            "target_version": rows.update - 1,
            "resumed": (rows.version_last > rows.version_first).astype(np.int64),
        }
    )


def _staleness(outcome: Outcome) -> dict[str, Any]:
    sources = {"intra": outcome.intra, "inter": outcome.inter}
    summary: dict[str, Any] = {"histogram": {name: histogram(values) for name, values in sources.items()}}
    for name, values in sources.items():
        summary |= {f"{name}_mean": float(values.mean()), f"{name}_max": int(values.max())}
    return summary
