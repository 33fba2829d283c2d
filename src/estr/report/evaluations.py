"""Read a run's evaluation.json: how many of k samples of each problem were correct, and who said so."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from estr.errors import UserError
from estr.files.typed import require_fields
from estr.provenance import read_json
from estr.report.labels import scored_by

WithInterval = tuple[float, float, float]
SCORES = ("avg", "pass", "best")
BEHAVIOUR = ("turns", "tool_calls", "tool_errors", "tokens", "completed")
OPTIONAL_BEHAVIOUR = ("recall", "calibration_error")


@dataclass(frozen=True)
class Evaluation:
    """Final evaluation of a run; shares are fractions 0..1.

    correct: int64 [problems], 0..k. weight: float [problems], mean 1: with it a mean over problems is the mean over the
    evaluation sets (AIME's years, say) of each set's mean. problems: a hash of the evaluation set. missing: samples
    that were never delivered and count as wrong. behaviour: means over samples of BEHAVIOUR, and of OPTIONAL_BEHAVIOUR
    where defined. warm_start: per score of SCORES its (value, low, high) before training; warm_behaviour: empty if it
    was not recorded.
    """

    k: int
    correct: np.ndarray
    weight: np.ndarray
    problems: str
    rule: str
    rule_version: int
    judge: str | None
    engine: str
    missing: int
    behaviour: dict[str, float]
    warm_start: tuple[WithInterval, ...]
    warm_behaviour: dict[str, float]

    @property
    def scored_by(self) -> str:
        return scored_by(self.rule, self.rule_version, self.judge)


def read_evaluation(path: Path) -> Evaluation:
    """Read the file and check its summary against the per-problem counts.

    Raises:
        UserError: it cannot be read, a field is missing or malformed, or the counts give another avg@k.
    """
    record = require_fields(path, read_json(path), {})
    try:
        k = int(record["k"])
        warm = record["warm_start"]
        sets = [np.asarray(part["per_problem_correct"], np.int64) for part in record.get("sets", {"": record}).values()]
        problems = sum(map(len, sets))
        evaluation = Evaluation(
            k=k,
            correct=np.concatenate(sets),
            weight=np.concatenate([np.full(len(part), problems / (len(sets) * max(1, len(part)))) for part in sets]),
            problems=str(record["problems_sha256"]),
            rule=str(record["rule"]["name"]),
            rule_version=int(record["rule"]["version"]),
            judge=record["judge"],
            engine=str(record["engine"]),
            missing=int(record["missing"]),
            behaviour=_behaviour(record["agent"]),
            warm_start=tuple(_with_interval(warm, f"{score}@{k}") for score in SCORES),
            warm_behaviour=_behaviour(warm["agent"]) if "agent" in warm else {},
        )
        recorded = float(record[f"avg@{k}"])
        if not (k >= 1 and isinstance(evaluation.judge, str | None)):
            raise ValueError("k or judge")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: field {reason} is missing or malformed; evaluate the run again") from error
    correct = evaluation.correct
    if correct.ndim != 1 or correct.size == 0 or correct.min() < 0 or correct.max() > k:
        raise UserError(f"{path}: per_problem_correct must be a non-empty list of counts between 0 and {k}")
    average = float((evaluation.weight * correct).mean() / k)
    if not abs(average - recorded) <= 1e-6:  # NaN is no average
        raise UserError(f"{path}: avg@{k} is {recorded}, its per-problem counts give {average}")
    return evaluation


def _behaviour(record: dict[str, Any]) -> dict[str, float]:
    known = {name: float(record[name]) for name in BEHAVIOUR}
    return known | {name: float(record[name]) for name in OPTIONAL_BEHAVIOUR if record.get(name) is not None}


def _with_interval(record: dict[str, Any], metric: str) -> WithInterval:
    low, high = record[f"{metric}_ci"]
    return float(record[metric]), float(low), float(high)
