"""The numbers of Figure 9 (v2: Figures 5d, 5e): ESTR under each source of staleness alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.report.labels import task_name
from estr.report.run_rows import RUN_COLUMNS, Group, final_reward, groups_of, overridden, run_row
from estr.report.run_views import avg_at_k, ours_note, runs_cell, seeds_cell, stable_cell, stable_note
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.scores import mean_sd
from estr.report.sources import run_folders
from estr.report.views import View, number, plus_minus, spread, write_table

SOURCES = ("intra", "inter")
REFERENCE = "sync"
MINIMUM = 1  # versions: where the paper holds the other source
TRENDS = ("reward_kendall_tau", "reward_slope_per_version")
COLUMNS = [
    *("scale", "task", "sweep", "asked_intra", "asked_inter"),
    *(f"measured_{source}{suffix}" for source in SOURCES for suffix in ("", "_sd")),
    *RUN_COLUMNS,
    *(f"{trend}{suffix}" for trend in TRENDS for suffix in ("", "_low", "_high")),
]


def staleness_sweep(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table from ESTR's runs at several stalenesses and sync's; it has no use for a calibration."""
    frame = staleness_frame(load_runs(run_folders(folders)))
    write_table(frame, staleness_views(frame), out_stem)


def staleness_frame(runs: Sequence[RunResult], bootstrap_seed: int = 0) -> pd.DataFrame:
    """A row per task, sweep and setting, after sync's; where both sources are at their minimum both sweeps have a row.

    asked_*: what the run was told (versions); measured_*: mean over the last half of its steps of what the tokens'
    versions say. On every row of a sweep, of final rewards against the staleness that was asked for: Kendall's tau,
    and the slope of the least-squares line (reward per version), each for the means over seeds, with the lowest and
    highest of single seeds as `_low` and `_high`. Other runs have no row.

    Raises:
        UserError: no run of ESTR with a source of staleness at 1, evaluations that differ, or a lacking column.
    """
    chosen = {task: _chosen(group) for task, group in by_task(runs).items()}
    chosen = {task: group for task, group in chosen.items() if any(run.method == "estr" for run in group)}
    if not chosen:
        raise UserError("the staleness sweep needs runs of estr with intra or inter at 1")
    rows = [row for task, group in chosen.items() for row in _task_rows(task, group, bootstrap_seed)]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def _chosen(runs: Sequence[RunResult]) -> list[RunResult]:
    """Sync, and ESTR where nothing but the staleness is changed and one source is at its minimum."""
    return [
        run
        for run in runs
        if run.label == REFERENCE
        or (run.method == "estr" and overridden(run) <= set(SOURCES) and MINIMUM in _asked(run))
    ]


def _asked(run: RunResult) -> tuple[int, int]:
    intra, inter = (int(run.config["staleness"][source]) for source in SOURCES)
    return intra, inter


def _task_rows(task: str, runs: Sequence[RunResult], bootstrap_seed: int) -> list[dict[str, Any]]:
    groups = groups_of(runs, lambda run: (run.method, *_asked(run)))
    rows = []
    for (method, *asked), group in groups.items():
        row = run_row(group, bootstrap_seed) | _measured(group)
        row |= {f"asked_{source}": versions for source, versions in zip(SOURCES, asked, strict=True)}
        if method == REFERENCE:
            rows.append(row | {"sweep": REFERENCE})
        for index, source in enumerate(SOURCES):
            if method != REFERENCE and asked[1 - index] == MINIMUM:
                rows.append(row | {"sweep": source})
    order = (REFERENCE, *SOURCES)
    rows.sort(key=lambda row: (order.index(row["sweep"]), row["asked_intra"], row["asked_inter"]))
    for index, source in enumerate(SOURCES):
        sweep = {
            (intra, inter)[index]: group
            for (method, intra, inter), group in groups.items()
            if method != REFERENCE and (intra, inter)[1 - index] == MINIMUM
        }
        trend = _trend(sweep)
        for row in rows:
            if row["sweep"] == source:
                row.update(trend)
    return rows


def _measured(group: Group) -> dict[str, float]:
    row: dict[str, float] = {}
    for source in SOURCES:
        column = f"staleness_{source}"
        values = []
        for run in group.runs:
            if column not in run.metrics:
                raise UserError(f"{run.path / 'metrics.parquet'}: lacks the column {column}")
            values.append(run.metrics.loc[run.metrics["step"] > run.steps / 2, column].mean())
        row |= mean_sd(f"measured_{source}", np.array(values))
    return row


