"""v2 Table 2: what preserving exploration and suppressing outliers add to a fixed threshold; both together are ESTR."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from estr.errors import UserError
from estr.report.labels import COMPONENTS, display, task_name
from estr.report.paper import PaperValues, load_paper_values
from estr.report.run_rows import RUN_COLUMNS, groups_of, names_of_difference, ordering_columns, run_row
from estr.report.run_views import (
    PAIRED_NOTE,
    avg_at_k,
    difference_cell,
    ours_note,
    runs_cell,
    seeds_cell,
    stable_cell,
    stable_note,
)
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.sources import run_folders
from estr.report.verdicts import ORDERING_LEGEND, claim
from estr.report.views import View, number, plain, plus_minus, spread, write_table

ARTIFACT, PAPER_METRIC = "table2_ablation", "avg@1"
FIXED = "fixed_magnitude"
PAPER_NAMES = dict(
    zip((*COMPONENTS, "estr"), (FIXED, "exploration_preservation", "outlier_suppression", "estr"), strict=True)
)
"""Our methods, in the order of the table, and their names in reported.csv."""

REFERENCES = (FIXED, "estr")
COLUMNS = [
    *("scale", "task", "label", "method", "paper_avg_percent", "paper_avg_basis", *RUN_COLUMNS),
    *(column for reference in REFERENCES for column in names_of_difference(f"avg_minus_{reference}")),
    "verdict",
]


def v2_table2_components(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table from the runs of the component ablation; it has no use for a calibration."""
    frame = components_frame(load_runs(run_folders(folders)), load_paper_values())
    write_table(frame, components_views(frame), out_stem)


def components_frame(runs: Sequence[RunResult], paper: PaperValues, bootstrap_seed: int = 0) -> pd.DataFrame:
    """A row per task and arm; a pair of arms is compared in one row only. Runs of other methods have no row.

    Raises:
        UserError: no run of an arm, or evaluations that differ.
    """
    chosen = by_task([run for run in runs if run.label in PAPER_NAMES])
    if not chosen:
        raise UserError(f"the component ablation needs runs of {', '.join(PAPER_NAMES)}")
    rows = [row for task, group in chosen.items() for row in _task_rows(task, group, paper, bootstrap_seed)]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def _task_rows(task: str, runs: Sequence[RunResult], paper: PaperValues, bootstrap_seed: int) -> list[dict[str, Any]]:
    groups = groups_of(runs, lambda run: run.label)
    papers = {label: paper.get(ARTIFACT, task, name, PAPER_METRIC) for label, name in PAPER_NAMES.items()}
    rows = []
    for label, value in papers.items():
        row: dict[str, Any] = {"scale": runs[0].scale, "task": task, "label": label, "method": label}
        if value:
            row |= {"paper_avg_percent": value.value, "paper_avg_basis": value.provenance}
        if label in groups:
            row |= run_row(groups[label], bootstrap_seed)
        references = _references(label)
        for reference in references:
            ours, base = None, papers[reference]
            if label in groups and reference in groups:
                ours = groups[label].scores.difference(groups[reference].scores, "avg", bootstrap_seed)
            difference = value.value - base.value if value and base else None
            row |= ordering_columns(f"avg_minus_{reference}", difference, ours)
        row["verdict"] = "; ".join(filter(None, (claim(row, reference, "avg") for reference in references)))
        rows.append(row)
    return rows


def _references(label: str) -> tuple[str, ...]:
    return {FIXED: (), "estr": (FIXED,)}.get(label, REFERENCES)


def components_views(frame: pd.DataFrame) -> list[View]:
    """Paper beside ours; the differences with their runs."""
    return [view for _, rows in frame.groupby("task", sort=False) for view in (_overview(rows), _differences(rows))]


def _title(rows: pd.DataFrame, text: str) -> str:
    return f"Table 2 of v2: {text}, {task_name(rows['task'].iloc[0])}"


def _overview(rows: pd.DataFrame) -> View:
    headers = (
        *(
            "Rule",
            "Paper avg@1 (%)",
            f"Ours {avg_at_k(rows)} (%)",
            "Reward, last quarter (0 to 1)",
            "Masked, training (%)",
        ),
        *("Entropy of masked (nats)", "Stable", "Seeds", "Verdict"),
    )
    cells = tuple(
        (
            _name(row["label"]),
            number(row["paper_avg_percent"], ".2f"),
            spread(row, "ours_avg_percent"),
            plus_minus(row, "reward_last_quarter", ".3f"),
            plus_minus(row, "masked_fraction_mean_percent", ".3g"),
            plus_minus(row, "masked_entropy_first50_nats", ".2f"),
            stable_cell(row),
            seeds_cell(row),
            plain(row["verdict"]),
        )
        for _, row in rows.iterrows()
    )
    note = (
        "Exploration preservation keeps what the fixed threshold or ESTR keeps, outlier suppression what both keep. "
        "Paper: v2's table is lost; its numbers are from prose. It does not state its fixed threshold; ours is "
        "|log ratio| <= c = ln 2, the ratio interval [0.5, 2]; the thresholds stand below. "
        f"{ours_note(rows)}{stable_note(rows)}Verdict: the paper's order. {ORDERING_LEGEND}"
    )
    return View(_title(rows, "components"), note, headers, cells)


def _differences(rows: pd.DataFrame) -> View:
    headers = ("Rule", "Paper - fixed", "Ours - fixed", "Paper - ESTR", "Ours - ESTR", "Thresholds", "Runs")
    cells = tuple(
        (
            _name(row["label"]),
            *(
                cell
                for reference in REFERENCES
                for cell in (
                    number(row[f"paper_avg_minus_{reference}"], "+.2f"),
                    difference_cell(row, f"avg_minus_{reference}"),
                )
            ),
            plain(row["thresholds"]),
            runs_cell(row),
        )
        for _, row in rows.iterrows()
    )
    return View(_title(rows, "differences and runs"), PAIRED_NOTE.strip(), headers, cells)


def _name(label: str) -> str:
    return f"{display(label)} (both)" if label == "estr" else display(label)
