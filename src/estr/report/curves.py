"""Curves over training steps and the panels they are drawn in, for all figures of training dynamics.

Lines are exponential moving averages (weight EMA_ALPHA on the new step) per seed, then the mean over seeds;
bands go from the lowest to the highest seed; faint behind them stands the unsmoothed mean over seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from estr.errors import UserError
from estr.report import style
from estr.report.labels import COMPONENTS, KEEP_ALL_METHODS, display, judged, order, split_label, task_name
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.sources import run_folders

EMA_ALPHA = 0.15
METRICS = {
    "entropy": "policy entropy (nats)",
    "grad_norm": "gradient norm",
    "kl_to_behavior": "KL to behavior policy (nats)",
    "log_perplexity": "log-perplexity (nats)",
    "masked_fraction": "masked fraction",
    "ratio_deviation": "ratio deviation |r - 1|",
    "response_length": "response length (tokens)",
    "reward": "training reward",
    "sequences_masked_fraction": "sequences with a masked token",
    "turns": "turns",
    "validation_accuracy": "validation accuracy",
}
"""Axis labels of the columns of metrics.parquet that are drawn."""
MASKING = ("masked_fraction", "sequences_masked_fraction")  # of methods with a keep rule only; axis in percent
SPIKY = ("grad_norm", "kl_to_behavior", "ratio_deviation")  # of any magnitude once a run gets unstable
SPIKE = 30.0  # times the median: what a linear axis would flatten everything else with
AS_MEASURED = ("validation_accuracy",)  # too few points to smooth
MARKERS_PER_LINE = 6
MAX_DECADES = 3
NARROW_TITLE, SINGLE_TITLE = 26, 36  # characters of a title over one of three panels in a row, and over a lone one

Shown = Callable[[Sequence[str]], list[str]]
"""Which of a task's labels a panel shows."""
EVERY: dict[str, Shown] = {"": list}


@dataclass(frozen=True)
class Panel:
    """One set of axes: curves of a metric of one task; nothing but a note without labels.

    title stands at the left, heading centered over a column.
    """

    task: str
    metric: str
    labels: tuple[str, ...]
    title: str = ""
    heading: str = ""


Grid = Sequence[Sequence[Panel | None]]
"""Rows of panels; None is the cell of the legend, which else stands on top."""


def published_runs(folders: Sequence[Path], task: str | None = None) -> list[RunResult]:
    """The runs without overrides of all methods but the arms of the component ablation, of one task or of all.

    Raises:
        UserError: a run cannot be read, or none remains.
    """
    runs = [
        run
        for run in load_runs(run_folders(folders))
        if not split_label(run.label)[1] and run.method not in COMPONENTS and task in (None, run.task)
    ]
    if not runs:
        where = f" of {task_name(task)}" if task else ""
        raise UserError(f"the figure needs runs{where} at published thresholds, none was given")
    return runs


def judged_titles(runs: Sequence[RunResult]) -> dict[str, str]:
    """The tasks' names, with the judge of the final evaluation where there is one."""
    evaluations = {task: chosen[0].read_evaluation() for task, chosen in by_task(runs).items()}
    return {task: judged(task, evaluation.rule, evaluation.judge) for task, evaluation in evaluations.items()}


def curve_data(runs: Sequence[RunResult], metrics: Sequence[str]) -> pd.DataFrame:
    """Curves over steps: task, metric, label, step, n_seeds, raw, mean, sd (over seeds, NaN for one seed), low, high.

    raw is the mean over seeds as measured; mean, sd and the lowest and highest seed are of the smoothed values.

    Steps at which no seed measured the metric are left out.

    Raises:
        UserError: a run lacks a metric.
    """
    parts = []
    for (task, chosen), metric in product(_in_given_order(runs).items(), metrics):
        for label in sorted({run.label for run in chosen}, key=order):
            if metric in MASKING and split_label(label)[0] in KEEP_ALL_METHODS:
                continue
            seeds = [_series(run, metric) for run in chosen if run.label == label]
            raw = pd.concat(seeds, axis=1).dropna(how="all")
            smooth = raw if metric in AS_MEASURED else raw.ewm(alpha=EMA_ALPHA).mean()
            parts.append(
                pd.DataFrame(
                    {
                        "task": task,
                        "metric": metric,
                        "label": label,
                        "step": raw.index,
                        "n_seeds": raw.notna().sum(axis=1),
                        "raw": raw.mean(axis=1),
                        "mean": smooth.mean(axis=1),
                        "sd": smooth.std(axis=1),
                        "low": smooth.min(axis=1),
                        "high": smooth.max(axis=1),
                    }
                )
            )
    if not parts:
        raise UserError("the figure needs a run of a method that masks tokens, none was given")
    return pd.concat(parts, ignore_index=True)


