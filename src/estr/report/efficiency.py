"""Table 2 (v2: Table 4): throughput and time per update, measured with the concurrent engine, beside the model's.

Measured columns have plain names, those of the model start with `modelled_`, the paper's with `paper_`. Every row's
model is calibrated with the stage times and response lengths of its own measurement.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.pipeline.calibration import calibrate, compare, predict
from estr.pipeline.measurement import Measurement, load_measurements
from estr.report.labels import display, order, split_label, task_name, task_order
from estr.report.paper import PaperValue, PaperValues, load_paper_values
from estr.report.run_views import NOT_REPORTED
from estr.report.sources import throughput_folders
from estr.report.views import EMPTY, View, number, write_table

PAPER_TASK = "dapo_math"
PAPER_GPUS = 16
LOST = ("icepop", "kpop")
"""Methods of v2's Table 4 without a number left."""
REFERENCE = "sync"
RESAMPLES = 5_000
MODEL = {
    "seconds per update": "step_seconds",
    "throughput": "throughput",
    "trainer idle": "trainer_idle",
    "rollout idle": "rollout_idle",
    "staleness intra": "staleness_intra_mean",
    "staleness inter": "staleness_inter_mean",
}
"""Quantities of the model's comparison, and their columns."""
STAGES = ("generate_seconds", "train_seconds", "sync_seconds")
COLUMNS = [
    *("scale", "task", "label", "method", "mode", "cores", "updates", "warmup_updates"),
    *("paper_throughput", "paper_step_seconds", "paper_speedup", "paper_speedup_derived", "paper_basis"),
    *("throughput", *(f"step_seconds{suffix}" for suffix in ("", "_sd", "_low", "_high"))),
    *(f"speedup{suffix}" for suffix in ("", "_low", "_high")),
    *("overlap_bound", *STAGES),
    *("trainer_idle", "rollout_idle"),
    *(f"staleness_{source}_{what}" for source in ("intra", "inter") for what in ("mean", "max")),
    "staleness_histogram",
    *("asked_threshold", "asked_interval", "slots", "partial_rollouts", "dropped_stale"),
    *("objective_share", "objective_seconds", "objective_seconds_keep_all"),
    *("mean_length", "length_skew"),
    *(f"modelled_{column}" for column in MODEL.values()),
    *("modelled_speedup", "run_id", "commit"),
]