def _trend(sweep: Mapping[int, Group]) -> dict[str, float]:
    """Of mean final rewards and, as `_low` and `_high`, of the seeds that stand at every setting."""
    rewards = {asked: {run.seed: final_reward(run) for run in group.runs} for asked, group in sweep.items()}
    asked = sorted(rewards)
    if len(asked) < 2:
        return {}
    common = set.intersection(*(set(by_seed) for by_seed in rewards.values()))
    means = [float(np.mean(list(rewards[a].values()))) for a in asked]
    measures: dict[str, Callable[..., float]] = dict(zip(TRENDS, (kendall_tau, slope), strict=True))
    row: dict[str, float] = {}
    for name, measure in measures.items():
        row[name] = measure(asked, means)
        seeds = [measure(asked, [rewards[a][seed] for a in asked]) for seed in sorted(common)]
        if len(seeds) > 1:
            row |= {f"{name}_low": min(seeds), f"{name}_high": max(seeds)}
    return row


def kendall_tau(x: Sequence[float], y: Sequence[float]) -> float:
    """Kendall's tau-b of two equally long sequences; NaN if one of them is constant."""
    signs = [np.sign(np.subtract.outer(values, values)) for values in (np.asarray(x, float), np.asarray(y, float))]
    pairs = np.sqrt(np.prod([np.abs(sign).sum() for sign in signs]))
    return float((signs[0] * signs[1]).sum() / pairs) if pairs > 0 else float("nan")


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the least-squares line."""
    return float(np.polyfit(x, y, 1)[0])


def staleness_views(frame: pd.DataFrame) -> list[View]:
    """Per task one table per sweep, each below sync; the runs."""
    views = []
    for _, rows in frame.groupby("task", sort=False):
        sweeps = [source for source in SOURCES if (rows["sweep"] == source).any()]
        views += [*(_sweep(rows, source) for source in sweeps), _runs(rows)]
    return views


def _sweep(rows: pd.DataFrame, source: str) -> View:
    other = SOURCES[1 - SOURCES.index(source)]
    shown = rows[rows["sweep"].isin([REFERENCE, source])]
    headers = (
        f"{source.capitalize()}, asked",
        f"{source.capitalize()}, measured",
        f"{other.capitalize()}, measured",
        "Reward, last quarter (0 to 1)",
        f"Ours {avg_at_k(rows)} (%)",
        "Masked, training (%)",
        "Stable",
        "Seeds",
    )
    cells = tuple(
        (
            "sync" if row["sweep"] == REFERENCE else number(row[f"asked_{source}"], ".0f"),
            plus_minus(row, f"measured_{source}", ".2f"),
            plus_minus(row, f"measured_{other}", ".2f"),
            plus_minus(row, "reward_last_quarter", ".3f"),
            spread(row, "ours_avg_percent"),
            plus_minus(row, "masked_fraction_mean_percent", ".3g"),
            stable_cell(row),
            seeds_cell(row),
        )
        for _, row in shown.iterrows()
    )
    trend = shown[shown["sweep"] == source].iloc[0]
    note = (
        f"{source.capitalize()}-trajectory staleness with {other} at {MINIMUM}, in weight versions: what was asked "
        "for, and what the tokens' versions say over the last half of training. The paper draws curves and gives no "
        "numbers: no collapse, and a reward that falls monotonically with either source, more slowly with intra (v2). "
    )
    if pd.notna(trend[TRENDS[0]]):
        note += (
            f"Kendall's tau of our final reward against {source} staleness: {_with_seeds(trend, TRENDS[0], '+.2f')}; "
            f"slope of its least-squares line: {_with_seeds(trend, TRENDS[1], '+.4f')} per version. "
        )
    title = f"Figure 9 in numbers: {source}-trajectory staleness, {task_name(rows['task'].iloc[0])}"
    return View(title, f"{note}{ours_note(shown)}{stable_note(shown)}".strip(), headers, cells)


def _with_seeds(row: pd.Series, name: str, spec: str) -> str:
    text = number(row[name], spec)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return text if pd.isna(low) else f"{text} (single seeds {low:{spec}} to {high:{spec}})"


def _runs(rows: pd.DataFrame) -> View:
    single = rows.drop_duplicates("run_ids")
    cells = tuple((f"{r['asked_intra']:.0f}", f"{r['asked_inter']:.0f}", runs_cell(r)) for _, r in single.iterrows())
    title = f"Staleness sweep: runs, {task_name(rows['task'].iloc[0])}"
    return View(title, "", ("Intra, asked", "Inter, asked", "Runs"), cells)
