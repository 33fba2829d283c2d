"""Figure 3: entropy, |delta| and |z| around version switches, a row of panels per task."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from estr.errors import UserError
from estr.report import style
from estr.report.labels import task_name
from estr.report.tokens import entropy_rule, read_tokens, source_line, token_runs

OFFSETS = range(-10, 11)
RARE_OFFSET = 0.1  # offsets with fewer steps than this share of the most frequent one are not drawn
QUANTITIES = {
    "entropy": ("entropy H (nats)", style.PURPLE),
    "log_ratio_abs": ("|δ| (nats)", style.RED),
    "z_abs": ("|z| = |δ| / √(H + ε)", style.BLUE),
}


def fig03_version_switch(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Position-matched entropy, |delta| and |z| against the offset to the nearest version switch, 95 % bands.

    A task in whose sampled sequences no version switches has no row; the figure's foot names it.
    """
    chosen = token_runs(run_dirs)
    parts = {task: switch_data(read_tokens(runs), entropy_rule(runs[0]).eps) for task, runs in chosen.items()}
    drawn = {task: runs for task, runs in chosen.items() if not parts[task].empty}
    if not drawn:
        path = next(iter(chosen.values()))[0].path / "tokens.parquet"
        raise UserError(f"{path}: no sampled sequence switches version; nothing to draw")
    for task, part in parts.items():
        part.insert(0, "task", task)
    data = pd.concat([parts[task] for task in drawn], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = plt.subplots(
            len(drawn), len(QUANTITIES), figsize=(style.DOUBLE, 0.7 + 1.6 * len(drawn)), squeeze=False
        )
        for row, task in enumerate(drawn):
            for ax, (quantity, (label, colour)) in zip(axes[row], QUANTITIES.items(), strict=True):
                curve = data[(data["task"] == task) & (data["quantity"] == quantity)]
                ax.axvline(0, color=style.MUTED, linewidth=0.8, linestyle=":")
                ax.fill_between(curve["offset"], curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
                ax.plot(curve["offset"], curve["mean"], color=colour, marker="o", markersize=3)
                ax.set_ylim(bottom=0)
                ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
                ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
                ax.set_ylabel(label)
            axes[row, 0].set_title(task_name(task), loc="left", fontweight="bold")
        for ax in axes[-1]:
            ax.set_xlabel("tokens from version switch")
        runs = [run for chosen_runs in drawn.values() for run in chosen_runs]
        foot = f"{style.scale_line(runs)} · {source_line(drawn)} · position-matched · 95 % bands"
        absent = [task_name(task) for task in chosen if task not in drawn]
        style.add_footer(fig, f"{foot} · no version switch sampled: {', '.join(absent)}" if absent else foot)
        style.save(fig, out_stem)


def switch_data(tokens: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Position-matched means around version switches: columns quantity, offset, mean, low, high, n_tokens, n_steps.

    What stands at a position matters more than a switch: half of a chain's tokens are certain. So the mean at an
    offset is the overall mean times the ratio of what its tokens sum to and what they would sum to if each had the
    mean of its position. In a dialogue a position is the turn and the place in it, since tool output of any length
    may lie before it; offsets count response tokens, so that a switch between two turns has its last token before in
    one and its first after in the other. Steps in which staleness still ramps up are left out, and offsets that occur
    in few steps. The 95 % band is clustered by step, whose sequences switch at the same positions; NaN where a single
    step holds all tokens of an offset.
    """
    spans = tokens.groupby(["run", "step"])["weight_version"].agg(lambda versions: versions.max() - versions.min())
    full = spans[spans == spans.max()].index
    settled = tokens.set_index(["run", "step"]).loc[full].reset_index()
    size = settled["log_ratio"].abs()
    quantities = {
        "entropy": settled["entropy"],
        "log_ratio_abs": size,
        "z_abs": size / np.sqrt(settled["entropy"].clip(lower=0) + eps),
    }
    near = settled["switch_offset"].isin(OFFSETS)
    keys = [settled["switch_offset"].rename("offset"), settled["run"], settled["step"]]
    parts = []
    for name, column in quantities.items():
        values = column.astype(np.float64)
        overall = values.mean()
        expected = values.groupby([settled["turn"], settled["place"]]).transform("mean")
        sums = pd.DataFrame({"observed": values, "expected": expected, "n": 1})[near].groupby(keys).sum()
        groups = dict(list(sums.groupby("offset")))
        most = max(map(len, groups.values()), default=0)
        for offset, steps in groups.items():
            total = steps["expected"].sum()
            if total == 0 or len(steps) < RARE_OFFSET * most:
                continue
            ratio = steps["observed"].sum() / total
            residual = ((steps["observed"] - ratio * steps["expected"]) ** 2).sum()
            spread = len(steps) / (len(steps) - 1) if len(steps) > 1 else np.nan
            mean, half = overall * ratio, 1.96 * overall * np.sqrt(spread * residual) / total
            parts.append((name, offset, mean, mean - half, mean + half, int(steps["n"].sum()), len(steps)))
    columns = ["quantity", "offset", "mean", "low", "high", "n_tokens", "n_steps"]
    return pd.DataFrame(parts, columns=columns)
