"""Figure 12f, measured: time per update. And the pipeline's model: speedup over skew, split and staleness threshold."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from estr.errors import UserError
from estr.pipeline.calibration import PAPER_RESPONSE_LIMIT, calibrate, calibrate_to_paper, predict
from estr.pipeline.lengths import LognormalLengths
from estr.pipeline.measurement import Measurement
from estr.pipeline.model import simulate_colocated, simulate_disaggregated
from estr.pipeline.plan import splits, warmup_updates
from estr.pipeline.settings import Pipeline
from estr.report import style
from estr.report.efficiency import REFERENCE, measurements, paper_times, speedup_over
from estr.report.labels import display, task_name
from estr.report.paper import load_paper_values
from estr.report.sources import throughput_folders

STEP_TIME_LABELS = (REFERENCE, "estr")
SYNC_UPDATES, UPDATES = 40, 20  # of each simulation
MOST_WARMUP = 12  # more would age responses, not change the pace
PANELS = {
    "skew": "skew of response lengths (sd / mean)",
    "split": "share of devices that generate",
    "threshold": "staleness threshold",
}
SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
THRESHOLDS = (0.0, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0)
FAMILY = ({"skew": 1.0, "slot_growth": 0.0}, {"skew": 0.7, "slot_growth": 0.5})
"""Models that all give the paper's two step times."""


def fig12f_step_time(folders: Sequence[Path], out_stem: Path) -> None:
    """Measured time of every update of synchronous training and of ESTR, a panel per task; warm-up faint.

    Raises:
        UserError: there is no measurement of either, or one cannot be read.
    """
    found = [m for m in measurements(folders) if m.label in STEP_TIME_LABELS]
    if not found:
        raise UserError(f"Figure 12f needs throughput measurements of {' or '.join(STEP_TIME_LABELS)}")
    data = pd.concat([_step_times(m) for m in found], ignore_index=True)
    style.save_data(data, out_stem)
    tasks = list(dict.fromkeys(data["task"]))
    with style.look():
        width = style.SINGLE if len(tasks) == 1 else style.DOUBLE
        fig, axes = plt.subplots(1, len(tasks), figsize=(width, 2.4), squeeze=False)
        handles: dict[str, Any] = {}
        for ax, task in zip(axes[0], tasks, strict=True):
            for label, curve in data[data["task"] == task].groupby("label", sort=False):
                look = style.line_style(str(label))
                ax.plot(curve["step"], curve["step_seconds"], color=look["color"], alpha=0.35)
                measured = curve[curve["measured"]]
                (handles[str(label)],) = ax.plot(measured["step"], measured["step_seconds"], **look)
            ax.set_ylim(bottom=0)
            ax.set_title(task_name(task), loc="left", fontweight="bold")
            ax.set_xlabel("update")
            ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes[0][0].set_ylabel("time per update (s)")
        fig.legend(handles.values(), map(display, handles), loc="outside upper center", ncols=len(handles))
        style.add_footer(fig, f"measured · {_setting(found)} · one measurement each · warm-up faint")
        style.save(fig, out_stem)


def _step_times(m: Measurement) -> pd.DataFrame:
    frame = m.steps[["step", "measured", "step_seconds"]].copy()
    frame.insert(0, "label", m.label)
    frame.insert(0, "task", m.task)
    return frame


def _setting(found: Sequence[Measurement]) -> str:
    cores = sorted({m.record["cores"] for m in found})
    return f"{found[0].record['scale']} scale · {'-'.join(map(str, cores))} cores"


def pipeline_speedup(folders: Sequence[Path], out_stem: Path) -> None:
    """Modelled speedup over synchronous training on the same devices against skew, split and staleness threshold.

    Lines: models calibrated with the paper's Table 2. Our measured speedups, where there are any, stand beside them
    with what the model says of each from its own stage times; they lie on no line, for they are another pipeline.

    Raises:
        UserError: a measurement cannot be read.
    """
    found = measurements(folders) if throughput_folders(folders) else []
    data = pd.DataFrame([*_family_rows(), *_paper_rows(), *_measured_rows(found)])
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = plt.subplots(1, len(PANELS), figsize=(style.DOUBLE, 2.7), sharey=True)
        handles: dict[str, Any] = {}
        for ax, (panel, name) in zip(axes, PANELS.items(), strict=True):
            handles |= _draw(ax, data[data["panel"] == panel])
            ax.axhline(1, color=style.MUTED, linewidth=0.6, linestyle=":")
            ax.set_xlabel(name)
        axes[0].set_ylabel("speedup over synchronous")
        axes[0].set_ylim(bottom=0)
        axes[1].set_xlim(0, 1)
        axes[2].set_xscale("symlog", linthresh=0.1, linscale=0.5)
        axes[2].set_xlim(-0.03, 30)
        axes[2].xaxis.set_major_locator(FixedLocator([0, 0.1, 1, 10]))
        axes[2].xaxis.set_minor_locator(NullLocator())
        axes[2].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        fig.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2)
        measured = f" · measured: {_setting(found)}" if found else " · nothing measured"
        style.add_footer(fig, f"modelled: the paper's 16 GPUs, 8/8 split, threshold 20, interval 2{measured}")
        style.save(fig, out_stem)


