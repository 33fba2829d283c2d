"""A throughput measurement of the concurrent engine: throughput.json, steps.parquet, trajectories.parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.files.typed import Kind, read_frame, require_fields
from estr.layout import existing
from estr.provenance import check_files, read_json

COLOCATED, DISAGGREGATED = "colocated", "disaggregated"
FIELDS: dict[str, Kind] = {
    **{name: str for name in ("scale", "task", "label", "method", "title", "mode", "commit")},
    **{name: int for name in ("seed", "cores", "steps")},
    **{name: float for name in ("tokens_per_second_per_core", "trainer_idle_fraction", "rollout_idle_fraction")},
    "wall_seconds": float,
    **{name: dict for name in ("config", "machine", "settings", "staleness", "stages", "objective")},
}
NESTED: dict[str, dict[str, Kind]] = {
    "config": {"train": dict},
    "settings": {"warmup_steps": int, "staleness_threshold": float, "sync_interval": int, "slots": int},
    "staleness": {name: float for name in ("intra_mean", "inter_mean", "intra_max", "inter_max")},
    "stages": {name: float for name in ("generate_seconds", "train_seconds", "sync_seconds")},
    "objective": {name: float for name in ("seconds_rule", "seconds_keep_all", "share_of_step")},
}
STEP_COLUMNS: dict[str, type] = {
    "step": int,
    "measured": bool,
    **{name: float for name in ("train_seconds", "sync_seconds", "step_seconds", "response_tokens")},
}
TRAJECTORY_COLUMNS: dict[str, type] = {"step": int, "response_tokens": int, "started": float, "finished": float}
AGAIN = "measure again"


@dataclass(frozen=True)
class Measurement:
    """One measured window. record: throughput.json; steps: a row per update, warm-up included; trajectories: a row per
    consumed trajectory. Seconds and tokens.
    """

    path: Path
    record: dict[str, Any]
    steps: pd.DataFrame
    trajectories: pd.DataFrame

    @property
    def task(self) -> str:
        return str(self.record["task"])

    @property
    def label(self) -> str:
        return str(self.record["label"])

    @property
    def colocated(self) -> bool:
        return bool(self.record["mode"] == COLOCATED)

    @property
    def step_seconds(self) -> np.ndarray:
        """Of the measured updates, `[updates]`."""
        return np.asarray(self.steps.loc[self.steps["measured"], "step_seconds"], np.float64)

    @property
    def run_id(self) -> str:
        """e.g. ``laptop/dapo_math/estr/seed0``."""
        return "/".join(str(self.record[name]) for name in ("scale", "task", "label")) + f"/seed{self.record['seed']}"


def load_measurement(path: Path) -> Measurement:
    """Read a folder `results/<scale>/throughput/<task>/<label>/seed<N>`.

    Raises:
        UserError: a file is missing, truncated or lacks a field or column, or nothing was measured.
    """
    record = _read_json(path / "throughput.json")
    check_files(path / "throughput.json")
    steps = read_frame(path / "steps.parquet", STEP_COLUMNS, AGAIN).sort_values("step", ignore_index=True)
    trajectories = read_frame(path / "trajectories.parquet", TRAJECTORY_COLUMNS, AGAIN)
    if len(trajectories) == 0 or not steps["measured"].any():
        raise UserError(f"{path}: holds no measured update; measure again")
    return Measurement(path, record, steps, trajectories)


def load_measurements(folders: Sequence[Path]) -> list[Measurement]:
    """Read measurements of one scale.

    Raises:
        UserError: there is none, one cannot be read, two are of the same task, label and seed, or scales are mixed.
    """
    found: dict[str, Measurement] = {}
    for folder in folders:
        measurement = load_measurement(folder)
        if measurement.run_id in found:
            raise UserError(f"{found[measurement.run_id].path} and {folder} are the same measurement")
        found[measurement.run_id] = measurement
    if not found:
        raise UserError(
            "no throughput measurement was given: `estr throughput dapo_math estr` makes one, and "
            "`estr throughput dapo_math sync` the one that it is compared with"
        )
    scales = sorted({measurement.record["scale"] for measurement in found.values()})
    if len(scales) > 1:
        raise UserError(f"measurements of several scales cannot share a table or figure: {', '.join(scales)}")
    return list(found.values())


def _read_json(path: Path) -> dict[str, Any]:
    existing(path, "estr throughput dapo_math estr")
    record = require_fields(path, read_json(path), FIELDS)
    for name, parts in NESTED.items():
        require_fields(path, record[name], parts, f"{name}.")
    if record["mode"] not in (COLOCATED, DISAGGREGATED):
        raise UserError(f"{path}: mode '{record['mode']}' is neither {COLOCATED} nor {DISAGGREGATED}")
    return record
