"""Training curves per method and task: policy entropy, KL to the behavior policy, reward, masking, ratio deviation.

Lines are exponential moving averages (weight EMA_ALPHA on the new step) per seed, then the mean over seeds;
bands are mean ± standard deviation over seeds; faint behind them stands the unsmoothed mean over seeds.
"""

from collections.abc import Sequence
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
from estr.report.labels import KEEP_ALL_METHODS, display, is_matched, judged, order, split_label, task_name
from estr.report.runs import RunResult, by_task, load_runs

EMA_ALPHA = 0.15
AXIS_LABEL = {
    "reward": "training reward",
    "entropy": "policy entropy (nats)",
    "kl_to_behavior": "KL to behavior policy (nats)",
    "masked_fraction": "masked fraction",
    "ratio_deviation": "ratio deviation |r - 1|",
}
VARIANT_TITLE = {False: "published thresholds", True: "matched budget"}
MARKERS_PER_LINE = 6
MAX_DECADES = 6
NARROW_TITLE = 26  # characters of a title over one of three panels in a row


@dataclass(frozen=True)
class Panel:
    """One set of axes: a metric of one task, at published thresholds or at the matched budget; empty without runs."""

    task: str
    metric: str
    matched: bool
    empty: bool = False


Grid = list[list[Panel]]


