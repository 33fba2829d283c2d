"""Figures that vary one setting of ESTR: staleness within and between trajectories, and prompts per update.

Curves over steps on top, and below them what the runs came to against the setting: their mean, lowest and highest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from estr.errors import UserError
from estr.report import style
from estr.report.curves import MASKING, METRICS, curve_data, curves_footer, plot_curves, scale_axis
from estr.report.labels import task_name
from estr.report.run_rows import final_reward, overridden, stability_columns
from estr.report.runs import RunResult, load_runs
from estr.report.sources import run_folders

TASK = "dapo_math"
METHOD = "estr"
GREEN = "#009E73"
SYNC_LOOK = style.line_style("sync") | {"linestyle": (0, (3, 1.5))}


@dataclass(frozen=True)
class Sweep:
    """A setting that is varied, and the labels' override keys that a run of the sweep may have.

    belongs: whether a run, by its resolved configuration, is one of the sweep.
    """

    name: str
    axis: str
    hue: str
    keys: frozenset[str]
    value: Callable[[dict[str, Any]], float]
    belongs: Callable[[dict[str, Any]], bool] = lambda config: True

    def chosen(self, runs: Sequence[RunResult]) -> list[RunResult]:
        return [
            run
            for run in runs
            if (run.task, run.method) == (TASK, METHOD) and overridden(run) <= self.keys and self.belongs(run.config)
        ]


STALENESS = frozenset({"intra", "inter"})
INTRA = Sweep(
    "intra",
    "intra-trajectory staleness (versions)",
    style.BLUE,
    STALENESS,
    value=lambda config: config["staleness"]["intra"],
    belongs=lambda config: config["staleness"]["inter"] == 1,
)
INTER = Sweep(
    "inter",
    "inter-trajectory staleness (versions)",
    style.PURPLE,
    STALENESS,
    value=lambda config: config["staleness"]["inter"],
    belongs=lambda config: config["staleness"]["intra"] == 1,
)
PROMPTS = Sweep(
    "prompts", "prompts per update", GREEN, frozenset({"prompts"}), value=lambda config: config["train"]["prompts"]
)


def fig09_staleness(folders: Sequence[Path], out_stem: Path) -> None:
    """Reward under each source of staleness alone, the other at 1; sync as the reference, where it was run.

    Raises:
        UserError: a run cannot be read, or none is of either sweep.
    """
    runs = load_runs(run_folders(folders))
    swept = {sweep.name: sweep.chosen(runs) for sweep in (INTRA, INTER)}
    if not any(swept.values()):
        raise UserError(f"the staleness figure needs ESTR runs of {task_name(TASK)} at intra 1 or at inter 1")
    sync = [run for run in runs if (run.task, run.label) == (TASK, "sync")]
    panels = [(sweep, "reward", swept[sweep.name], sync) for sweep in (INTRA, INTER)]
    _draw(panels, "the other source at 1", out_stem)


def fig15cd_batch_size(folders: Sequence[Path], out_stem: Path) -> None:
    """Reward and masked fraction by the number of prompts per update, all with the same number of updates.

    Raises:
        UserError: a run cannot be read, or there are fewer than two batch sizes.
    """
    runs = PROMPTS.chosen(load_runs(run_folders(folders)))
    if len({PROMPTS.value(run.config) for run in runs}) < 2:
        raise UserError(
            f"the batch-size figure needs ESTR runs of {task_name(TASK)} at two or more values of prompts, "
            f"got {', '.join(sorted({run.label for run in runs})) or 'none'}"
        )
    _draw(
        [(PROMPTS, metric, runs, []) for metric in ("reward", "masked_fraction")], "equal numbers of updates", out_stem
    )


def sweep_data(sweep: Sweep, metric: str, runs: Sequence[RunResult], sync: Sequence[RunResult]) -> pd.DataFrame:
    """Rows of part ``curve`` (as `curve_data`) and of part ``run``, one per run with its outcome as `mean`.

    metric: the reward, whose outcome is the mean over the last quarter of the steps, or a masked fraction, whose
    outcome is the mean over all steps. setting is the swept value, NaN of sync; collapsed (0 or 1) is
    `detect_collapse` of the run's reward.
    """
    value = {run.label: float(sweep.value(run.config)) for run in runs}
    curves = curve_data([*sync, *runs], [metric])
    outcomes = [
        {
            "task": run.task,
            "metric": metric,
            "label": run.label,
            "seed": run.seed,
            "n_seeds": 1,
            "mean": float(run.metrics[metric].mean()) if metric in MASKING else final_reward(run),
            "collapsed": 1 - stability_columns([run])["n_stable"],
        }
        for run in [*sync, *runs]
    ]
    data = pd.concat([curves.assign(part="curve"), pd.DataFrame(outcomes).assign(part="run")], ignore_index=True)
    data.insert(1, "sweep", sweep.name)
    data.insert(4, "setting", data["label"].map(value))
    return data.sort_values(["part", "setting", "label"], kind="stable", na_position="first", ignore_index=True)


Column = tuple[Sweep, str, Sequence[RunResult], Sequence[RunResult]]
"""A sweep, the metric drawn of it, its runs, and those of the reference."""


def _draw(columns: Sequence[Column], note: str, out_stem: Path) -> None:
    parts = [sweep_data(*column) for column in columns if column[2]]
    style.save_data(pd.concat(parts, ignore_index=True), out_stem)
    with style.look():
        fig, axes = plt.subplots(2, len(columns), figsize=(style.DOUBLE, 4.4), squeeze=False)
        drawn = iter(parts)
        for top, bottom, (sweep, metric, runs, _) in zip(axes[0], axes[1], columns, strict=True):
            if not runs:
                for ax in (top, bottom):
                    ax.set_axis_off()
                top.text(0.5, 0.5, f"no runs: {sweep.axis}", transform=top.transAxes, ha="center", color=style.MUTED)
                continue
            data = next(drawn)
            _curves(top, sweep, metric, data[data["part"] == "curve"])
            _outcomes(bottom, sweep, metric, data[data["part"] == "run"])
        if len({metric for _, metric, runs, _ in columns if runs}) == 1 and all(column[2] for column in columns):
            for row in axes:
                row[1].sharey(row[0])
        used = {run.run_id: run for _, _, runs, sync in columns for run in [*sync, *runs]}
        style.add_footer(fig, f"{task_name(TASK)} · {curves_footer(list(used.values()))} · {note}")
        style.save(fig, out_stem)


def _looks(sweep: Sweep, data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    labels = list(dict.fromkeys(data.loc[data["setting"].notna(), "label"]))
    return {"sync": SYNC_LOOK} | dict(zip(labels, style.sweep_styles(len(labels), sweep.hue), strict=True))


def _curves(ax: Axes, sweep: Sweep, metric: str, data: pd.DataFrame) -> None:
    handles = plot_curves(ax, data, _looks(sweep, data))
    scale_axis(ax, metric, data)
    settings = data.drop_duplicates("label").set_index("label")["setting"]
    names = ["sync" if np.isnan(settings[label]) else f"{settings[label]:g}" for label in handles]
    ax.legend(
        handles.values(), names, title=sweep.axis, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(names),
        handlelength=1.4, columnspacing=0.9,
    )  # fmt: skip
    ax.set_xlabel("training step")
    ax.set_ylabel(METRICS[metric])


def _outcomes(ax: Axes, sweep: Sweep, metric: str, data: pd.DataFrame) -> None:
    looks = _looks(sweep, data)
    reference = data.loc[data["setting"].isna(), "mean"]
    if len(reference):
        ax.axhline(reference.mean(), color=SYNC_LOOK["color"], linestyle=SYNC_LOOK["linestyle"], linewidth=1)
        ax.axhspan(reference.min(), reference.max(), color=SYNC_LOOK["color"], alpha=0.1, linewidth=0)
    swept = data[data["setting"].notna()]
    means = swept.groupby("setting")["mean"].mean()
    ax.plot(means.index, means, color=style.MUTED, linewidth=0.8, zorder=2)
    for _, runs in swept.groupby("setting"):
        seeds, look = runs["mean"], looks[runs["label"].iloc[0]]
        spread = [[seeds.mean() - seeds.min()], [seeds.max() - seeds.mean()]]
        ax.errorbar(runs["setting"].iloc[:1], [seeds.mean()], spread, **look, capsize=2, linewidth=1, zorder=4)
    ax.xaxis.set_major_locator(FixedLocator(list(means.index)))
    if sweep is PROMPTS:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(list(means.index)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
    if metric in MASKING:
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.set_xlabel(sweep.axis)
    ax.set_ylabel(f"{METRICS[metric]},\n{'all steps' if metric in MASKING else 'last quarter'}")
