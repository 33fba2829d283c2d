"""Figure 10: signed log-ratio against entropy, with mean and root mean square per bin, a panel per source."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from estr.algorithm.rules import FixedMagnitude
from estr.report import style
from estr.report.entropy_ratio import upper_bound
from estr.report.scaling_fit import entropy_bins
from estr.report.token_plane import (
    LINE_POINTS,
    draw_masked,
    entropy_axis,
    masked_handles,
    masked_series,
    name_panel,
    of_source,
    panels,
    root_edges,
)
from estr.report.tokens import TokenSource, at_equal_budget, foot, masked_by, token_sources

GRID = (54, 51)  # density cells over sqrt(H) and over asinh(delta / LINEAR); odd, so that one is centred at 0
LINEAR = 0.02  # nats; the vertical axis is linear below and logarithmic above


def fig10_signed_deviation(folders: Sequence[Path], out_stem: Path) -> None:
    """delta against entropy: symmetric about zero or not, and what a fixed threshold keeps."""
    sources = token_sources(folders)
    data = pd.concat([signed_deviation_data(source) for source in sources], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = panels(sources)
        for ax, source in zip(axes, sources, strict=True):
            _draw(ax, data[data["task"] == source.key])
            name_panel(ax, source)
            ax.set_xlabel("token entropy H (nats, square-root axis)")
            ax.set_ylabel("δ (nats)")
        lines = [
            Line2D([], [], color=style.PURPLE, marker="o", markersize=2.5, label="mean δ per entropy bin"),
            Line2D([], [], color=style.PURPLE, linestyle=":", label="± RMS δ per entropy bin"),
            Line2D([], [], color=style.INK, label="entropy-scaled boundary"),
            Line2D([], [], color=style.INK, linestyle="--", label="fixed boundary, equal budget"),
        ]
        fig.legend(handles=[*masked_handles(), *lines], loc="outside upper center", ncols=4)
        style.add_footer(fig, foot(sources))
        style.save(fig, out_stem)


def signed_deviation_data(source: TokenSource) -> pd.DataFrame:
    """What Fig. 10 shows of a source: columns task, title, series, entropy, log_ratio (nats), count.

    series: those of `masked_series`, bin_mean and bin_rms (of `entropy_bins`), boundary_estr and boundary_fixed (upper
    ones; the lower are their mirror images).
    """
    tokens = source.tokens
    fixed = at_equal_budget(source, FixedMagnitude(c=1.0))
    values = tokens[["entropy", "log_ratio"]].astype(np.float64)
    top = max(float(values["entropy"].max()), 1e-3)
    reach = np.arcsinh(max(values["log_ratio"].abs().max(), LINEAR) * 1.001 / LINEAR)
    edges = root_edges(top, GRID[0]), LINEAR * np.sinh(np.linspace(-reach, reach, GRID[1] + 1))
    parts = masked_series(values, masked_by(source.rule, tokens), masked_by(fixed, tokens), edges)
    bins = entropy_bins(tokens)
    for name, height in (("bin_mean", bins["mean_signed"]), ("bin_rms", np.sqrt(bins["second_moment"]))):
        columns = {"series": name, "entropy": bins["mean_entropy"], "log_ratio": height, "count": bins["count"]}
        parts.append(pd.DataFrame(columns))
    line = root_edges(top, LINE_POINTS)
    for name, rule in (("boundary_estr", source.rule), ("boundary_fixed", fixed)):
        parts.append(pd.DataFrame({"series": name, "entropy": line, "log_ratio": upper_bound(rule, line), "count": 0}))
    return of_source(source, parts)


def _draw(ax: Axes, data: pd.DataFrame) -> None:
    draw_masked(ax, data, "entropy", "log_ratio", counts_at=None)
    series = dict(list(data.groupby("series")))
    for name, dashes in (("boundary_estr", "-"), ("boundary_fixed", "--")):
        for sign in (-1, 1):
            ax.plot(series[name]["entropy"], sign * series[name]["log_ratio"], color=style.INK, linestyle=dashes)
    if "bin_mean" in series:
        mean, rms = series["bin_mean"], series["bin_rms"]
        ax.plot(mean["entropy"], mean["log_ratio"], color=style.PURPLE, linewidth=1.5, marker="o", markersize=2.5)
        for sign in (-1, 1):
            ax.plot(rms["entropy"], sign * rms["log_ratio"], color=style.PURPLE, linestyle=":", linewidth=1.5)
    ax.set_yscale("asinh", linear_width=LINEAR)
    reach = 1.3 * data["log_ratio"].abs().max()
    ticks = [tick for tick in (0.1, 1, 10) if tick < reach]
    ax.set_yticks([*(-tick for tick in reversed(ticks)), 0, *ticks])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_ylim(-reach, reach)
    entropy_axis(ax, series["boundary_fixed"]["entropy"].max())