def _in_given_order(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    return {task: [run for run in runs if run.task == task] for task in dict.fromkeys(run.task for run in runs)}


def _series(run: RunResult, metric: str) -> pd.Series:
    if metric not in run.metrics:
        raise UserError(f"{run.path / 'metrics.parquet'}: lacks the column {metric}")
    series: pd.Series = run.metrics.set_index("step")[metric]
    return series


def panel_grid(data: pd.DataFrame, metrics: Sequence[str], shown: Mapping[str, Shown] = EVERY) -> list[list[Panel]]:
    """Panels in rows and columns, without labels where a task has no curve to show.

    A row per task and in it a column per metric and per heading of `shown`; one task alone has a row per metric
    instead, and what would be a single column lies side by side.
    """
    tasks = list(dict.fromkeys(data["task"]))
    rows: list[list[Panel]] = []
    for task in tasks:
        for group in [[metric] for metric in metrics] if len(tasks) == 1 else [metrics]:
            row = []
            for metric, (heading, choose) in product(group, shown.items()):
                curves = data[(data["task"] == task) & (data["metric"] == metric)]
                labels = tuple(choose(list(dict.fromkeys(curves["label"]))))
                row.append(Panel(task, metric, labels, heading="" if rows else heading))
            rows.append(row)
    return [[row[0] for row in rows]] if len(rows[0]) == 1 else rows


def draw_tasks(
    data: pd.DataFrame,
    grid: list[list[Panel]],
    out_stem: Path,
    footer: str,
    titles: Mapping[str, str] | None = None,
) -> None:
    """`draw_panels` with the task's name, or title, over the first panel of each task."""
    names = {task: (titles or {}).get(task, task_name(task)) for task in dict.fromkeys(data["task"])}
    seen: set[str] = set()
    titled: list[list[Panel | None]] = []
    for row in grid:
        width = NARROW_TITLE if len({panel.task for panel in row}) > 1 else SINGLE_TITLE if len(row) == 1 else None
        cells: list[Panel | None] = []
        for panel in row:
            name = "" if panel.task in seen else names[panel.task]
            seen.add(panel.task)
            title = fill(name, width) if width else name
            cells.append(Panel(panel.task, panel.metric, panel.labels, title, panel.heading))
        titled.append(cells)
    if titles:
        data.insert(1, "title", data["task"].map(names))
    draw_panels(data, titled, out_stem, footer)


def draw_panels(data: pd.DataFrame, grid: Grid, out_stem: Path, footer: str, named_by_title: bool = False) -> None:
    """Write the data and draw the grid. named_by_title: the titles say the metric, so that no axis has to."""
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = _axes(grid)
        handles: dict[str, Line2D] = {}
        legend: dict[str, Any] = {"loc": "outside upper center"}
        for row, column in product(range(len(grid)), range(len(grid[0]))):
            ax, panel = axes[row, column], grid[row][column]
            if panel is None:
                ax.set_axis_off()
                legend = {"loc": "center", "bbox_to_anchor": (0.5, 0.5), "bbox_transform": ax.transAxes, "ncols": 1}
                continue
            if panel.labels:
                rows = data[(data["task"] == panel.task) & (data["metric"] == panel.metric)]
                handles |= plot_curves(ax, rows[rows["label"].isin(panel.labels)])
                scale_axis(ax, panel.metric, rows)
            else:
                ax.set_axis_off()
                ax.text(0.5, 0.5, "no runs", transform=ax.transAxes, ha="center", color=style.MUTED)
            _name_axes(ax, panel, row, column, grid, named_by_title)
        ordered = sorted(handles, key=order)
        ncols = min(3 if axes.size == 1 else 5 if len(ordered) > 6 else 6, len(ordered))
        names = [display(label) for label in ordered]
        fig.legend([handles[label] for label in ordered], names, **{"ncols": ncols, **legend})
        style.add_footer(fig, footer)
        style.save(fig, out_stem)


def curves_footer(runs: Sequence[RunResult]) -> str:
    """Scale, seeds and engine of the runs, how their curves are smoothed, and what the bands are."""
    return f"{style.scale_line(runs)} · EMA weight {EMA_ALPHA}{bands_note(runs)}"


def bands_note(runs: Sequence[RunResult]) -> str:
    """What the bands are, where a curve is of several seeds."""
    return " · bands: range of the seeds" if len(runs) > len({(run.task, run.label) for run in runs}) else ""


def _axes(grid: Grid) -> tuple[Figure, np.ndarray]:
    """Axes of the grid; those of one task and metric in a row share their value axis."""
    rows, columns = len(grid), len(grid[0])
    size = (style.SINGLE if columns == 1 else style.DOUBLE, 2.6 if rows == 1 else 0.8 + 1.8 * rows)
    fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for row, column in product(range(rows), range(1, columns)):
        panel, left = grid[row][column], grid[row][column - 1]
        if panel and left and panel.labels and left.labels and _same_axis(panel, left):
            axes[row, column].sharey(axes[row, column - 1])
            axes[row, column].tick_params(which="both", labelleft=False)
    return fig, axes


def _same_axis(panel: Panel, other: Panel) -> bool:
    return (panel.task, panel.metric) == (other.task, other.metric)


def _name_axes(ax: Axes, panel: Panel, row: int, column: int, grid: Grid, named_by_title: bool) -> None:
    left = grid[row][column - 1] if column else None
    below = grid[row + 1][column] if row + 1 < len(grid) else None
    ax.set_title(panel.title, loc="left", fontweight="bold")
    if panel.heading:
        ax.set_title(panel.heading + "\n", loc="center")
    if not named_by_title and (left is None or left.metric != panel.metric):
        ax.set_ylabel(METRICS[panel.metric])
    if below is None:
        ax.set_xlabel("training step")
    elif below.task == panel.task:
        ax.tick_params(labelbottom=False)


def plot_curves(ax: Axes, curves: pd.DataFrame, looks: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Line2D]:
    """Draw the curves of one metric in their order; returns the lines by label. looks: else those of the methods."""
    handles: dict[str, Line2D] = {}
    faint: dict[str, Any] = {"linewidth": 0.4, "alpha": 0.3}
    if curves["metric"].isin(MASKING).any():  # a line through its zeros would draw walls on a log axis
        faint |= {"linestyle": "", "marker": "."}
    labels = list(dict.fromkeys(curves["label"]))
    for index, label in enumerate(labels):
        curve = curves[curves["label"] == label]
        look = looks[label] if looks else style.line_style(label)
        every = max(1, len(curve) // MARKERS_PER_LINE)
        start = min(len(curve) - 1, every // 4 + index * every // len(labels))
        if not curves["metric"].isin(AS_MEASURED).any():
            ax.plot(curve["step"], curve["raw"], color=look["color"], markersize=1, **faint)
        ax.fill_between(curve["step"], curve["low"], curve["high"], color=look["color"], alpha=0.15, linewidth=0)
        stands_out = label == "estr" and not looks
        (handles[label],) = ax.plot(
            curve["step"],
            curve["mean"],
            **look,
            markevery=(start, every),
            markersize=3.3,
            linewidth=1.7 if stands_out else 1.0,
            zorder=4 if stands_out else 3,
        )
    return handles


def scale_axis(ax: Axes, metric: str, curves: pd.DataFrame) -> None:
    """Whole steps; masked fractions of tokens logarithmic down to a bound and then on to zero, spikes logarithmic.

    curves: those of all panels that share the axis.
    """
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    drawn = curves.loc[curves["mean"] > 0, "mean"]
    if drawn.empty:
        return
    lowest = max(drawn.min(), drawn.max() / 10.0**MAX_DECADES)
    if metric == "masked_fraction":
        decade = 10.0 ** np.floor(np.log10(lowest))
        ax.set_yscale("symlog", linthresh=decade, linscale=0.4)
        ax.set_ylim(bottom=-0.1 * decade)
    elif metric in SPIKY and drawn.max() > SPIKE * drawn.median():
        ax.set_yscale("log")
        ax.set_ylim(lowest / 1.5, 1.5 * drawn.max())
    elif metric in SPIKY:
        top = 1.08 * curves["high"].max()
        ax.set_ylim(-0.02 * top, top)
    if metric in MASKING:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %" if value else "0"))
