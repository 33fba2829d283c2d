"""Figures of single tokens: log-ratio against entropy (Fig. 1) and around version switches (Fig. 3).

Both read the sampled tokens of the ESTR runs, or of vanilla async where no ESTR run is given. Tokens with
non-finite signals are left out.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import FixedLocator, MaxNLocator

from estr.algorithm.rules import EntropyScaled, FixedMagnitude, build_rule
from estr.errors import UserError
from estr.report import style
from estr.report.labels import display
from estr.report.runs import RunResult, load_runs

FLOOR = 1e-4  # nats; smaller |delta| is drawn here
ENTROPY_BINS = 24
MIN_BIN_TOKENS = 30
GRID = (70, 50)  # density cells over entropy and over log |delta|
OFFSETS = range(-10, 11)
RARE_OFFSET = 0.1  # offsets with fewer steps than this share of the most frequent one are not drawn
POINT_SERIES = {
    "estr_only": ("masked by ESTR only", style.RED),
    "fixed_only": ("masked by fixed only", style.BLUE),
    "both": ("masked by both", style.INK),
}


def fig01_entropy_ratio(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """|delta| against entropy, the entropy-scaled boundary, and the fixed one that masks as many tokens."""
    runs = _token_runs(run_dirs)
    data = entropy_ratio_data(pd.concat([_tokens(run) for run in runs]), _entropy_rule(runs[0]))
    style.save_data(data, out_stem)
    with style.look():
        fig, ax = plt.subplots(figsize=(style.DOUBLE, 3.2))
        _draw_entropy_ratio(ax, data)
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=2.5)
        style.add_footer(fig, f"{style.scale_line(runs)} · tokens of {display(runs[0].label)}")
        style.save(fig, out_stem)


def fig03_version_switch(run_dirs: Sequence[Path], out_stem: Path) -> None:
    """Position-matched entropy, |delta| and |z| against the offset to the nearest version switch, 95 % bands."""
    runs = _token_runs(run_dirs)
    data = switch_data(pd.concat([_tokens(run) for run in runs]), _entropy_rule(runs[0]).eps)
    if data.empty:
        raise UserError(f"{runs[0].path / 'tokens.parquet'}: no sampled sequence switches version; nothing to draw")
    style.save_data(data, out_stem)
    panels = {
        "entropy": ("entropy H (nats)", style.PURPLE),
        "log_ratio_abs": ("|δ| (nats)", style.RED),
        "z_abs": ("|z| = |δ| / √(H + ε)", style.BLUE),
    }
    with style.look():
        fig, axes = plt.subplots(1, 3, figsize=(style.DOUBLE, 2.3))
        for ax, (quantity, (label, colour)) in zip(axes, panels.items(), strict=True):
            curve = data[data["quantity"] == quantity]
            ax.axvline(0, color=style.MUTED, linewidth=0.8, linestyle=":")
            ax.fill_between(curve["offset"], curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
            ax.plot(curve["offset"], curve["mean"], color=colour, marker="o", markersize=3)
            ax.set_ylim(bottom=0)
            ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
            ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
            ax.set_ylabel(label)
            ax.set_xlabel("tokens from version switch")
        style.add_footer(
            fig, f"{style.scale_line(runs)} · tokens of {display(runs[0].label)} · position-matched · 95 % bands"
        )
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


def switch_data(tokens: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Position-matched means around version switches: columns quantity, offset, mean, low, high, n_tokens, n_steps.

    What stands at a position matters more than a switch: half of a chain's tokens are certain. So the mean at an
    offset is the overall mean times the ratio of what its tokens sum to and what they would sum to if each had the
    mean of its position. Steps in which staleness still ramps up are left out, and
    offsets that occur in few steps. The 95 % band is clustered by step,
    whose sequences switch at the same positions; NaN where a single step holds all tokens of an offset.
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
        expected = values.groupby(settled["position"]).transform("mean")
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


def _draw_entropy_ratio(ax: Axes, data: pd.DataFrame) -> None:
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
    ax.xaxis.set_major_locator(FixedLocator([0, 0.01, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 10]))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlim(0, 1.02 * fixed["entropy"].max())
    ax.set_ylim(FLOOR, 1.5 * data["log_ratio_abs"].max())
    ax.grid(False)
    ax.set_xlabel("token entropy H (nats, square-root axis)")
    ax.set_ylabel("|δ| (nats)")


def _next_edge(edges: np.ndarray, scale: np.ufunc, back: np.ufunc) -> np.ndarray:
    """Lower edges, equally spaced on `scale`, with the upper edge of the last cell added."""
    scaled = scale(edges)
    return np.append(edges, back(2 * scaled[-1] - scaled[-2]))


def _token_runs(run_dirs: Sequence[Path]) -> list[RunResult]:
    runs = load_runs(run_dirs)
    for label in ("estr", "async"):
        chosen = [run for run in runs if run.label == label]
        if chosen:
            return chosen
    raise UserError("the token figures need runs of estr or async, none was given")


def _tokens(run: RunResult) -> pd.DataFrame:
    tokens = run.read_tokens()
    finite = np.isfinite(tokens[["log_ratio", "entropy"]]).all(axis=1)
    if not finite.any():
        raise UserError(f"{run.path / 'tokens.parquet'}: holds no token with finite signals")
    return tokens[finite].assign(run=run.run_id)


def _entropy_rule(run: RunResult) -> EntropyScaled:
    """The run's own entropy-scaled rule; the published one (tau 1.6) for a run that keeps everything."""
    if run.rule["name"] != EntropyScaled.name:
        return EntropyScaled()
    rule = build_rule(**run.rule)
    assert isinstance(rule, EntropyScaled)
    return rule


def _upper(rule: EntropyScaled | FixedMagnitude, entropy: np.ndarray) -> np.ndarray:
    return rule.boundary(torch.tensor(entropy))[1].numpy()


def _series(name: str, entropy: np.ndarray, size: np.ndarray, count: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"series": name, "entropy": entropy, "log_ratio_abs": size, "count": count})
