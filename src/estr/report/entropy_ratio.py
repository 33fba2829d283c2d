"""Figure 1: log-ratio against entropy per token, with the entropy-scaled and a fixed boundary, a panel per source."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from estr.algorithm.rules import FixedMagnitude, KeepRule
from estr.report import style
from estr.report.scaling_fit import entropy_bins
from estr.report.token_plane import (
    FLOOR,
    LINE_POINTS,
    draw_masked,
    entropy_axis,
    magnitude_edges,
    masked_handles,
    masked_series,
    name_panel,
    of_source,
    panels,
    root_edges,
)
from estr.report.tokens import TokenSource, at_equal_budget, foot, masked_by, token_sources

GRID = (54, 40)  # density cells over sqrt(H) and over log |delta|


def fig01_entropy_ratio(folders: Sequence[Path], out_stem: Path) -> None:
    """|delta| against entropy, the entropy-scaled boundary, and the fixed one that masks as many tokens."""
    sources = token_sources(folders)
    data = pd.concat([entropy_ratio_data(source) for source in sources], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = panels(sources)
        for ax, source in zip(axes, sources, strict=True):
            _draw(ax, data[data["task"] == source.key])
            name_panel(ax, source, f"τ = {source.rule.tau:g}")
            ax.set_xlabel("token entropy H (nats, square-root axis)")
            ax.set_ylabel("|δ| (nats)")
        mean = Line2D([], [], color=style.PURPLE, marker="o", markersize=2.5, label="mean |δ| per entropy bin")
        estr = Line2D([], [], color=style.INK, label="entropy-scaled boundary")
        fixed = Line2D([], [], color=style.INK, linestyle="--", label="fixed boundary, equal budget")
        fig.legend(handles=[*masked_handles(), mean, estr, fixed], loc="outside upper center", ncols=4)
        style.add_footer(fig, foot(sources))
        style.save(fig, out_stem)


def entropy_ratio_data(source: TokenSource) -> pd.DataFrame:
    """Everything that Fig. 1 shows of a source: columns task, title, series, entropy, log_ratio_abs (nats), count.

    series: those of `masked_series`, bin_mean (`entropy_bins`: means of H and |delta|), boundary_estr, boundary_fixed.
    The fixed threshold is calibrated to mask as many tokens as the entropy rule.
    """
    tokens = source.tokens
    fixed = at_equal_budget(source, FixedMagnitude(c=1.0))
    values = pd.DataFrame({"entropy": tokens["entropy"], "log_ratio_abs": tokens["log_ratio"].abs()}, dtype=np.float64)
    top = max(float(values["entropy"].max()), 1e-3)
    floored = values.assign(log_ratio_abs=values["log_ratio_abs"].clip(lower=FLOOR))
    edges = root_edges(top, GRID[0]), magnitude_edges(floored["log_ratio_abs"].to_numpy(), GRID[1])
    parts = masked_series(floored, masked_by(source.rule, tokens), masked_by(fixed, tokens), edges)

    bins = entropy_bins(tokens).rename(columns={"mean_entropy": "entropy", "mean_abs": "log_ratio_abs"})
    parts.append(bins[["entropy", "log_ratio_abs", "count"]].assign(series="bin_mean"))
    line = root_edges(top, LINE_POINTS)
    for name, rule in (("boundary_estr", source.rule), ("boundary_fixed", fixed)):
        boundary = {"series": name, "entropy": line, "log_ratio_abs": upper_bound(rule, line), "count": 0}
        parts.append(pd.DataFrame(boundary))
    return of_source(source, parts)


def upper_bound(rule: KeepRule, entropy: np.ndarray) -> np.ndarray:
    """The largest |delta| that a rule with a boundary keeps at each entropy."""
    boundary = rule.boundary(torch.tensor(entropy, dtype=torch.float64))
    assert boundary is not None, f"{rule.name} has no boundary over entropy"
    upper: np.ndarray = boundary[1].numpy()
    return upper


def _draw(ax: Axes, data: pd.DataFrame) -> None:
    draw_masked(ax, data, "entropy", "log_ratio_abs")
    series = dict(list(data.groupby("series")))
    if "bin_mean" in series:
        bins = series["bin_mean"]
        ax.plot(bins["entropy"], bins["log_ratio_abs"], color=style.PURPLE, linewidth=1.5, marker="o", markersize=2.5)
    for name, dashes in (("boundary_estr", "-"), ("boundary_fixed", "--")):
        ax.plot(series[name]["entropy"], series[name]["log_ratio_abs"], color=style.INK, linestyle=dashes)
    ax.set_yscale("log")
    entropy_axis(ax, series["boundary_fixed"]["entropy"].max())
    ax.set_ylim(FLOOR, 1.5 * data["log_ratio_abs"].max())
