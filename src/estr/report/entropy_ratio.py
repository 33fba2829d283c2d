"""Figure 1: log-ratio against entropy per token, with the entropy-scaled and a fixed boundary, a panel per task."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import FixedLocator

from estr.algorithm.rules import EntropyScaled, FixedMagnitude
from estr.report import style
from estr.report.labels import task_name
from estr.report.tokens import entropy_rule, read_tokens, source_line, token_runs

FLOOR = 1e-4  # nats; smaller |delta| is drawn here
ENTROPY_BINS = 24
MIN_BIN_TOKENS = 30
GRID = (70, 50)  # density cells over entropy and over log |delta|
ENTROPY_TICKS = (0, 0.01, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 10)
POINT_SERIES = {
    "estr_only": ("masked by ESTR only", style.RED),
    "fixed_only": ("masked by fixed only", style.BLUE),
    "both": ("masked by both", style.INK),
}


def fig01_entropy_ratio(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """|delta| against entropy, the entropy-scaled boundary, and the fixed one that masks as many tokens."""
    chosen = token_runs(run_dirs)
    parts = []
    for task, runs in chosen.items():
        part = entropy_ratio_data(read_tokens(runs), entropy_rule(runs[0]))
        part.insert(0, "task", task)
        parts.append(part)
    data = pd.concat(parts, ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = plt.subplots(len(chosen), 1, figsize=(style.DOUBLE, 1.0 + 2.2 * len(chosen)), squeeze=False)
        for ax, (task, runs) in zip(axes[:, 0], chosen.items(), strict=True):
            _draw(ax, data[data["task"] == task])
            ax.set_title(f"{task_name(task)}, τ = {entropy_rule(runs[0]).tau:g}", loc="left", fontweight="bold")
            ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=2.5)
        axes[-1, 0].set_xlabel("token entropy H (nats, square-root axis)")
        all_runs = [run for runs in chosen.values() for run in runs]
        style.add_footer(fig, f"{style.scale_line(all_runs)} · {source_line(chosen)}")
        style.save(fig, out_stem)


def entropy_ratio_data(tokens: pd.DataFrame, rule: EntropyScaled) -> pd.DataFrame:
    """Everything that Fig. 1 shows: columns series, entropy, log_ratio_abs (both nats), count.

    series: kept_by_both (lower corner of a density cell), estr_only / fixed_only / both (one row per masked
    token), bin_mean (per-bin means of H and |delta|, bins of at least MIN_BIN_TOKENS tokens), boundary_estr,
    boundary_fixed. Cells and bins are equally wide in sqrt(H), as the figure's axis is. The fixed threshold c
    is the largest |delta| that leaves no more tokens above it than the entropy rule masks.
    """
    entropy, size = tokens["entropy"].to_numpy(np.float64), tokens["log_ratio"].abs().to_numpy(np.float64)
    estr_masks = size > _upper(rule, entropy)
    fixed = FixedMagnitude(c=float(np.sort(size)[len(size) - 1 - estr_masks.sum()]))
    fixed_masks = size > fixed.c
    top = max(float(entropy.max()), 1e-3)

    kept = ~estr_masks & ~fixed_masks
    x_edges = np.linspace(0, np.sqrt(top), GRID[0] + 1) ** 2
    y_edges = np.geomspace(FLOOR, max(float(size.max()), 10 * FLOOR) * 1.001, GRID[1] + 1)
    counts, *_ = np.histogram2d(entropy[kept], size[kept].clip(min=FLOOR), bins=(x_edges, y_edges))
    x, y = np.meshgrid(x_edges[:-1], y_edges[:-1], indexing="ij")
    parts = [_series("kept_by_both", x.ravel(), y.ravel(), counts.ravel().astype(int))]

    for name, chosen in (
        ("estr_only", estr_masks & ~fixed_masks),
        ("fixed_only", fixed_masks & ~estr_masks),
        ("both", estr_masks & fixed_masks),
    ):
        parts.append(_series(name, entropy[chosen], size[chosen], np.ones(chosen.sum(), int)))

    edges = np.linspace(0, np.sqrt(top), ENTROPY_BINS + 1) ** 2
    index = np.digitize(entropy, edges[1:-1])
    number = np.bincount(index, minlength=ENTROPY_BINS)
    enough = number >= MIN_BIN_TOKENS
    mean_entropy, mean = (
        np.bincount(index, weights=values, minlength=ENTROPY_BINS)[enough] / number[enough]
        for values in (entropy, size)
    )
    parts.append(_series("bin_mean", mean_entropy, mean, number[enough]))

    line = np.linspace(0, np.sqrt(top), 200) ** 2
    for name, boundary in (("boundary_estr", rule), ("boundary_fixed", fixed)):
        parts.append(_series(name, line, _upper(boundary, line), np.zeros(len(line), int)))
    return pd.concat(parts, ignore_index=True)


def _draw(ax: Axes, data: pd.DataFrame) -> None:
    series = dict(list(data.groupby("series")))
    density = series["kept_by_both"].pivot(index="log_ratio_abs", columns="entropy", values="count")
    counts = np.ma.masked_less(density.to_numpy(), 1)
    ax.pcolormesh(
        _next_edge(density.columns.to_numpy(), np.sqrt, np.square),
        _next_edge(density.index.to_numpy(), np.log, np.exp),
        counts,
        cmap=LinearSegmentedColormap.from_list("kept", ["#EDEDED", "#8C8C8C"]),
        norm=LogNorm(1, max(2, density.to_numpy().max())),
        rasterized=True,
    )
    ax.plot([], [], "s", color="#B0B0B0", markersize=2, label="kept by both (density)")
    for name, (label, colour) in POINT_SERIES.items():
        points = series.get(name)
        if points is not None:
            height = points["log_ratio_abs"].clip(lower=FLOOR)
            ax.scatter(points["entropy"], height, s=3, c=colour, alpha=0.6, linewidths=0, rasterized=True)
        ax.plot(
            [],
            [],
            "o",
            color=colour,
            markersize=1.6,
            label=f"{label} ({0 if points is None else len(points):,})",
        )
    bins = series.get("bin_mean")
    if bins is not None:
        ax.plot(
            bins["entropy"],
            bins["log_ratio_abs"],
            color=style.PURPLE,
            linewidth=1.5,
            marker="o",
            markersize=2.5,
        )
    ax.plot([], [], color=style.PURPLE, linewidth=1.5, label="mean |δ| per entropy bin")
    fixed = series["boundary_fixed"]
    ax.plot(series["boundary_estr"]["entropy"], series["boundary_estr"]["log_ratio_abs"], color=style.INK)
    ax.plot([], [], color=style.INK, label="entropy-scaled boundary")
    ax.plot(fixed["entropy"], fixed["log_ratio_abs"], color=style.INK, linestyle="--")
    ax.plot([], [], color=style.INK, linestyle="--", label="fixed boundary, equal budget")
    ax.set_yscale("log")
    ax.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    ax.xaxis.set_major_locator(FixedLocator(ENTROPY_TICKS))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlim(0, 1.02 * fixed["entropy"].max())
    ax.set_ylim(FLOOR, 1.5 * data["log_ratio_abs"].max())
    ax.grid(False)
    ax.set_ylabel("|δ| (nats)")


def _next_edge(edges: np.ndarray, scale: np.ufunc, back: np.ufunc) -> np.ndarray:
    """Lower edges, equally spaced on `scale`, with the upper edge of the last cell added."""
    scaled = scale(edges)
    return np.append(edges, back(2 * scaled[-1] - scaled[-2]))


def _upper(rule: EntropyScaled | FixedMagnitude, entropy: np.ndarray) -> np.ndarray:
    return rule.boundary(torch.tensor(entropy))[1].numpy()


def _series(name: str, entropy: np.ndarray, size: np.ndarray, count: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"series": name, "entropy": entropy, "log_ratio_abs": size, "count": count})
