"""Calibration files of the matched budget: what the thresholds are, and whether the runs were trained with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from estr.errors import UserError
from estr.files.typed import require_fields
from estr.provenance import read_json
from estr.report.labels import is_matched, matched
from estr.report.runs import RunResult


@dataclass(frozen=True)
class MatchedBudget:
    """results/<scale>/calibration/<task>.json.

    budget: fraction 0..1 of the response tokens that ESTR masks on the shared batch, `tokens` tokens of the updates
    `steps` (first, last) of `source_runs`. rules: by method the name, thresholds and `achieved` fraction of its rule.
    """

    path: Path
    budget: float
    tokens: int
    steps: tuple[int, int]
    source_runs: tuple[str, ...]
    rules: dict[str, dict[str, Any]]

    @property
    def achieved_percent(self) -> dict[str, float]:
        """Masked percentage of the shared batch by label: of every matched variant and of ESTR."""
        found = {matched(method): 100 * rule["achieved"] for method, rule in self.rules.items() if "achieved" in rule}
        return found | {"estr": 100 * self.budget}


def read_calibrations(paths: Sequence[Path], tasks: Sequence[str]) -> dict[str, MatchedBudget]:
    """The calibration of each task; a file's name is the task's.

    Raises:
        UserError: a file of no task, two of one task, or one that cannot be read.
    """
    files: dict[str, Path] = {}
    for path in paths:
        if path.stem not in tasks:
            raise UserError(f"{path}: there is no run of a task '{path.stem}'; name the file of {', '.join(tasks)}")
        if path.stem in files:
            raise UserError(f"{path} and {files[path.stem]} are calibrations of one task; name one of them")
        files[path.stem] = path
    return {task: _read(path) for task, path in files.items()}


def _read(path: Path) -> MatchedBudget:
    record = require_fields(path, read_json(path), {})
    try:
        first, last = record["steps"]
        return MatchedBudget(
            path=path,
            budget=float(record["budget"]),
            tokens=int(record["tokens"]),
            steps=(int(first), int(last)),
            source_runs=tuple(record["source_runs"]),
            rules={
                method: require_fields(path, rule, {"name": str, "achieved": float}, f"rules.{method}.")
                for method, rule in record["rules"].items()
            },
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a field is missing or malformed ({error}); calibrate again") from error


def check_thresholds(runs: Sequence[RunResult], calibration: MatchedBudget | None) -> None:
    """The matched-budget runs of one task must carry the thresholds of its calibration file.

    Raises:
        UserError: there is such a run and no file, or the thresholds differ.
    """
    for run in runs:
        if not is_matched(run.label):
            continue
        if calibration is None:
            raise UserError(f"{run.path}: a matched-budget run needs the calibration file of its task")
        wanted = calibration.rules.get(run.method)
        if wanted is None:
            raise UserError(f"{calibration.path}: lacks the thresholds of {run.method}, which {run.path} needs")
        for name, value in run.rule.items():
            if isinstance(value, float) and not np.isclose(value, wanted.get(name, np.nan), rtol=1e-6):
                raise UserError(
                    f"{run.path / 'run.json'}: {name}={value} is not the calibrated {wanted.get(name)} of "
                    f"{calibration.path}; train the run again"
                )
