"""Load the files of finished runs: run.json, metrics.parquet, tokens.parquet (evaluation.json: `evaluations`).

The folders to read come in by argument; nothing is searched for. A file that is missing, truncated or
in disagreement with its neighbours is a `UserError` that names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from estr.algorithm.rules import build_rule
from estr.errors import UserError
from estr.files.typed import Kind, read_frame, require_fields
from estr.provenance import check_files, read_json
from estr.report.evaluations import Evaluation, read_evaluation
from estr.report.labels import order, task_order

FIRST_STEPS = 50  # the early part of a run that tables report by itself, as the paper does
RUN_FIELDS: dict[str, Kind] = {
    "run_id": str,
    "scale": str,
    "task": str,
    "method": str,
    "label": str,
    "seed": int,
    "config": dict,
    "config_hash": str,
    "commit": str,
    "packages": dict,
    "machine": dict,
    "wall_seconds": float,
    "status": str,
    "steps": int,
    "rule": dict,
}
METRIC_COLUMNS: dict[str, type] = {
    "step": int,
    "reward": float,
    "masked_fraction": float,
    "masked_entropy": float,
    "response_tokens": float,
    "ratio_deviation": float,
    "kl_to_behavior": float,
    "entropy": float,
}
TOKEN_COLUMNS: dict[str, type] = {
    **{name: int for name in ("step", "sequence", "position", "weight_version", "switch_offset")},
    **{name: float for name in ("behavior_logprob", "target_logprob", "entropy")},
}
AGAIN = "make it again"


@dataclass(frozen=True)
class RunResult:
    """A finished run. metrics: one row per step (see docs/metrics.md)."""

    path: Path
    run_id: str
    scale: str
    task: str
    method: str
    label: str
    seed: int
    engine: str
    rule: dict[str, Any]
    config: dict[str, Any]
    config_hash: str
    commit: str
    packages: dict[str, str]
    machine: dict[str, Any]
    wall_seconds: float
    steps: int
    mlflow_run_id: str | None
    metrics: pd.DataFrame

    @property
    def thresholds(self) -> str:
        """The rule's thresholds written out, e.g. ``tau=1.6, eps=0.01``; empty for a rule without any."""
        return format_thresholds(self.rule)

    def read_evaluation(self) -> Evaluation:
        """Read evaluation.json, checked against itself."""
        return read_evaluation(self.path / "evaluation.json")

    def read_tokens(self) -> pd.DataFrame:
        """Read the sampled tokens; adds log_ratio = target_logprob - behavior_logprob (nats, Eq. 7)."""
        check_files(self.path / "run.json", "tokens.parquet")
        path = self.path / "tokens.parquet"
        tokens = read_frame(path, TOKEN_COLUMNS, AGAIN)
        tokens["log_ratio"] = tokens["target_logprob"] - tokens["behavior_logprob"]
        return tokens


def load_runs(run_dirs: Sequence[Path]) -> list[RunResult]:
    """Load runs of one scale, sorted by task and method in display order and by seed.

    Raises:
        UserError: no run, an unreadable or unfinished one, two of the same task, label and seed, or mixed scales.
    """
    runs = [load_run(Path(path)) for path in run_dirs]
    runs.sort(key=lambda run: (task_order(run.task), order(run.label), run.seed))
    if not runs:
        raise UserError("no run folders were given; name at least one results/<scale>/runs/<task>/<label>/seed<N>")
    scales = sorted({run.scale for run in runs})
    if len(scales) > 1:
        raise UserError(f"runs of several scales cannot share a table or figure: {', '.join(scales)}")
    for first, second in pairwise(runs):
        if (first.task, first.label, first.seed) == (second.task, second.label, second.seed):
            raise UserError(
                f"{first.path} and {second.path} are the same run ({first.task}, {first.label}, seed {first.seed})"
            )
    return runs


def by_task(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """The runs of each task, tasks in display order."""
    tasks = sorted({run.task for run in runs}, key=task_order)
    return {task: [run for run in runs if run.task == task] for task in tasks}


def load_run(path: Path) -> RunResult:
    """Load run.json and metrics.parquet of one finished run; both must be as they were written."""
    record_path = path / "run.json"
    record = require_fields(record_path, read_json(record_path), RUN_FIELDS)
    if record["status"] != "complete":
        raise UserError(f"{record_path}: status is '{record['status']}', not 'complete'; finish the run first")
    engine = require_fields(record_path, record["config"], {"engine": str}, "config.")["engine"]
    _check_rule(record_path, record["rule"])
    metrics_path = path / "metrics.parquet"
    check_files(record_path, "metrics.parquet")
    metrics = read_frame(metrics_path, METRIC_COLUMNS, AGAIN).sort_values("step", ignore_index=True)
    if metrics["step"].tolist() != list(range(1, record["steps"] + 1)):
        raise UserError(
            f"{metrics_path}: holds {metrics['step'].nunique()} steps in {len(metrics)} rows, "
            f"run.json says {record['steps']}; resume the run"
        )
    kept_fields = {name: record[name] for name in RUN_FIELDS if name != "status"}
    return RunResult(
        path=path, engine=engine, metrics=metrics, mlflow_run_id=record.get("mlflow_run_id"), **kept_fields
    )


def format_thresholds(rule: dict[str, Any]) -> str:
    """Write a rule's thresholds out with four significant digits."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, int | float) else f"{name}={value}"
        for name, value in rule.items()
        if name not in ("name", "achieved")
    )


def _check_rule(path: Path, rule: dict[str, Any]) -> None:
    try:
        build_rule(**rule)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: field 'rule' is missing or malformed ({error})") from error