def table2_efficiency(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table from throughput measurements; it has no use for a calibration of thresholds.

    Raises:
        UserError: there is no measurement, one cannot be read, or they are of several scales.
    """
    frame = efficiency_frame(measurements(folders), load_paper_values())
    write_table(frame, efficiency_views(frame), out_stem)


def measurements(folders: Sequence[Path]) -> list[Measurement]:
    """The measurements among the folders, in display order."""
    found = load_measurements(throughput_folders(folders))
    return sorted(found, key=lambda m: (task_order(m.task), order(m.label), m.record["seed"]))


def efficiency_frame(found: Sequence[Measurement], paper: PaperValues) -> pd.DataFrame:
    """A row per measurement. Seconds, response tokens per second and core, shares, versions.

    step_seconds_low and _high, speedup_low and _high: 95 % bootstrap over the measured updates (of both runs).
    speedup: mean step time of the task's synchronous run over this one's. overlap_bound: the gain of an ideal overlap
    of the run's own generation and training over an ideal sync, which keeps both cores busy; the measured does not.
    """
    sync = {m.task: m for m in found if m.label == REFERENCE}
    rows = [_row(m, sync.get(m.task), paper) for m in found]
    frame = pd.DataFrame(rows).reindex(columns=COLUMNS)
    modelled = frame[frame["label"] == REFERENCE].groupby("task")["modelled_step_seconds"].first()
    frame["modelled_speedup"] = frame["task"].map(modelled) / frame["modelled_step_seconds"]
    return frame


def bootstrap_means(measurement: Measurement) -> np.ndarray:
    """Mean step time of updates drawn with replacement, `[RESAMPLES]`."""
    seconds = measurement.step_seconds
    rng = np.random.default_rng([len(seconds), *measurement.run_id.encode()])
    return np.asarray(rng.choice(seconds, (RESAMPLES, len(seconds))).mean(axis=1))


def speedup_over(sync: Measurement, measurement: Measurement) -> tuple[float, float, float]:
    """Synchronous mean step time over this one, with its 95 % interval."""
    ratio = float(sync.step_seconds.mean() / measurement.step_seconds.mean())
    if sync is measurement:
        return ratio, ratio, ratio
    low, high = np.quantile(bootstrap_means(sync) / bootstrap_means(measurement), [0.025, 0.975])
    return ratio, float(low), float(high)


def paper_times(paper: PaperValues) -> tuple[float, float, float]:
    """Step time of synchronous training and of ESTR on DAPO-Math (seconds), and response tokens per update.

    Tokens: throughput times time times GPUs, the mean of the two runs.
    """

    def required(method: str, metric: str) -> float:
        value = _paper_value(paper, method, metric)
        if value is None:
            raise UserError(f"configs/paper/reported.csv: lacks {metric} of {method} in table2_efficiency")
        return value.value

    times = [required(method, "step_time") for method in (REFERENCE, "estr")]
    rates = [required(method, "throughput") for method in (REFERENCE, "estr")]
    return times[0], times[1], PAPER_GPUS * float(np.mean(np.multiply(times, rates)))


def _paper_value(paper: PaperValues, method: str, metric: str) -> PaperValue | None:
    first = paper.get("table2_efficiency", PAPER_TASK, method, metric)
    return first or paper.get("table4_efficiency", PAPER_TASK, method, metric)


def _row(m: Measurement, sync: Measurement | None, paper: PaperValues) -> dict[str, Any]:
    record, seconds = m.record, m.step_seconds
    settings, stages, objective = (record[name] for name in ("settings", "stages", "objective"))
    low, high = np.quantile(bootstrap_means(m), [0.025, 0.975])
    lengths = calibrate(m).lengths
    generate, train = float(stages["generate_seconds"]), float(stages["train_seconds"])
    row = {
        **{name: record[name] for name in ("scale", "task", "label", "mode", "cores", "commit")},
        **{name: record.get(name) for name in ("partial_rollouts", "dropped_stale")},
        **{name: float(stages[name]) for name in STAGES},
        "method": split_label(m.label)[0],
        "updates": len(seconds),
        "warmup_updates": settings["warmup_steps"],
        "throughput": record["tokens_per_second_per_core"],
        "step_seconds": seconds.mean(),
        "step_seconds_sd": seconds.std(ddof=1) if len(seconds) > 1 else np.nan,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "overlap_bound": np.nan if m.colocated else (generate + train) / max(generate, train) / m.record["cores"],
        "trainer_idle": record["trainer_idle_fraction"],
        "rollout_idle": record["rollout_idle_fraction"],
        **{f"staleness_{name}": record["staleness"][name] for name in ("intra_mean", "intra_max")},
        **{f"staleness_{name}": record["staleness"][name] for name in ("inter_mean", "inter_max")},
        "staleness_histogram": json.dumps(record["staleness"]["histogram"]),
        "asked_threshold": np.nan if m.colocated else settings["staleness_threshold"],
        "asked_interval": np.nan if m.colocated else settings["sync_interval"],
        "slots": settings["slots"],
        "objective_share": objective["share_of_step"],
        "objective_seconds": objective["seconds_rule"],
        "objective_seconds_keep_all": objective["seconds_keep_all"],
        "mean_length": lengths.mean,
        "length_skew": lengths.skew,
        "run_id": m.run_id,
    }
    if sync is not None:
        row |= dict(zip(("speedup", "speedup_low", "speedup_high"), speedup_over(sync, m), strict=True))
    row |= {f"modelled_{MODEL[c.quantity]}": c.modelled for c in compare(m, predict(m))}
    return row | _paper_columns(m, paper)


def _paper_columns(m: Measurement, paper: PaperValues) -> dict[str, Any]:
    if m.task != PAPER_TASK:
        return {}
    values = {metric: _paper_value(paper, m.label, metric) for metric in ("throughput", "step_time", "speedup")}
    step, reference, speedup = values["step_time"], _paper_value(paper, REFERENCE, "step_time"), values["speedup"]
    columns: dict[str, Any] = {
        "paper_throughput": values["throughput"].value if values["throughput"] else np.nan,
        "paper_step_seconds": step.value if step else np.nan,
        "paper_basis": step.provenance if step else None,
        "paper_speedup_derived": speedup is None,
    }
    if speedup:
        columns["paper_speedup"] = speedup.value
    elif step and reference:
        columns["paper_speedup"] = reference.value / step.value
    return columns


def efficiency_views(frame: pd.DataFrame) -> list[View]:
    """What was measured, beside the paper; how stale it was; the model against the measurement."""
    views = []
    for task, rows in frame.groupby("task", sort=False):
        views += [_measured(str(task), rows), _overlap(str(task), rows), _histogram(str(task), rows)]
        views.append(_model(str(task), rows))
    return views


def _measured(task: str, rows: pd.DataFrame) -> View:
    paper = task == PAPER_TASK
    headers = ["Method", "Tokens/s per core", "s/step", "Speedup"]
    groups = [("", 1), ("Measured", 3)]
    if paper:
        headers += ["Tokens/s per GPU", "s/step", "Speedup"]
        groups.append(("Paper", 3))
    headers += ["s/step", "Speedup"]
    groups.append(("Modelled", 2))
    cells = []
    for _, row in rows.iterrows():
        line = [display(row["label"]), number(row["throughput"], ".4g"), _seconds(row), _speedup(row)]
        if paper:
            line += [_reported(row, "throughput", ".2f"), _reported(row, "step_seconds", ".2f")]
            derived = row["paper_speedup_derived"] and not pd.isna(row["paper_speedup"])
            line.append(_reported(row, "speedup", ".3g") + (" ‡" if derived else ""))
        cells.append((*line, number(row["modelled_step_seconds"], ".4g"), number(row["modelled_speedup"], ".2f")))
    updates, cores = rows["updates"], rows["cores"].iloc[0]
    counts = f"{updates.min()}" if updates.min() == updates.max() else f"{updates.min()} to {updates.max()}"
    note = (
        f"Measured: {rows['scale'].iloc[0]} scale, all on the same {cores} cores, one measurement of {counts} updates "
        f"each; tokens are those that the policy wrote; mean ± standard deviation over updates, 95 % bootstrap over "
        "updates, which takes them as independent and says nothing of another day or machine. Sync generates and "
        f"trains on all {cores} cores in turn; the others generate on one half and train on the other at once. "
        "Modelled: the discrete-event model of this window, calibrated with the row's own stage times and lengths. "
    )
    if paper:
        lost = [display(method) for method in LOST if method not in set(rows["label"])]
        cells += [(name, *[EMPTY] * 3, *[NOT_REPORTED] * 3, *[EMPTY] * 2) for name in lost]
        note += (
            "Paper: 16 H800, Qwen2.5-7B, one run; M2PO's time from v2's prose; ‡ the quotient of two reported times. "
            f"{' and '.join(lost)} are rows of v2's Table 4 whose numbers the sources lost."
        )
    title = f"Table 2: efficiency on {task_name(task)}"
    return View(title, note.strip(), tuple(headers), tuple(cells), tuple(groups), section=task_name(task))


def _overlap(task: str, rows: pd.DataFrame) -> View:
    headers = (
        *("Method", "Generate (s)", "Train (s)", "Synchronize (s)", "Ideal overlap / ideal sync"),
        *("Trainer idle (%)", "Rollout idle (%)", "Asked: threshold, interval", "Measured intra, mean (max)"),
        *("Measured inter, mean (max)", "Resumed", "Objective, share of step (%)", "Objective: rule / keep all"),
    )
    cells = tuple(
        (
            display(row["label"]),
            *(number(row[name], ".3g") for name in STAGES),
            number(row["overlap_bound"], ".2f"),
            *(number(100 * row[name], ".1f") for name in ("trainer_idle", "rollout_idle")),
            EMPTY if pd.isna(row["asked_threshold"]) else f"{row['asked_threshold']:g}, {row['asked_interval']:g}",
            *(_staleness(row, source) for source in ("intra", "inter")),
            number(row["partial_rollouts"], ".0f"),
            number(100 * row["objective_share"], ".2f"),
            number(row["objective_seconds"] / row["objective_seconds_keep_all"], ".2f"),
        )
        for _, row in rows.iterrows()
    )
    note = (
        "Measured. Ideal overlap / ideal sync: (generate + train) / max(generate, train) of the row's own stage times, "
        "over the cores: the gain of an ideal overlap over a sync that keeps both cores busy. The measured sync wastes "
        "some of their time and a window may start with a filled queue, so a measured speedup may be larger. Idle: "
        "trainer waiting for responses, rollouts stopped by the staleness threshold; of sync, the share of the cores' "
        "time that is not used. Staleness in versions (Eq. 2), from the tokens' versions; asked in verl's terms. "
        "Resumed: responses that went on under new weights."
    )
    return View(f"{task_name(task)}: overlap and staleness", note, headers, cells, section=task_name(task))


def _histogram(task: str, rows: pd.DataFrame) -> View:
    """Shares of the trajectories by measured staleness."""
    counts = [
        (display(row["label"]), source.capitalize(), {int(version): n for version, n in shares.items()})
        for _, row in rows.iterrows()
        for source, shares in json.loads(row["staleness_histogram"]).items()
    ]
    versions = range(max(max(found) for *_, found in counts) + 1)
    cells = tuple(
        (
            method,
            source,
            *(number(100 * found[v] / sum(found.values()), ".1f") if v in found else EMPTY for v in versions),
        )
        for method, source, found in counts
    )
    note = (
        "Measured: percentage of the consumed trajectories by the versions that they span (intra) and from their last "
        "token to the update that uses them (inter)."
    )
    headers = ("Method", "Staleness", *map(str, versions))
    return View(f"{task_name(task)}: histogram of staleness", note, headers, cells, section=task_name(task))


def _model(task: str, rows: pd.DataFrame) -> View:
    quantities = (
        ("s/step", "step_seconds", 1, ".4g"),
        ("Tokens/s per core", "throughput", 1, ".4g"),
        ("Trainer idle (%)", "trainer_idle", 100, ".1f"),
        ("Rollout idle (%)", "rollout_idle", 100, ".1f"),
        ("Intra, mean", "staleness_intra_mean", 1, ".2f"),
        ("Inter, mean", "staleness_inter_mean", 1, ".2f"),
    )
    headers = ("Method", *(text for _ in quantities for text in ("Modelled", "Measured")))
    cells = tuple(
        (
            display(row["label"]),
            *(
                number(factor * row[f"{prefix}{column}"], spec)
                for _, column, factor, spec in quantities
                for prefix in ("modelled_", "")
            ),
        )
        for _, row in rows.iterrows()
    )
    note = (
        "Modelled: the same window, warm-up included, mean over five simulations. The model knows how long generation, "
        "training and synchronization took when they were not waiting, and how long responses were. For sync the time "
        "per update is little more than their sum; for the others it is what overlap makes of them."
    )
    groups = (("", 1), *((name, 2) for name, *_ in quantities))
    title = f"{task_name(task)}: model against measurement"
    return View(title, note, headers, cells, groups, section=task_name(task))


def _seconds(row: pd.Series) -> str:
    """``mean ± sd [low, high]``."""
    text = number(row["step_seconds"], ".3g")
    if pd.notna(row["step_seconds_sd"]):
        text += f" ± {row['step_seconds_sd']:.2g}"
    return f"{text} [{row['step_seconds_low']:.3g}, {row['step_seconds_high']:.3g}]"


def _speedup(row: pd.Series) -> str:
    if pd.isna(row["speedup"]) or row["label"] == REFERENCE:
        return number(row["speedup"], ".2f")
    return f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def _reported(row: pd.Series, column: str, spec: str) -> str:
    """The paper's number; `NOT_REPORTED` where its sources have none."""
    text = number(row[f"paper_{column}"], spec)
    return NOT_REPORTED if text == EMPTY else text


def _staleness(row: pd.Series, source: str) -> str:
    return f"{row[f'staleness_{source}_mean']:.2f} ({row[f'staleness_{source}_max']:g})"
