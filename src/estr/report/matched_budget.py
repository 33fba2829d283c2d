"""Table 7 (v2: Table 3): the rules at one budget of masked tokens, calibrated on a shared batch and left alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from estr.errors import UserError
from estr.report.calibrations import MatchedBudget, check_thresholds, read_calibrations
from estr.report.labels import KEEP_ALL_METHODS, display, matched, split_label
from estr.report.paper import PaperValues, load_paper_values
from estr.report.run_rows import RUN_COLUMNS, groups_of, names_of_difference, ordering_columns, run_row
from estr.report.run_views import (
    NOT_REPORTED,
    PAIRED_NOTE,
    avg_at_k,
    difference_cell,
    ours_note,
    runs_cell,
    seeds_cell,
    stable_cell,
    stable_note,
)
from estr.report.runs import FIRST_STEPS, RunResult, by_task, load_runs
from estr.report.sources import run_folders
from estr.report.verdicts import ORDERING_LEGEND, claim
from estr.report.views import EMPTY, View, number, plain, plus_minus, spread, write_table

LABELS = (*KEEP_ALL_METHODS, matched("icepop"), matched("kpop"), matched("m2po"), "estr")
ARTIFACTS = {"v1": "table7_matched_budget", "v2": "table3_matched_budget"}
PAPER_METRICS = {
    "masked_fraction@step0": "masked_calibration_percent",
    "masked_fraction_mean": "masked_mean_percent",
    "masked_fraction_mean_above": "masked_mean_above_percent",
    "masked_entropy_first50": "masked_entropy_nats",
    "accuracy": "accuracy_percent",
    "accuracy_below": "accuracy_below_percent",
    "stable": "stable",
}
"""Metrics of reported.csv and their columns; a bound that v2's prose gives is a metric of its own."""

PAPER_NOTE = (
    "Paper: multi-turn GSM8K, one seed. Its versions contradict each other on KPop: v1 has it hold the budget, v2 has "
    "both magnitude rules drift above 17 %. v2's own table is lost, its numbers are from prose. "
)
CALIBRATION = ("budget_percent", "calibration_tokens", "calibration_steps", "calibration_runs")
COLUMNS = [
    *("scale", "task", "label", "method"),
    *(f"paper_{version}_{column}" for version in ARTIFACTS for column in PAPER_METRICS.values()),
    *("calibrated_masked_percent", "drift_ratio", *RUN_COLUMNS),
    *(*names_of_difference("avg_minus_estr"), "verdict", *CALIBRATION),
]


