"""Table 1 as one data frame: the paper's numbers, ours, their spread, the paper's orderings tested on ours.

Per task one row for the policy before training and one per method and variant. Accuracies, their spreads and
differences are percentages or percentage points, as in the paper; masked fractions are percentages of
response tokens. Nothing is compared across tasks.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.evaluation.paired import PairedDifference
from estr.report.calibrations import MatchedBudget, check_thresholds, read_calibrations
from estr.report.evaluations import SCORES, Evaluation
from estr.report.labels import MATCHED, METHODS, is_matched, order, split_label
from estr.report.paper import TABLE1, PaperValues
from estr.report.run_rows import TRAINING, difference_columns, names_of_difference, training_columns, verdict_column
from estr.report.runs import RunResult, by_task
from estr.report.scores import (
    BEHAVIOUR_COLUMNS,
    behaviour_columns,
    compared_alike,
    mean_sd,
    score_columns,
    scores_of,
)
from estr.report.verdicts import REFERENCES, claim, references, verdict

WARM_START = "warm_start"
METRICS = ("avg", "pass")  # what the paper reports and verdicts are on
PAPER_MATCHED = {
    "masked_fraction_mean": "paper_masked_fraction_mean_percent",
    "masked_entropy_first50": "paper_masked_entropy_first50_nats",
}
COLUMNS = [
    *("scale", "task", "label", "method", "variant", "k", "thresholds"),
    *("rule", "rule_version", "judge", "engine"),
    *(f"paper_{metric}_{what}" for metric in METRICS for what in ("percent", "basis")),
    *(f"ours_{score}_percent{suffix}" for score in SCORES for suffix in ("", "_sd", "_low", "_high")),
    *("n_seeds", "seeds", "n_problems", "missing", "verdict"),
    *(
        column
        for metric in METRICS
        for reference in REFERENCES
        for column in names_of_difference(f"{metric}_minus_{reference}")
    ),
    *(f"{name}{suffix}" for name in TRAINING for suffix in ("", "_sd")),
    *("calibrated_masked_percent", *PAPER_MATCHED.values()),
    *(f"{name}{suffix}" for name in BEHAVIOUR_COLUMNS.values() for suffix in ("", "_sd")),
    *("run_ids", "commits", "config_hashes"),
]


def table1_frame(
    runs: Sequence[RunResult], calibrations: Sequence[Path], paper: PaperValues, bootstrap_seed: int
) -> pd.DataFrame:
    """Build the table from loaded runs of one scale, tasks in display order.

    calibrations: results/<scale>/calibration/<task>.json of every task with a matched-budget run.

    Raises:
        UserError: a label other than a method or its matched-budget variant, evaluations of one task that differ in
        problems or scoring, a calibration file of no task, or a matched-budget run whose thresholds are not those of
        its task's calibration file.
    """
    for run in runs:
        if split_label(run.label)[1] not in ((), (MATCHED,)):
            raise UserError(f"{run.path}: label '{run.label}' has no row in Table 1; leave the run out")
    tasks = by_task(runs)
    budgets = read_calibrations(calibrations, list(tasks))
    rows = [
        row for task, chosen in tasks.items() for row in _task_rows(chosen, budgets.get(task), paper, bootstrap_seed)
    ]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def _task_rows(
    runs: Sequence[RunResult], calibration: MatchedBudget | None, paper: PaperValues, bootstrap_seed: int
) -> list[dict[str, Any]]:
    task = runs[0].task
    evaluations = {run.run_id: run.read_evaluation() for run in runs}
    any_evaluation = compared_alike(runs, evaluations)
    check_thresholds(runs, calibration)
    achieved = calibration.achieved_percent if calibration else {}
    labels = sorted({*METHODS, *(run.label for run in runs)}, key=order)
    groups = {label: [run for run in runs if run.label == label] for label in labels}
    scores = {label: scores_of(group, evaluations) for label, group in groups.items() if group}
    papers = {label: _paper_columns(label, task, any_evaluation.k, paper) for label in labels}
    shared = {
        "scale": runs[0].scale,
        "task": task,
        "k": any_evaluation.k,
        "rule": any_evaluation.rule,
        "rule_version": any_evaluation.rule_version,
        "judge": any_evaluation.judge,
        "engine": ", ".join(sorted({e.engine for e in evaluations.values()})),
    }

    rows = [shared | _warm_start_row(list(evaluations.values()))]
    for label in labels:
        row: dict[str, Any] = shared | {"label": label, "method": split_label(label)[0], **papers[label]}
        row["variant"] = "matched" if is_matched(label) else "published"
        if label in scores:
            evaluated = [evaluations[run.run_id] for run in groups[label]]
            row |= score_columns(scores[label], bootstrap_seed) | training_columns(groups[label])
            row |= behaviour_columns([e.behaviour for e in evaluated])
            row["missing"] = sum(e.missing for e in evaluated)
        for reference, metric in product(references(label), METRICS):
            ours = None
            if label in scores and reference in scores:
                ours = scores[label].difference(scores[reference], metric, bootstrap_seed)
            row |= _difference_columns(label, reference, metric, papers, ours)
        row["verdict"] = "; ".join(filter(None, (claim(row, reference, "avg") for reference in references(label))))
        row["calibrated_masked_percent"] = achieved.get(label) if is_matched(label) else None
        rows.append(row)
    return rows


def _warm_start_row(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Runs that share a warm start carry equal values, so the distinct ones are its seeds."""
    distinct = sorted({(e.warm_start, tuple(sorted(e.warm_behaviour.items()))) for e in evaluations})
    row: dict[str, Any] = {"label": WARM_START, "method": WARM_START, "variant": "before training"}
    for index, score in enumerate(SCORES):
        values, low, high = 100 * np.array([warm_start[index] for warm_start, _ in distinct]).T
        row |= mean_sd(f"ours_{score}_percent", values)
        if len(distinct) == 1:
            row |= {f"ours_{score}_percent_low": low[0], f"ours_{score}_percent_high": high[0]}
    row |= behaviour_columns([dict(behaviour) for _, behaviour in distinct])
    return row | {"n_seeds": len(distinct), "n_problems": len(evaluations[0].correct)}


def _paper_columns(label: str, task: str, k: int, paper: PaperValues) -> dict[str, Any]:
    method = split_label(label)[0]
    row: dict[str, Any] = {}
    reported = TABLE1.get(task)
    if reported and not is_matched(label):
        names = {metric: reported.metric(metric, k) for metric in METRICS}
        values = {m: paper.get("table1", reported.benchmark, method, name) for m, name in names.items() if name}
        for metric, value in values.items():
            if value:
                row |= {f"paper_{metric}_percent": value.value, f"paper_{metric}_basis": value.provenance}
    if is_matched(label) or label == "estr":
        for artifact, (metric, column) in product(
            ("table7_matched_budget", "table3_matched_budget"), PAPER_MATCHED.items()
        ):
            value = paper.get(artifact, task, method, metric)
            if value:
                row[column] = value.value
    return row


def _difference_columns(
    label: str, reference: str, metric: str, papers: dict[str, dict[str, Any]], ours: PairedDifference | None
) -> dict[str, Any]:
    name = f"{metric}_minus_{reference}"
    value, base = (papers[key].get(f"paper_{metric}_percent") for key in (label, reference))
    if value is None or base is None:
        return difference_columns(name, None, ours)
    outcome = verdict(label, reference, metric, value - base, ours)
    return difference_columns(name, value - base, ours) | {verdict_column(name): outcome}
