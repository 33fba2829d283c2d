"""Figure 1b (beyond the paper): the two regimes behind Figure 1, a row of panels per source.

Left the bulk: second moment of the log-ratio per entropy bin, with the line a_B H (Eqs. 1, 28). Right the tail:
off-mode tokens at low entropy, with the arc of Eq. 34.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from estr.report import style
from estr.report.entropy_ratio import upper_bound
from estr.report.scaling_fit import (
    OFF_MODE_ENTROPY,
    binned,
    bulk_bins,
    bulk_edges,
    envelope,
    envelope_factor,
    off_mode,
    second_moment_fit,
)
from estr.report.token_plane import (
    FLOOR,
    LINE_POINTS,
    chosen_points,
    density,
    draw_density,
    draw_points,
    head,
    magnitude_edges,
    name_panel,
    of_source,
)
from estr.report.tokens import TokenSource, foot, masked_by, token_sources

GRID = (40, 40)  # density cells over H and over log |delta|
ROW_HEIGHT = 1.75  # inches
TAIL = {
    "off_mode_kept": ("off-mode token, kept by ESTR", style.BLUE),
    "off_mode_masked": ("off-mode token, masked by ESTR", style.RED),
}


def fig01b_bulk_and_tail(folders: Sequence[Path], out_stem: Path) -> None:
    """Second moment against entropy in the bulk with its line, and the low-entropy tail with its arc."""
    sources = token_sources(folders)
    data = pd.concat([bulk_and_tail_data(source) for source in sources], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        size = (style.DOUBLE, 1.2 + ROW_HEIGHT * len(sources))
        fig, axes = plt.subplots(len(sources), 2, figsize=size, squeeze=False)
        for (left, right), source in zip(axes, sources, strict=True):
            rows = data[data["task"] == source.key]
            _draw_bulk(left, rows)
            _draw_tail(right, rows)
            name_panel(left, source)
        axes[-1, 0].set_xlabel("mean token entropy of the bin (nats)")
        axes[-1, 1].set_xlabel("token entropy H (nats)")
        fig.legend(handles=_handles(), loc="outside upper center", ncols=4)
        style.add_footer(fig, foot(sources))
        style.save(fig, out_stem)


def bulk_and_tail_data(source: TokenSource) -> pd.DataFrame:
    """What is drawn of a source: columns task, title, series, entropy (nats), value, count.

    series: bulk_bin and, of each run alone, run_bin (mean H and E[delta^2] of `bulk_bins`); bulk_line; fit (entropy
    empty; value a_B in 1/nats), r_squared; confident (cells of all tokens at H < 0.05; value |delta|), off_mode_kept
    and off_mode_masked (points), all_off_mode_kept and all_off_mode_masked (their numbers), arc, arc_factor,
    boundary_estr.
    """
    tokens = source.tokens
    parts = [_bins(bulk_bins(tokens), "bulk_bin")]
    if tokens["run"].nunique() > 1:
        edges = bulk_edges(tokens)
        parts += [_bins(binned(rows, edges), "run_bin") for _, rows in tokens.groupby("run")]
    fit = second_moment_fit(tokens)
    if np.isfinite(fit.coefficient):
        line = np.array([0, parts[0]["entropy"].max()])
        parts.append(_line("bulk_line", line, fit.coefficient * line))
    parts += [_number("fit", fit.coefficient), _number("r_squared", fit.r_squared)]

    confident = tokens[tokens["entropy"] < OFF_MODE_ENTROPY]
    if not confident.empty:
        values = _plane(confident)
        edges = np.linspace(min(0.0, values["entropy"].min()), OFF_MODE_ENTROPY, GRID[0] + 1)
        heights = magnitude_edges(values["value"].to_numpy(), GRID[1])
        parts.append(density(values, (edges, heights)).assign(series="confident"))
    tail = off_mode(tokens)
    masked = masked_by(source.rule, tail) if len(tail) else np.zeros(0, bool)
    for name, rows in (("off_mode_kept", tail[~masked]), ("off_mode_masked", tail[masked])):
        parts.append(chosen_points(_plane(rows)).assign(series=name))
        parts.append(_number(f"all_{name}", np.nan, len(rows)))
    factor = envelope_factor(tokens)
    line = np.linspace(0, np.sqrt(OFF_MODE_ENTROPY), LINE_POINTS)[1:] ** 2
    parts.append(_number("arc_factor", factor))
    if np.isfinite(factor):
        parts.append(_line("arc", line, factor * envelope(line)))
    parts.append(_line("boundary_estr", line, upper_bound(source.rule, line)))
    return of_source(source, parts)


def _plane(tokens: pd.DataFrame) -> pd.DataFrame:
    size = tokens["log_ratio"].abs().clip(lower=FLOOR)
    return pd.DataFrame({"entropy": tokens["entropy"], "value": size}, dtype=np.float64)


def _bins(bins: pd.DataFrame, series: str) -> pd.DataFrame:
    named = bins.rename(columns={"mean_entropy": "entropy", "second_moment": "value"})
    chosen: pd.DataFrame = named[["entropy", "value", "count"]].assign(series=series)
    return chosen


def _line(series: str, entropy: np.ndarray, value: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"series": series, "entropy": entropy, "value": value, "count": 0})


def _number(series: str, value: float, count: int = 0) -> pd.DataFrame:
    return pd.DataFrame({"series": [series], "entropy": np.nan, "value": value, "count": count})


def _draw_bulk(ax: Axes, data: pd.DataFrame) -> None:
    series = dict(list(data.groupby("series")))
    if "run_bin" in series:
        runs = series["run_bin"]
        ax.plot(runs["entropy"], runs["value"], color=style.PURPLE, marker=".", linestyle="", markersize=2.5, alpha=0.4)
    if "bulk_bin" in series:
        bins = series["bulk_bin"]
        ax.plot(bins["entropy"], bins["value"], color=style.PURPLE, marker="o", linestyle="", markersize=3.5)
    if "bulk_line" in series:
        ax.plot(series["bulk_line"]["entropy"], series["bulk_line"]["value"], color=style.INK)
        coefficient, r_squared = series["fit"]["value"].iloc[0], series["r_squared"]["value"].iloc[0]
        text = f"a = {coefficient:.3g} / nat\nR² = {r_squared:.2f}"
    else:
        text = "too few bins to fit a line"
    ax.text(0.03, 0.95, text, transform=ax.transAxes, va="top")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("E[δ²] (nats²)")


def _draw_tail(ax: Axes, data: pd.DataFrame) -> None:
    series = dict(list(data.groupby("series")))
    if "confident" in series:
        draw_density(ax, series["confident"], "entropy", "value")
    for name, (_, colour) in TAIL.items():
        if name in series:
            draw_points(ax, series[name], "entropy", "value", colour, size=7)
    ax.plot(series["boundary_estr"]["entropy"], series["boundary_estr"]["value"], color=style.INK)
    if "arc" in series:
        ax.plot(series["arc"]["entropy"], series["arc"]["value"], color=style.INK, linestyle="--")
    kept, masked = (series[f"all_{name}"]["count"].iloc[0] for name in TAIL)
    head(ax, "", f"{kept + masked:,} off-mode tokens, {masked:,} masked by ESTR")
    ax.set_yscale("log")
    ax.set_xlim(0, OFF_MODE_ENTROPY)
    drawn = data[data["series"].isin([*TAIL, "boundary_estr", "confident"])]
    ax.set_ylim(FLOOR, 2 * drawn["value"].max())
    ax.grid(False)
    ax.set_ylabel("|δ| (nats)")


def _handles() -> list[Line2D | Patch]:
    dots: list[Line2D | Patch] = [
        Line2D([], [], color=style.PURPLE, marker="o", linestyle="", markersize=3.5, label="entropy bin"),
        Line2D([], [], color=style.PURPLE, marker=".", linestyle="", markersize=2.5, alpha=0.5, label="of one run"),
        Line2D([], [], color=style.INK, label="left: a H; right: ESTR's boundary"),
        Line2D([], [], color=style.INK, linestyle="--", label="arc of Eq. 34, scaled"),
        Patch(color="#B0B0B0", label="tokens at H < 0.05 (density)"),
    ]
    tail = [Line2D([], [], color=c, marker="o", linestyle="", markersize=3, label=label) for label, c in TAIL.values()]
    return [*dots, *tail]
