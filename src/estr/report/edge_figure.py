"""Stability edge: where vanilla async collapses, over learning rate and staleness (not in the paper)."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from estr.algorithm.collapse import WINDOW, detect_collapse
from estr.errors import UserError
from estr.report import style
from estr.report.runs import FIRST_STEPS, RunResult, by_task, load_runs

PROBE = "probe_estr_masked_fraction"
LINES = (
    ("#0072B2", "o"),
    ("#E69F00", "^"),
    ("#009E73", "D"),
    ("#CC79A7", "v"),
    ("#000000", "s"),
    ("#D55E00", "P"),
)


def stability_edge(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Draw final reward against learning rate, a line per staleness; a cross marks a setting that collapsed.

    Only runs of the longest length given are drawn.

    Raises:
        UserError: a run is unreadable, or there is no async run.
    """
    runs = load_runs(run_dirs)
    scan = edge_scan(runs)
    scan = scan[(scan["method"] == "async") & (scan["steps"] == scan["steps"].max())]
    if scan.empty:
        raise UserError("the stability edge needs runs of vanilla async")
    data = edge_data(scan)
    style.save_data(data, out_stem)
    with style.look():
        fig, ax = plt.subplots(figsize=(style.SINGLE, 2.7))
        groups = data.groupby(["intra", "inter"])
        for (colour, marker), ((intra, inter), line) in zip(LINES * len(groups), groups, strict=False):
            seeds = scan[(scan["intra"] == intra) & (scan["inter"] == inter)]
            ax.scatter(seeds["learning_rate"], seeds["reward_last"], s=5, color=colour, alpha=0.4, linewidths=0)
            ax.plot(
                line["learning_rate"],
                line["reward_last"],
                color=colour,
                marker=marker,
                label=f"intra {intra}, inter {inter}",
            )
            fallen = line[line["collapsed_share"] > 0.5]
            ax.scatter(
                fallen["learning_rate"],
                fallen["reward_last"],
                s=55,
                marker="x",
                color=colour,
                linewidths=1,
                zorder=4,
            )
        start = data["reward_first"].mean()
        ax.axhline(start, color=style.MUTED, linewidth=0.8, linestyle=":", label="reward at the start")
        ax.scatter([], [], s=40, marker="x", color=style.MUTED, linewidths=1, label="most seeds collapsed")
        ax.set_xscale("log")
        ax.set_ylim(bottom=0)
        ax.set_xlabel("learning rate")
        ax.set_ylabel("final reward, vanilla async")
        fig.legend(loc="outside upper center", ncols=2)
        counts = data["n_seeds"]
        seeds_text = f"{counts.min()}-{counts.max()}" if counts.min() < counts.max() else f"{counts.max()}"
        plural = "seed" if counts.max() == 1 else "seeds"
        style.add_footer(fig, f"{runs[0].scale} scale · {seeds_text} {plural} · {runs[0].engine} engine")
        style.save(fig, out_stem)


def edge_scan(runs: Sequence[RunResult]) -> pd.DataFrame:
    """One row per run: settings, ESTR's masked fraction as a diagnostic, rewards (0..1), and whether it collapsed.

    `reward_first` is that of the first step, sampled by the warm start; `reward_max` and `reward_last` are the highest
    and the last mean over `WINDOW` steps. `detect_collapse` says what collapsed means.

    Raises:
        UserError: runs of several tasks, or one that lacks the diagnostic.
    """
    tasks = list(by_task(runs))
    if len(tasks) > 1:
        raise UserError(f"the stability edge compares the runs of one task, got {', '.join(tasks)}")
    rows = []
    for run in runs:
        if PROBE not in run.metrics:
            raise UserError(f"{run.path / 'metrics.parquet'}: lacks the column {PROBE}")
        smooth = run.metrics["reward"].rolling(WINDOW).mean().dropna()
        masked = run.metrics[PROBE][:FIRST_STEPS]
        rows.append(
            {
                "run_id": run.run_id,
                "method": run.method,
                "learning_rate": run.config["train"]["learning_rate"],
                "intra": run.config["staleness"]["intra"],
                "inter": run.config["staleness"]["inter"],
                "seed": run.seed,
                "steps": run.steps,
                "estr_would_mask_percent_first50": 100 * masked.mean(),
                "reward_first": run.metrics["reward"].iloc[0],
                "reward_max": smooth.max(),
                "reward_last": smooth.iloc[-1],
                "collapsed": int(detect_collapse(run.metrics["reward"].tolist()) is not None),
            }
        )
    return pd.DataFrame(rows)


def edge_data(scan: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds per (intra, inter, learning_rate), with the share of seeds that collapsed."""
    return (
        scan.groupby(["intra", "inter", "learning_rate"])
        .agg(
            n_seeds=("seed", "nunique"),
            reward_first=("reward_first", "mean"),
            reward_max=("reward_max", "mean"),
            reward_last=("reward_last", "mean"),
            collapsed_share=("collapsed", "mean"),
        )
        .reset_index()
    )
