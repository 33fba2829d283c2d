"""Scores of the runs of one method on one task: means, spreads and paired differences, in percent."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estr.errors import UserError
from estr.evaluation.metrics import best_at_k, bootstrap_interval, pass_at_k
from estr.evaluation.paired import PairedDifference, paired_difference_interval
from estr.report.evaluations import BEHAVIOUR, OPTIONAL_BEHAVIOUR, SCORES, Evaluation
from estr.report.runs import RunResult

SHARES = ("completed", "recall", "calibration_error")
BEHAVIOUR_COLUMNS = {
    name: f"agent_{name}_percent" if name in SHARES else f"agent_{name}" for name in (*BEHAVIOUR, *OPTIONAL_BEHAVIOUR)
}


@dataclass(frozen=True)
class Scores:
    """Evaluations of one label. values[score]: float [seeds, problems], weighted fractions (see `Evaluation`)."""

    seeds: tuple[int, ...]
    values: dict[str, np.ndarray]

    def of_seeds(self, seeds: Collection[int]) -> "Scores":
        """The rows of these seeds, which must be there, in ascending order."""
        chosen = sorted(seeds)
        rows = [self.seeds.index(seed) for seed in chosen]
        return Scores(tuple(chosen), {name: values[rows] for name, values in self.values.items()})

    def difference(self, other: "Scores", metric: str, bootstrap_seed: int) -> PairedDifference | None:
        """self - other in percentage points over the seeds that both have; None if they share none."""
        common = set(self.seeds) & set(other.seeds)
        if not common:
            return None
        a, b = (100 * s.of_seeds(common).values[metric] for s in (self, other))
        return paired_difference_interval(a, b, seed=bootstrap_seed)


def scores_of(group: Sequence[RunResult], evaluations: dict[str, Evaluation]) -> Scores:
    """Scores of the runs of one label, a row per seed."""
    counts = np.stack([evaluations[run.run_id].correct for run in group])
    k, weight = evaluations[group[0].run_id].k, evaluations[group[0].run_id].weight
    values = {
        "avg": np.arange(k + 1) / k,
        "pass": np.array([pass_at_k(k, correct, k) for correct in range(k + 1)]),
        "best": best_at_k(range(k + 1), k, k),
    }
    return Scores(tuple(run.seed for run in group), {name: weight * value[counts] for name, value in values.items()})


def compared_alike(runs: Sequence[RunResult], evaluations: dict[str, Evaluation]) -> Evaluation:
    """Any evaluation of the runs, which must agree in problems, k and scoring.

    Raises:
        UserError: the runs of the task were evaluated on different problems, or scored in different ways.
    """
    ways = {}
    for run in runs:
        e = evaluations[run.run_id]
        ways[(e.problems, len(e.correct), e.k, e.scored_by)] = run
    if len(ways) > 1:
        listed = "; ".join(
            f"{run.path}: {n} problems ({problems[:8]}), k={k}, {scored_by}"
            for (problems, n, k, scored_by), run in ways.items()
        )
        raise UserError(f"the runs were not evaluated alike ({listed}); evaluate them again")
    return evaluations[runs[0].run_id]


def score_columns(scores: Scores, bootstrap_seed: int) -> dict[str, Any]:
    """Per score the mean, its standard deviation over seeds and its interval over problems."""
    row: dict[str, Any] = {}
    for name in SCORES:
        percent = 100 * scores.values[name]
        low, high = bootstrap_interval(percent.mean(axis=0), seed=bootstrap_seed)
        row |= mean_sd(f"ours_{name}_percent", percent.mean(axis=1))
        row |= {f"ours_{name}_percent_low": low, f"ours_{name}_percent_high": high}
    return row | {
        "n_seeds": len(scores.seeds),
        "n_problems": scores.values["avg"].shape[1],
        "seeds": " ".join(map(str, scores.seeds)),
    }


def behaviour_columns(records: Sequence[dict[str, float]]) -> dict[str, float]:
    """How the agent acted, a record per seed; shares become percentages."""
    row: dict[str, float] = {}
    for name, column in BEHAVIOUR_COLUMNS.items():
        factor = 100 if name in SHARES else 1
        row |= mean_sd(column, np.array([factor * record[name] for record in records if name in record]))
    return row


def mean_sd(name: str, values: np.ndarray) -> dict[str, float]:
    """Mean over seeds and standard deviation over seeds (n - 1); NaN where there are too few."""
    return {
        name: float(values.mean()) if len(values) else np.nan,
        f"{name}_sd": float(values.std(ddof=1)) if len(values) > 1 else np.nan,
    }
