"""A throughput measurement of the concurrent engine: throughput.json, steps.parquet, trajectories.parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.provenance import check_files, read_sealed

COLOCATED, DISAGGREGATED = "colocated", "disaggregated"
FIELDS: dict[str, type | tuple[type, ...]] = {
    **{name: str for name in ("scale", "task", "label", "method", "title", "mode", "commit")},
    **{name: int for name in ("seed", "cores", "steps")},
    **{name: (int, float) for name in ("tokens_per_second_per_core", "trainer_idle_fraction", "rollout_idle_fraction")},
    **{name: dict for name in ("config", "machine", "settings", "staleness", "stages", "objective")},
}
NESTED = {
    "config": ("train",),
    "settings": ("warmup_steps", "staleness_threshold", "sync_interval", "slots"),
    "staleness": ("intra_mean", "inter_mean", "intra_max", "inter_max"),
    "stages": ("generate_seconds", "train_seconds", "sync_seconds"),
    "objective": ("seconds_rule", "seconds_keep_all", "share_of_step"),
}
STEP_COLUMNS = ("step", "measured", "train_seconds", "sync_seconds", "step_seconds", "response_tokens")
TRAJECTORY_COLUMNS = ("step", "response_tokens", "started", "finished")


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
    steps = _read_parquet(path / "steps.parquet", STEP_COLUMNS).sort_values("step", ignore_index=True)
    trajectories = _read_parquet(path / "trajectories.parquet", TRAJECTORY_COLUMNS)
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
    try:
        record = read_sealed(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: `estr throughput dapo_math estr`, for example, makes one") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}); measure again") from error
    for name, kind in FIELDS.items():
        if not isinstance(record, dict) or not isinstance(record.get(name), kind):
            raise UserError(f"{path}: field '{name}' is missing or malformed")
    for name, parts in NESTED.items():
        for part in parts:
            if part not in record[name]:
                raise UserError(f"{path}: field '{name}.{part}' is missing")
    if record["mode"] not in (COLOCATED, DISAGGREGATED):
        raise UserError(f"{path}: mode '{record['mode']}' is neither {COLOCATED} nor {DISAGGREGATED}")
    return record


def _read_parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; measure again") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as parquet, perhaps truncated; measure again") from error
    missing = [column for column in columns if column not in frame]
    if missing:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}")
    return frame
