"""Stability frontier: how far each rule can be pushed before training collapses (not in the paper)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from estr.errors import UserError
from estr.files.typed import Kind, require_fields
from estr.provenance import read_json
from estr.report import style
from estr.report.labels import display, order, task_name
from estr.report.runs import format_thresholds
from estr.report.sources import frontier_folders
from estr.report.views import EMPTY, View, write_table

FIELDS: dict[str, Kind] = {
    **{name: str for name in ("scale", "task", "label", "axis", "commit")},
    **{name: list for name in ("values", "probes", "seeds")},
    **{name: (float, None) for name in ("stable_up_to", "collapses_at")},
    "rule": dict,
    "steps": int,
}
AXES = {
    "learning_rate": "largest stable learning rate",
    "inter": "largest stable inter-trajectory staleness (versions)",
}


def frontier_frame(folders: Sequence[Path]) -> pd.DataFrame:
    """A row per search, with the method's thresholds, the axis and the values tried.

    `stable_up_to` is the largest value tried at which the majority of the seeds did not collapse, NaN if the smallest
    one collapses already; `collapses_at` is the next value, NaN if the largest one is stable.

    Raises:
        UserError: no search was given, or one cannot be read.
    """
    records = [_read(folder / "frontier.json") for folder in frontier_folders(folders)]
    if not records:
        raise UserError("no search was given: `estr frontier dapo_math estr --axis inter` makes one")
    records.sort(key=lambda record: (record["task"], list(AXES).index(record["axis"]), order(record["label"])))
    return pd.DataFrame(
        {
            "scale": record["scale"],
            "task": record["task"],
            "label": record["label"],
            "thresholds": format_thresholds(record["rule"]),
            "axis": record["axis"],
            "smallest": float(record["values"][0]),
            "largest": float(record["values"][-1]),
            "stable_up_to": np.nan if record["stable_up_to"] is None else float(record["stable_up_to"]),
            "collapses_at": np.nan if record["collapses_at"] is None else float(record["collapses_at"]),
            "n_runs": len(record["probes"]),
            "n_seeds": len(record["seeds"]),
            "steps": record["steps"],
            "commit": record["commit"],
        }
        for record in records
    )


def _read(path: Path) -> dict[str, Any]:
    record = require_fields(path, read_json(path), FIELDS)
    if record["axis"] not in AXES:
        raise UserError(f"{path}: field 'axis' is {record['axis']!r}, not one of {', '.join(AXES)}")
    for place, value in enumerate(record["values"]):
        require_fields(path, {f"values.{place}": value}, {f"values.{place}": float})
    if not record["values"]:
        raise UserError(f"{path}: field 'values' is empty")
    return record


def frontier_views(frame: pd.DataFrame) -> list[View]:
    """A table per task; a row per method and variant, a column per axis."""
    return [_view(rows) for _, rows in frame.groupby("task", sort=False)]


def _view(frame: pd.DataFrame) -> View:
    labels = sorted(set(frame["label"]), key=order)
    cells = {(row["label"], row["axis"]): _bounds(row) for _, row in frame.iterrows()}
    thresholds = dict(zip(frame["label"], frame["thresholds"], strict=True))
    rows = [
        (display(label), thresholds[label] or EMPTY, *(cells.get((label, axis), EMPTY) for axis in AXES))
        for label in labels
    ]
    first = frame.iloc[0]
    note = (
        f"{task_name(first['task'])} at {first['scale']} scale; the rewards of {first['steps']} policies, for which a "
        "run takes as many more updates as its rollouts lag behind; the other setting as in the paper. Bisection with "
        f"one seed, the boundary by the majority of {first['n_seeds']}; collapse as in estr.algorithm.collapse, but a "
        "run is ended when it has been collapsed for some updates, before it could recover. In parentheses the next "
        "value tried, at which most seeds collapse."
    )
    headers = ("Method", "Thresholds", *(text[0].upper() + text[1:] for text in AXES.values()))
    return View("Stability frontier (not in the paper)", note, headers, tuple(rows), section=task_name(first["task"]))


def _bounds(row: pd.Series) -> str:
    stable, fallen = row["stable_up_to"], row["collapses_at"]
    if np.isnan(stable):
        return f"below {row['smallest']:g}"
    return f"{stable:g} (the largest tried)" if np.isnan(fallen) else f"{stable:g} ({fallen:g})"


def write_stability_frontier(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table of the searches; it has no use for a calibration."""
    frame = frontier_frame(folders)
    write_table(frame, frontier_views(frame), out_stem)


def stability_frontier(folders: Sequence[Path], out_stem: Path) -> None:
    """Draw the largest stable value per method, a panel per axis; a cross marks the next value, which collapses."""
    frame = frontier_frame(folders)
    style.save_data(frame, out_stem)
    axes_present = [axis for axis in AXES if axis in set(frame["axis"])]
    labels = sorted(set(frame["label"]), key=order, reverse=True)
    with style.look():
        size = (style.DOUBLE, 0.9 + 0.24 * len(labels))
        fig, axes = plt.subplots(1, len(axes_present), figsize=size, squeeze=False, sharey=True)
        for ax, axis in zip(axes[0], axes_present, strict=True):
            _draw(ax, frame[frame["axis"] == axis], labels)
            ax.set_xlabel(AXES[axis])
            if axis == "inter":
                ax.xaxis.set_major_formatter("{x:.0f}")
                ax.set_xticks([10, 20, 40, 80])
                ax.minorticks_off()
        first = frame.iloc[0]
        text = f"{first['scale']} scale · {task_name(first['task'])} · rewards of {first['steps']} policies"
        text += f" · majority of {first['n_seeds']} seeds · cross: next value tried, collapses"
        style.add_footer(fig, text)
        style.save(fig, out_stem)


def _draw(ax: Axes, rows: pd.DataFrame, labels: Sequence[str]) -> None:
    for _, row in rows.iterrows():
        height, look = labels.index(row["label"]), style.line_style(row["label"])
        look = {key: value for key, value in look.items() if key != "linestyle"}
        stable = row["stable_up_to"]
        ax.plot(
            [row["smallest"], np.nan_to_num(stable, nan=row["smallest"])], [height] * 2, color="#BBBBBB", linewidth=1
        )
        ax.plot([stable], [height], linestyle="", **look)
        ax.plot([row["collapses_at"]], [height], "x", color=look["color"], markersize=5)
        if np.isnan(row["collapses_at"]):
            ax.annotate("→", (stable, height), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_xscale("log")
    ax.set_yticks(range(len(labels)), [display(label) for label in labels])
    ax.set_ylim(-0.6, len(labels) - 0.4)
