"""Cells and notes that the tables of training runs have in common."""

import pandas as pd

from estr.algorithm.collapse import SHARE, WINDOW
from estr.report.labels import PAPER_SCALE, benchmarks
from estr.report.views import EMPTY, number, plain

NOT_REPORTED = "not reported"
"""Where the paper has a number that its sources lost, or gives none."""

PAIRED_NOTE = (
    "Differences in percentage points; ours are paired by seed and problem, with the bootstrap 95 % interval over both "
    "(over problems alone if there is one seed). "
)


def avg_at_k(rows: pd.DataFrame) -> str:
    """Name of our score, e.g. ``avg@4``."""
    known = rows["k"].dropna()
    return "avg@k" if known.empty else f"avg@{known.iloc[0]:.0f}"


def difference_cell(row: pd.Series, name: str) -> str:
    """``+1.2 [-0.3, +2.7]``, percentage points."""
    if pd.isna(row[name]):
        return EMPTY
    return f"{row[name]:+.1f} [{row[f'{name}_low']:+.1f}, {row[f'{name}_high']:+.1f}]"


def stable_cell(row: pd.Series) -> str:
    """``2 of 3``: the seeds that did not collapse."""
    return EMPTY if pd.isna(row["n_stable"]) else f"{row['n_stable']:.0f} of {row['n_seeds']:.0f}"


def runs_cell(row: pd.Series) -> str:
    """Run ids without scale and task, which the note names."""
    return compact_run_ids(row["run_ids"]).replace(f"{row['scale']}/{row['task']}/", "")


def seeds_cell(row: pd.Series) -> str:
    return number(row["n_seeds"], ".0f")


def compact_run_ids(run_ids: object) -> str:
    """``a/seed0 a/seed1`` -> ``a/seed{0,1}``."""
    if not isinstance(run_ids, str):
        return EMPTY
    seeds: dict[str, list[str]] = {}
    for run_id in run_ids.split():
        stem, _, seed = run_id.rpartition("seed")
        seeds.setdefault(stem, []).append(seed)
    return " ".join(f"{s}seed{n[0]}" if len(n) == 1 else f"{s}seed{{{','.join(n)}}}" for s, n in seeds.items())


def ours_note(frame: pd.DataFrame) -> str:
    """What our numbers are: benchmark, scale, engine, scoring, spread; one sentence on what cannot be compared."""
    ours = frame[frame["run_ids"].notna()]
    if ours.empty:
        return "No run of ours yet."
    scale = ours["scale"].iloc[0]
    tasks = list(dict.fromkeys(ours["task"]))
    engines, scorings = (", ".join(dict.fromkeys(ours[column])) for column in ("engine", "scored_by"))
    note = (
        f"Ours: {benchmarks(tasks, scale)} at {scale} scale, {engines} engine, scored by {scorings}; mean ± standard "
        "deviation over seeds [bootstrap 95 % interval over problems]. "
    )
    if scale != PAPER_SCALE:
        note += "Model and problems are not the paper's, so levels cannot agree and only orderings are compared. "
    return note + f"Run ids start with {' or '.join(f'{scale}/{task}/' for task in tasks)}. "


def stable_note(frame: pd.DataFrame) -> str:
    """What stable means, and where the runs that are not fell."""
    note = (
        f"Stable: seeds whose training reward did not collapse, that is whose last mean over {WINDOW} steps is at "
        f"least {SHARE:g} of the highest (the first step's included). "
    )
    fallen = frame[frame["collapses"].map(plain).ne(EMPTY)]
    if not fallen.empty:
        note += (
            "Collapsed: " + ", ".join(f"{runs_cell(row)} ({row['collapses']})" for _, row in fallen.iterrows()) + ". "
        )
    return note
