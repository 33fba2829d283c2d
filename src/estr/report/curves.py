"""Training curves per method: KL to the behavior policy, reward, masked fraction and ratio deviation.

Lines are exponential moving averages (weight EMA_ALPHA on the new step) per seed, then the mean over seeds;
bands are mean ± standard deviation over seeds; faint behind them stands the unsmoothed mean over seeds.
"""

from collections.abc import Sequence
from pathlib import Path
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
from estr.report.labels import KEEP_ALL_METHODS, display, is_matched, order, split_label
from estr.report.runs import RunResult, load_runs

EMA_ALPHA = 0.15
AXIS_LABEL = {
    "reward": "training reward",
    "kl_to_behavior": "KL to behavior policy (nats)",
    "masked_fraction": "masked fraction",
    "ratio_deviation": "ratio deviation |r - 1|",
}
COLUMN_TITLE = {False: "published thresholds", True: "matched masking budget"}
MARKERS_PER_LINE = 6
MAX_DECADES = 6


def fig05b_kl(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """KL between behavior and target policy (k3, nats) over steps."""
    _draw(load_runs(run_dirs), ["kl_to_behavior"], out_stem)


def fig07_reward(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Training reward over steps."""
    _draw(load_runs(run_dirs), ["reward"], out_stem)


def fig08_masking(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Masked fraction (methods with a keep rule only) and ratio deviation over steps."""
    runs = load_runs(run_dirs)
    if all(run.method in KEEP_ALL_METHODS for run in runs):
        raise UserError("the masking figure needs a run of a method that masks tokens, none was given")
    _draw(runs, ["masked_fraction", "ratio_deviation"], out_stem)


def curve_data(runs: Sequence[RunResult], metrics: Sequence[str]) -> pd.DataFrame:
    """Curves over steps: metric, label, step, n_seeds, raw, mean, sd (over seeds, NaN for one seed)."""
    parts = []
    for metric in metrics:
        for label in sorted({run.label for run in runs}, key=order):
            if metric == "masked_fraction" and split_label(label)[0] in KEEP_ALL_METHODS:
                continue
            seeds = [run.metrics.set_index("step")[metric] for run in runs if run.label == label]
            raw = pd.concat(seeds, axis=1)
            smooth = raw.ewm(alpha=EMA_ALPHA).mean()
            parts.append(
                pd.DataFrame(
                    {
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


def _draw(runs: Sequence[RunResult], metrics: Sequence[str], out_stem: Path) -> None:
    """A row of panels per metric, a column per set of thresholds; one set alone lies side by side."""
    data = curve_data(runs, metrics)
    style.save_data(data, out_stem)
    columns = sorted({is_matched(label) for label in data["label"]})
    with style.look():
        fig, axes = _panels(len(metrics), len(columns))
        handles: dict[str, Line2D] = {}
        for row, metric in enumerate(metrics):
            for column, matched in enumerate(columns):
                ax = axes[row, column]
                shown = [label for label in data["label"].unique() if _shown(label, matched)]
                panel = data[(data["metric"] == metric) & data["label"].isin(shown)]
                handles |= _curves(ax, panel)
                _scale_axis(ax, metric, data[data["metric"] == metric])
                if len(columns) > 1 and row == 0:
                    ax.set_title(COLUMN_TITLE[matched])
                if column == 0 or len(columns) == 1:
                    ax.set_ylabel(AXIS_LABEL[metric])
                if row == axes.shape[0] - 1 or len(columns) == 1:
                    ax.set_xlabel("training step")
        ordered = sorted(handles, key=order)
        per_row = 3 if axes.size == 1 else 6 if len(columns) == 1 else 5
        fig.legend(
            [handles[label] for label in ordered],
            [display(label) for label in ordered],
            loc="outside upper center",
            ncols=min(per_row, len(ordered)),
        )
        style.add_footer(fig, f"{style.scale_line(runs)} · EMA weight {EMA_ALPHA}")
        style.save(fig, out_stem)


def _panels(n_metrics: int, n_columns: int) -> tuple[Figure, np.ndarray]:
    if n_columns == 1:
        width = style.SINGLE if n_metrics == 1 else style.DOUBLE
        fig, axes = plt.subplots(1, n_metrics, figsize=(width, 2.6), squeeze=False)
        return fig, axes.T
    height = 2.7 if n_metrics == 1 else 4.4
    fig, axes = plt.subplots(
        n_metrics, n_columns, figsize=(style.DOUBLE, height), sharex=True, sharey="row", squeeze=False
    )
    return fig, axes


def _shown(label: str, matched: bool) -> bool:
    """The matched column repeats sync, async and ESTR, to which the matched variants are compared."""
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
    """Linear for rewards, logarithmic for the rest; the masked fraction's goes on to zero.

    curves: all of the row's panels, which share the axis.
    """
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    drawn = curves.loc[curves["mean"] > 0, "mean"]
    if metric == "reward" or drawn.empty:
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