def table7_matched_budget(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table from the runs of the matched budget and the calibration file of their task."""
    frame = matched_budget_frame(load_runs(run_folders(folders)), calibrations, load_paper_values())
    write_table(frame, matched_budget_views(frame), out_stem)


def matched_budget_frame(
    runs: Sequence[RunResult], calibrations: Sequence[Path], paper: PaperValues, bootstrap_seed: int = 0
) -> pd.DataFrame:
    """A row per task and rule at the matched budget; sync and async stand beside them as references.

    Runs at published thresholds have no row, but for ESTR, whose budget the others are given. `drift_ratio` is the
    masked fraction over training divided by that of the shared batch.

    Raises:
        UserError: no run of the matched budget, evaluations that differ, or thresholds other than the calibrated ones.
    """
    chosen = by_task([run for run in runs if run.label in LABELS])
    chosen = {task: group for task, group in chosen.items() if any(run.label not in KEEP_ALL_METHODS for run in group)}
    if not chosen:
        raise UserError("the matched budget needs runs of estr and of baselines with the override thresholds=matched")
    budgets = read_calibrations(calibrations, list(chosen))
    rows = [
        row
        for task, group in chosen.items()
        for row in _task_rows(task, group, budgets.get(task), paper, bootstrap_seed)
    ]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def _task_rows(
    task: str, runs: Sequence[RunResult], budget: MatchedBudget | None, paper: PaperValues, bootstrap_seed: int
) -> list[dict[str, Any]]:
    check_thresholds(runs, budget)
    groups = groups_of(runs, lambda run: run.label)
    achieved = budget.achieved_percent if budget else {}
    papers = {label: _paper_columns(task, label, paper) for label in LABELS}
    rows = []
    for label in LABELS:
        row: dict[str, Any] = {"scale": runs[0].scale, "task": task, "label": label, "method": split_label(label)[0]}
        row |= papers[label] | _calibration_columns(budget)
        if label in groups:
            row |= run_row(groups[label], bootstrap_seed)
        if label in achieved:
            row["calibrated_masked_percent"] = achieved[label]
            if label in groups and achieved[label] > 0:
                row["drift_ratio"] = row["masked_fraction_mean_percent"] / achieved[label]
        if label != "estr":
            ours = None
            if label in groups and "estr" in groups:
                ours = groups[label].scores.difference(groups["estr"].scores, "avg", bootstrap_seed)
            row |= ordering_columns("avg_minus_estr", _accuracy_difference(papers[label], papers["estr"]), ours)
        row["verdict"] = claim(row, "estr", "avg")
        rows.append(row)
    return rows


def _paper_columns(task: str, label: str, paper: PaperValues) -> dict[str, float]:
    """What each version says of the rule; sync and async stand in neither table."""
    if label in KEEP_ALL_METHODS:
        return {}
    method = split_label(label)[0]
    found = {
        f"paper_{version}_{column}": paper.get(artifact, task, method, metric)
        for version, artifact in ARTIFACTS.items()
        for metric, column in PAPER_METRICS.items()
    }
    return {column: value.value for column, value in found.items() if value}


def _accuracy_difference(rule: dict[str, float], estr: dict[str, float]) -> float | None:
    """Between values of one version; v1 is asked first, M2PO is in v2 only."""
    for version in ARTIFACTS:
        column = f"paper_{version}_accuracy_percent"
        if column in rule and column in estr:
            return rule[column] - estr[column]
    return None


def _calibration_columns(budget: MatchedBudget | None) -> dict[str, Any]:
    if budget is None:
        return {}
    first, last = budget.steps
    values = (100 * budget.budget, budget.tokens, f"{first} to {last}", " ".join(budget.source_runs))
    return dict(zip(CALIBRATION, values, strict=True))


def matched_budget_views(frame: pd.DataFrame) -> list[View]:
    """Paper beside ours; per task the differences with their runs, and the calibration."""
    views = []
    for _, rows in frame.groupby("task", sort=False):
        views += [_overview(rows), _differences(rows)]
        if rows["budget_percent"].notna().any():
            views.append(_calibration(rows))
    return views


def _overview(rows: pd.DataFrame) -> View:
    headers = (
        "Rule",
        "Paper: masked (%), calibration → training",
        "Ours: masked (%), calibration → training",
        "Ours: drift",
        "Paper: entropy of masked (nats)",
        "Ours: entropy of masked (nats)",
        "Paper: accuracy (%)",
        f"Ours: {avg_at_k(rows)} (%)",
        "Paper: stable",
        "Ours: stable",
        "Seeds",
        "Verdict",
    )
    cells = [
        (
            display(row["label"]),
            _paper_cell(row, _paper_masked),
            _arrow(
                number(row["calibrated_masked_percent"], ".3g"), plus_minus(row, "masked_fraction_mean_percent", ".3g")
            ),
            EMPTY if pd.isna(row["drift_ratio"]) else f"{row['drift_ratio']:.3g} x",
            _paper_cell(row, lambda row, version: number(row[f"paper_{version}_masked_entropy_nats"], ".2f")),
            plus_minus(row, "masked_entropy_first50_nats", ".2f"),
            _paper_cell(row, _paper_accuracy),
            spread(row, "ours_avg_percent"),
            _paper_cell(row, _paper_stable),
            stable_cell(row),
            seeds_cell(row),
            plain(row["verdict"]),
        )
        for _, row in rows.iterrows()
    ]
    note = (
        "Masked: percentage of response tokens on the calibration batch → mean over training; drift: their ratio. "
        f"Entropy: mean over the masked tokens of the first {FIRST_STEPS} steps. {PAPER_NOTE}{_calibrated_on(rows)}"
        f"{ours_note(rows)}{stable_note(rows)}Verdict: the paper's order of accuracies. {ORDERING_LEGEND}"
    )
    return View("Table 7 (v2: Table 3): matched budget", note, headers, tuple(cells))


def _arrow(start: str, mean: str) -> str:
    return mean if start == EMPTY else f"{start} → {mean}"


def _paper_cell(row: pd.Series, text: Callable[[pd.Series, str], str]) -> str:
    """``v1: a; v2: b`` for the versions that have the rule; M2PO is v2's, sync and async are in neither table."""
    if row["method"] in KEEP_ALL_METHODS:
        return EMPTY
    versions = [version for version in ARTIFACTS if pd.notna(row[f"paper_{version}_masked_calibration_percent"])]
    cells = {version: text(row, version) for version in versions}
    return "; ".join(f"{v}: {NOT_REPORTED if cell == EMPTY else cell}" for v, cell in cells.items()) or EMPTY


def _paper_masked(row: pd.Series, version: str) -> str:
    start = number(row[f"paper_{version}_masked_calibration_percent"], ".2f")
    mean = number(row[f"paper_{version}_masked_mean_percent"], ".2f")
    above = row[f"paper_{version}_masked_mean_above_percent"]
    if mean == EMPTY:
        mean = NOT_REPORTED if pd.isna(above) else f"above {above:g}"
    return _arrow(start, mean)


def _paper_accuracy(row: pd.Series, version: str) -> str:
    below = row[f"paper_{version}_accuracy_below_percent"]
    return number(row[f"paper_{version}_accuracy_percent"], ".1f") if pd.isna(below) else f"below {below:g}"


def _paper_stable(row: pd.Series, version: str) -> str:
    value = row[f"paper_{version}_stable"]
    return EMPTY if pd.isna(value) else ("yes" if value else "no")


def _calibrated_on(rows: pd.DataFrame) -> str:
    paper = "The paper calibrates on one step-0 rollout batch; "
    if rows["budget_percent"].isna().all():
        return ""
    steps, tokens, source = (
        rows[name].iloc[0] for name in ("calibration_steps", "calibration_tokens", "calibration_runs")
    )
    return f"{paper}ours on the {tokens:.0f} tokens of updates {steps} of {source}. "


def _differences(rows: pd.DataFrame) -> View:
    headers = (
        *("Rule", "Paper - ESTR", "Ours - ESTR", "Verdict", f"Masked, first {FIRST_STEPS} steps (%)"),
        *("Reward, last quarter (0 to 1)", "Thresholds", "Runs"),
    )
    cells = tuple(
        (
            display(row["label"]),
            number(row["paper_avg_minus_estr"], "+.1f"),
            difference_cell(row, "avg_minus_estr"),
            plain(row["avg_vs_estr_verdict"]),
            plus_minus(row, "masked_fraction_first50_percent", ".3g"),
            plus_minus(row, "reward_last_quarter", ".3f"),
            plain(row["thresholds"]),
            runs_cell(row),
        )
        for _, row in rows.iterrows()
    )
    note = f"{PAIRED_NOTE}Paper: v1, for M2PO v2. Sync and async are references; the paper's table has neither."
    return View("Matched budget: differences, reward and runs", note, headers, cells)


def _calibration(rows: pd.DataFrame) -> View:
    thresholds = rows[rows["calibrated_masked_percent"].notna()]
    cells = tuple(
        (display(row["label"]), plain(row["thresholds"]), number(row["calibrated_masked_percent"], ".4g"))
        for _, row in thresholds.iterrows()
    )
    note = (
        f"Budget: the {rows['budget_percent'].iloc[0]:.4g} % of response tokens that ESTR masks at its published "
        f"threshold. {_calibrated_on(rows)}Each baseline's threshold is moved until it masks as many tokens there, not "
        "more, and stays as it is in training. A rule with two bounds keeps their shape."
    )
    headers = ("Rule", "Thresholds of the runs", "Masked on the calibration batch (%)")
    return View("Matched budget: calibration", note, headers, cells)
