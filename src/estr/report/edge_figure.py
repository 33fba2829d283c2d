"""Stability edge: final reward of vanilla async against learning rate, one line per staleness."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from estr.errors import UserError
from estr.report import style

COLUMNS = (
    "method",
    "learning_rate",
    "intra",
    "inter",
    "seed",
    "reward_first",
    "reward_max",
    "reward_last",
    "collapsed",
)
LINES = (
    ("#0072B2", "o"),
    ("#E69F00", "^"),
    ("#009E73", "D"),
    ("#CC79A7", "v"),
    ("#000000", "s"),
    ("#D55E00", "P"),
)


def stability_edge(csv: Path, out_stem: Path, scale: str, engine: str) -> None:
    """Draw the edge scan; a cross marks a run that collapsed, the small dots are its seeds.

    csv: one row per run with COLUMNS (learning_rate per step, intra and inter in versions, rewards 0..1,
    collapsed 0/1).

    Raises:
        UserError: the file is missing, unreadable or lacks columns, or holds no async run.
    """
    scan = load_scan(csv)
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
        style.add_footer(fig, f"{scale} scale · {seeds_text} {plural} · {engine} engine")
        style.save(fig, out_stem)


def load_scan(csv: Path) -> pd.DataFrame:
    """The vanilla async rows of the scan."""
    try:
        scan = pd.read_csv(csv)
    except (OSError, ValueError) as error:
        raise UserError(f"{csv}: cannot be read as CSV; make the scan again") from error
    missing = [column for column in COLUMNS if column not in scan]
    if missing:
        raise UserError(f"{csv}: lacks the columns {', '.join(missing)}")
    scan = scan[scan["method"] == "async"]
    if scan.empty:
        raise UserError(f"{csv}: holds no run of vanilla async")
    return scan


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