def _family_rows() -> Iterator[dict[str, Any]]:
    for member in FAMILY:
        pipeline = calibrate_to_paper(*paper_times(load_paper_values()), **member)
        row = {
            "kind": "modelled",
            "series": f"modelled, paper's run at skew {member['skew']:g}, slot growth {member['slot_growth']:g}",
        }
        sync = _sync_seconds(pipeline)
        for skew in SKEWS:
            skewed = replace(pipeline, lengths=LognormalLengths(pipeline.lengths.mean, skew, PAPER_RESPONSE_LIMIT))
            yield row | {"panel": "skew", "x": skew, "speedup": _sync_seconds(skewed) / _async_seconds(skewed)}
        for devices in splits(pipeline.devices, pipeline.replica_devices):
            split = replace(pipeline, rollout_devices=devices)
            yield row | {"panel": "split", "x": devices / split.devices, "speedup": sync / _async_seconds(split)}
        for threshold in THRESHOLDS:
            bounded = replace(pipeline, threshold=threshold)
            yield row | {"panel": "threshold", "x": threshold, "speedup": sync / _async_seconds(bounded)}


def _sync_seconds(pipeline: Pipeline) -> float:
    return simulate_colocated(pipeline, SYNC_UPDATES).seconds_per_update


def _async_seconds(pipeline: Pipeline) -> float:
    return simulate_disaggregated(pipeline, UPDATES, min(warmup_updates(pipeline), MOST_WARMUP)).seconds_per_update


def _paper_rows() -> Iterator[dict[str, Any]]:
    """The paper's one point; its skew is not known."""
    sync, estr, _ = paper_times(load_paper_values())
    for panel, x in (("split", 0.5), ("threshold", 20.0)):
        yield {"kind": "paper", "series": "paper, ESTR", "panel": panel, "x": x, "speedup": sync / estr}


def _measured_rows(found: Sequence[Measurement]) -> Iterator[dict[str, Any]]:
    """Asynchronous measurements that have a synchronous one of their task beside them."""
    sync = {m.task: m for m in found if m.label == REFERENCE}
    tasks = list(dict.fromkeys(m.task for m in found))
    predicted = {m.run_id: _predicted_seconds(m) for m in found}
    for m in found:
        if m.colocated or m.task not in sync:
            continue
        pipeline = calibrate(m)
        places = {
            "skew": pipeline.lengths.skew,
            "split": pipeline.rollout_devices / pipeline.devices,
            "threshold": pipeline.threshold,
        }
        speedup, low, high = speedup_over(sync[m.task], m)
        modelled = predicted[sync[m.task].run_id] / predicted[m.run_id]
        name = f"{display(m.label)}, {task_name(m.task)}"
        for panel, x in places.items():
            row = {"series": name, "label": m.label, "filled": m.task == tasks[-1], "panel": panel, "x": x}
            yield row | {"kind": "measured", "speedup": speedup, "low": low, "high": high}
            yield row | {"kind": "modelled from its stage times", "speedup": modelled}


def _predicted_seconds(m: Measurement) -> float:
    outcomes = predict(m)
    return sum(outcome.seconds_per_update for outcome in outcomes) / len(outcomes)


def _draw(ax: Axes, rows: pd.DataFrame) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    lines = rows[rows["kind"] == "modelled"].groupby("series", sort=False)
    for (series, line), dashes in zip(lines, ("-", (0, (4, 1.5))), strict=True):
        (handles[str(series)],) = ax.plot(line["x"], line["speedup"], color=style.INK, linestyle=dashes, marker=".")
    for series, point in rows[rows["kind"] == "paper"].groupby("series"):
        handles[str(series)] = ax.scatter(point["x"], point["speedup"], marker="*", s=60, color=style.RED, zorder=4)
    for series, pair in rows[rows["kind"].str.contains("measured|stage times")].groupby("series", sort=False):
        look = style.line_style(pair["label"].iloc[0])
        measured, modelled = (pair[(pair["kind"] == "measured") == choice] for choice in (True, False))
        error = [measured["speedup"] - measured["low"], measured["high"] - measured["speedup"]]
        look |= {"linestyle": "", "markerfacecolor": look["color"] if pair["filled"].iloc[0] else "white"}
        handles[f"measured, {series}"] = ax.errorbar(measured["x"], measured["speedup"], yerr=error, **look)
        handles["modelled, from the measurement's stage times"] = ax.scatter(
            modelled["x"], modelled["speedup"], marker="x", s=25, color=look["color"], zorder=4
        )
    return handles
