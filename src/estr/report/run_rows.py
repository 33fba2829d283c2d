"""One row of numbers per setting of a task, shared by the tables that are made from training runs.

Accuracies, masked fractions and their differences are percentages or percentage points, entropies nats, rewards 0..1.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from estr.algorithm import Collapse, detect_collapse
from estr.errors import UserError
from estr.evaluation.paired import PairedDifference
from estr.report.evaluations import SCORES, Evaluation
from estr.report.labels import split_label
from estr.report.runs import FIRST_STEPS, RunResult
from estr.report.scores import Scores, compared_alike, mean_sd, score_columns, scores_of
from estr.report.verdicts import ordering_verdict

TRAINING = (
    "masked_fraction_first50_percent",
    "masked_fraction_mean_percent",
    "masked_entropy_first50_nats",
    "reward_last_quarter",
)
RUN_COLUMNS = [
    *("k", "scored_by", "engine", "thresholds"),
    *(f"ours_{score}_percent{suffix}" for score in SCORES for suffix in ("", "_sd", "_low", "_high")),
    *("n_seeds", "seeds", "n_problems", "missing"),
    *(f"{name}{suffix}" for name in TRAINING for suffix in ("", "_sd")),
    *("n_stable", "collapses", "run_ids", "commits", "config_hashes"),
]
"""The columns of `run_row`, in order; the tables put `scale` and `task` first."""

Setting = TypeVar("Setting", bound=Hashable)


@dataclass(frozen=True)
class Group:
    """Evaluated runs of one setting on one task, a run per seed."""

    runs: tuple[RunResult, ...]
    evaluations: tuple[Evaluation, ...]
    scores: Scores


def groups_of(runs: Sequence[RunResult], setting: Callable[[RunResult], Setting]) -> dict[Setting, Group]:
    """The runs of one task by setting, in the order of their first run.

    Raises:
        UserError: an evaluation is missing or malformed, or two differ in problems or scoring.
    """
    evaluations = {run.run_id: run.read_evaluation() for run in runs}
    compared_alike(runs, evaluations)
    members: dict[Setting, list[RunResult]] = {}
    for run in runs:
        members.setdefault(setting(run), []).append(run)
    return {
        key: Group(tuple(group), tuple(evaluations[run.run_id] for run in group), scores_of(group, evaluations))
        for key, group in members.items()
    }


def overridden(run: RunResult) -> set[str]:
    """The settings in which the run differs from its method's default on its task."""
    return {override.partition("=")[0] for override in split_label(run.label)[1]}


def run_row(group: Group, bootstrap_seed: int) -> dict[str, Any]:
    """`scale`, `task` and `RUN_COLUMNS`: means, standard deviations over seeds, intervals over problems."""
    run, evaluation = group.runs[0], group.evaluations[0]
    return {
        "scale": run.scale,
        "task": run.task,
        "k": evaluation.k,
        "scored_by": evaluation.scored_by,
        "engine": evaluation.engine,
        **score_columns(group.scores, bootstrap_seed),
        "missing": sum(evaluation.missing for evaluation in group.evaluations),
        **training_columns(group.runs),
        **stability_columns(group.runs),
    }


def training_columns(group: Sequence[RunResult]) -> dict[str, Any]:
    """Means over seeds; per run, the entropy is a mean over masked tokens, the others are over steps."""
    per_run: dict[str, list[float]] = {name: [] for name in TRAINING}
    for run in group:
        first = run.metrics.head(FIRST_STEPS)
        entropy = first["masked_entropy"].dropna()
        masked = (first["masked_fraction"] * first["response_tokens"])[entropy.index]
        total = masked.sum()
        per_run["masked_fraction_first50_percent"].append(100 * first["masked_fraction"].mean())
        per_run["masked_fraction_mean_percent"].append(100 * run.metrics["masked_fraction"].mean())
        per_run["masked_entropy_first50_nats"].append((masked * entropy).sum() / total if total > 0 else np.nan)
        per_run["reward_last_quarter"].append(final_reward(run))
    row: dict[str, Any] = {"thresholds": "; ".join(dict.fromkeys(run.thresholds for run in group))}
    for name, values in per_run.items():
        row |= mean_sd(name, np.array([value for value in values if np.isfinite(value)]))
    return row | {
        "run_ids": " ".join(run.run_id for run in group),
        "commits": " ".join(dict.fromkeys(run.commit for run in group)),
        "config_hashes": " ".join(dict.fromkeys(run.config_hash for run in group)),
    }


def final_reward(run: RunResult) -> float:
    """Mean training reward (0..1) over the last quarter of the steps."""
    return float(run.metrics.loc[run.metrics["step"] > 0.75 * run.steps, "reward"].mean())


def stability_columns(group: Sequence[RunResult]) -> dict[str, Any]:
    """How many runs did not collapse (`detect_collapse`), and where the others did."""
    found = {run.seed: _collapse(run) for run in group}
    fallen = {seed: collapse for seed, collapse in found.items() if collapse is not None}
    return {
        "n_stable": len(found) - len(fallen),
        "collapses": "; ".join(f"seed {seed} at step {collapse.step}" for seed, collapse in fallen.items()),
    }


def _collapse(run: RunResult) -> Collapse | None:
    try:
        return detect_collapse(run.metrics["reward"].tolist())
    except ValueError as error:
        raise UserError(f"{run.path / 'metrics.parquet'}: column reward: {error}") from error


def difference_columns(name: str, paper: float | None, ours: PairedDifference | None) -> dict[str, Any]:
    """Columns of a difference called `name`, e.g. ``avg_minus_async``: ours with its interval, the paper's."""
    columns: dict[str, Any] = {}
    if ours is not None:
        columns |= {name: ours.mean, f"{name}_low": ours.low, f"{name}_high": ours.high}
    return columns if paper is None else columns | {f"paper_{name}": paper}


def ordering_columns(name: str, paper: float | None, ours: PairedDifference | None) -> dict[str, Any]:
    """`difference_columns`, and with a paper's difference the verdict on its sign (``avg_vs_async_verdict``)."""
    columns = difference_columns(name, paper, ours)
    return columns if paper is None else columns | {verdict_column(name): ordering_verdict(paper, ours)}


def verdict_column(name: str) -> str:
    return f"{name.replace('minus', 'vs')}_verdict"


def names_of_difference(name: str) -> tuple[str, ...]:
    """All columns of a difference, in order."""
    return f"paper_{name}", name, f"{name}_low", f"{name}_high", verdict_column(name)


def range_of_avg(scores: Mapping[Any, Scores], bootstrap_seed: int) -> PairedDifference | None:
    """Best minus worst avg@k of several settings in percentage points, over the seeds that all have.

    The interval is that of the paired difference of these two settings; since they were picked for lying furthest
    apart, the range is biased upwards. None for fewer than two settings or no common seed.
    """
    common = set.intersection(*(set(s.seeds) for s in scores.values())) if len(scores) > 1 else set()
    if not common:
        return None
    means = {
        key: np.mean([s.values["avg"][s.seeds.index(seed)].mean() for seed in common]) for key, s in scores.items()
    }
    best, worst = (scores[pick(means, key=lambda key: means[key])].of_seeds(common) for pick in (max, min))
    return best.difference(worst, "avg", bootstrap_seed)