def fig05a_entropy(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Mean behavior entropy (nats) over steps."""
    _draw(load_runs(run_dirs), ["entropy"], out_stem)


def fig05b_kl(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """KL between behavior and target policy (k3, nats) over steps."""
    _draw(load_runs(run_dirs), ["kl_to_behavior"], out_stem)


def fig07_reward(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Training reward over steps; panels name the judge where the benchmark asks for one."""
    runs = load_runs(run_dirs)
    titles = {}
    for task, chosen in by_task(runs).items():
        evaluation = chosen[0].read_evaluation()
        titles[task] = judged(task, evaluation.rule, evaluation.judge)
    _draw(runs, ["reward"], out_stem, titles)


def fig08_masking(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Masked fraction (methods with a keep rule only) and ratio deviation over steps."""
    runs = load_runs(run_dirs)
    if all(run.method in KEEP_ALL_METHODS for run in runs):
        raise UserError("the masking figure needs a run of a method that masks tokens, none was given")
    _draw(runs, ["masked_fraction", "ratio_deviation"], out_stem)


def curve_data(runs: Sequence[RunResult], metrics: Sequence[str]) -> pd.DataFrame:
    """Curves over steps: task, metric, label, step, n_seeds, raw, mean, sd (over seeds, NaN for one seed)."""
    parts = []
    for (task, chosen), metric in product(by_task(runs).items(), metrics):
        for label in sorted({run.label for run in chosen}, key=order):
            if metric == "masked_fraction" and split_label(label)[0] in KEEP_ALL_METHODS:
                continue
            seeds = [run.metrics.set_index("step")[metric] for run in chosen if run.label == label]
            raw = pd.concat(seeds, axis=1)
            smooth = raw.ewm(alpha=EMA_ALPHA).mean()
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
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def _draw(
    runs: Sequence[RunResult], metrics: Sequence[str], out_stem: Path, titles: dict[str, str] | None = None
) -> None:
    data = curve_data(runs, metrics)
    if titles:
        data.insert(1, "title", data["task"].map(titles))
    style.save_data(data, out_stem)
    grid = panel_grid(data, metrics)
    with style.look():
        fig, axes = _axes(grid)
        handles: dict[str, Line2D] = {}
        for row, column in product(range(len(grid)), range(len(grid[0]))):
            ax, panel = axes[row, column], grid[row][column]
            if panel.empty:
                ax.set_axis_off()
                ax.text(0.5, 0.5, "no runs", transform=ax.transAxes, ha="center", color=style.MUTED)
            else:
                rows = data[(data["task"] == panel.task) & (data["metric"] == panel.metric)]
                handles |= _curves(ax, rows[[_shown(label, panel.matched) for label in rows["label"]]])
                _scale_axis(ax, panel.metric, rows)
            _name_axes(ax, panel, row, column, grid, (titles or {}).get(panel.task, task_name(panel.task)))
        ordered = sorted(handles, key=order)
        fig.legend(
            [handles[label] for label in ordered],
            [display(label) for label in ordered],
            loc="outside upper center",
            ncols=min(3 if axes.size == 1 else 5 if len(ordered) > 6 else 6, len(ordered)),
        )
        style.add_footer(fig, f"{style.scale_line(runs)} · EMA weight {EMA_ALPHA}")
        style.save(fig, out_stem)


def panel_grid(data: pd.DataFrame, metrics: Sequence[str]) -> Grid:
    """Panels in rows and columns, empty where a task has no curve: no matched-budget run, or nothing that masks.

    A row per task and in it a column per metric and variant; one task alone has a row per metric instead, and what
    would be a single column lies side by side.
    """
    tasks = list(dict.fromkeys(data["task"]))
    variants = sorted({is_matched(label) for label in data["label"]})
    curves = set(zip(data["task"], data["metric"], map(is_matched, data["label"]), strict=True))
    rows = [
        [
            Panel(task, metric, variant, empty=(task, metric, variant) not in curves)
            for metric in group
            for variant in variants
        ]
        for task in tasks
        for group in ([[metric] for metric in metrics] if len(tasks) == 1 else [metrics])
    ]
    return [[row[0] for row in rows]] if len(rows[0]) == 1 else rows


def _axes(grid: Grid) -> tuple[Figure, np.ndarray]:
    """Axes of the grid; those of one task and metric share their value axis."""
    rows, columns = len(grid), len(grid[0])
    size = (style.SINGLE if columns == 1 else style.DOUBLE, 2.6 if rows == 1 else 0.8 + 1.8 * rows)
    fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for row, column in product(range(rows), range(1, columns)):
        panel, left = grid[row][column], grid[row][column - 1]
        if not panel.empty and not left.empty and (panel.task, panel.metric) == (left.task, left.metric):
            axes[row, column].sharey(axes[row, column - 1])
            axes[row, column].tick_params(which="both", labelleft=False)
    return fig, axes


def _name_axes(ax: Axes, panel: Panel, row: int, column: int, grid: Grid, task: str) -> None:
    """The task over the first panel of its row, the variant over the columns, labels where they change."""
    left = grid[row][column - 1] if column else None
    if left is None or left.task != panel.task:
        width = NARROW_TITLE if len({other.task for other in grid[row]}) > 1 else len(task)
        ax.set_title(fill(task, width), loc="left", fontweight="bold")
    if row == 0 and len({other.matched for line in grid for other in line}) > 1:
        ax.set_title(VARIANT_TITLE[panel.matched] + "\n", loc="center")
    if left is None or left.metric != panel.metric:
        ax.set_ylabel(AXIS_LABEL[panel.metric])
    below = grid[row + 1][column] if row + 1 < len(grid) else None
    if below is None:
        ax.set_xlabel("training step")
    elif below.task == panel.task:
        ax.tick_params(labelbottom=False)


def _shown(label: str, matched: bool) -> bool:
    """The matched panel repeats sync, async and ESTR, to which the matched variants are compared."""
    return is_matched(label) == matched or (matched and label in (*KEEP_ALL_METHODS, "estr"))


def _curves(ax: Axes, panel: pd.DataFrame) -> dict[str, Line2D]:
    handles: dict[str, Line2D] = {}
    faint: dict[str, Any] = {"linewidth": 0.4, "alpha": 0.3}
    if (panel["metric"] == "masked_fraction").any():  # a line through its zeros would draw walls on a log axis
        faint |= {"linestyle": "", "marker": "."}
    labels = list(dict.fromkeys(panel["label"]))
    for index, label in enumerate(labels):
        curve = panel[panel["label"] == label]
        look = style.line_style(label)
        every = max(1, len(curve) // MARKERS_PER_LINE)
        start = min(len(curve) - 1, every // 4 + index * every // len(labels))
        ax.plot(curve["step"], curve["raw"], color=look["color"], markersize=1, **faint)
        low, high = curve["mean"] - curve["sd"], curve["mean"] + curve["sd"]
        ax.fill_between(curve["step"], low.clip(lower=0), high, color=look["color"], alpha=0.15, linewidth=0)
        width = 1.7 if label == "estr" else 1.2
        (handles[label],) = ax.plot(
            curve["step"], curve["mean"], **look, markevery=(start, every), linewidth=width, zorder=3
        )
    return handles


def _scale_axis(ax: Axes, metric: str, curves: pd.DataFrame) -> None:
    """Linear for rewards and entropies, logarithmic for the rest; the masked fraction's goes on to zero.

    curves: those of all panels that share the axis.
    """
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    drawn = curves.loc[curves["mean"] > 0, "mean"]
    if metric in ("reward", "entropy") or drawn.empty:
        return
    lowest = max(drawn.min(), drawn.max() / 10.0**MAX_DECADES)
    if metric == "masked_fraction":
        decade = 10.0 ** np.floor(np.log10(lowest))
        ax.set_yscale("symlog", linthresh=decade, linscale=0.4)
        ax.set_ylim(bottom=-0.1 * decade)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %" if value else "0"))
    else:
        ax.set_yscale("log")
        ax.set_ylim(lowest / 2, 2 * drawn.max())
