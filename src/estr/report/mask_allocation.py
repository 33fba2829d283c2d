"""Figure 11: which tokens the keep rules mask at equal budget, a row of panels per source.

Left the tail scale (1 - q)/q of the sampled token's behavior probability q against entropy: for q up to 1/2 the two are
equivalent confidence scales of opposite direction (Eq. 40), and no token lies left of H_bin(q). Right how each rule
spreads its masked tokens over entropy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from estr.algorithm.rules import BinaryKL, FixedMagnitude, RatioInterval
from estr.algorithm.scaling_law import binary_entropy
from estr.report import style
from estr.report.labels import short_name
from estr.report.token_plane import (
    LINE_POINTS,
    draw_masked,
    entropy_axis,
    masked_handles,
    masked_series,
    name_panel,
    of_source,
    root_edges,
)
from estr.report.tokens import TokenSource, at_equal_budget, foot, masked_by, token_sources

GRID = (54, 40)  # density cells over sqrt(H) and over log tail scale
TAIL_SCALES = (1e-4, 1e6)  # a smaller or larger (1 - q)/q is drawn here
ALLOCATION_BINS = 16
ROW_HEIGHT = 1.75  # inches
OTHERS = {"icepop": RatioInterval(), "kpop": BinaryKL(), "fixed_magnitude": FixedMagnitude(c=1.0)}
RULES: dict[str, dict[str, Any]] = {
    "estr": {"color": style.RED, "linewidth": 1.7},
    "fixed_magnitude": {"color": style.BLUE, "linestyle": "--"},
    "icepop": {"color": style.line_style("icepop")["color"], "linestyle": ":"},
    "kpop": {"color": style.line_style("kpop")["color"]},
}
"""How the share of each rule is drawn: ESTR and the fixed threshold as their tokens in the other panels."""


def fig11_mask_allocation(folders: Sequence[Path], out_stem: Path) -> None:
    """Masked tokens over tail scale and entropy, and each rule's share of masked tokens per entropy bin."""
    sources = token_sources(folders)
    data = pd.concat([mask_allocation_data(source) for source in sources], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        size = (style.DOUBLE, 1.3 + ROW_HEIGHT * len(sources))
        fig, axes = plt.subplots(len(sources), 2, figsize=size, squeeze=False)
        for (left, right), source in zip(axes, sources, strict=True):
            rows = data[data["task"] == source.key]
            _draw_plane(left, rows)
            _draw_shares(right, rows)
            name_panel(left, source)
        for ax in axes[-1]:
            ax.set_xlabel("token entropy H (nats, square-root axis)")
        fig.legend(handles=_handles(), loc="outside upper center", ncols=4)
        style.add_footer(fig, foot(sources))
        style.save(fig, out_stem)


def mask_allocation_data(source: TokenSource) -> pd.DataFrame:
    """What is drawn of a source: columns task, title, series, entropy (nats), value, count.

    series: those of `masked_series` (value: tail scale of the behavior probability), binary_entropy (the curve), and
    per rule of RULES share_<rule>: lower edge of an entropy bin, value the share of the rule's masked tokens in it,
    count their number. Thresholds are calibrated to mask as many tokens as ESTR's rule; shares are empty if that masks
    none.
    """
    tokens = source.tokens
    masked = {"estr": masked_by(source.rule, tokens)}
    masked |= {name: masked_by(at_equal_budget(source, rule), tokens) for name, rule in OTHERS.items()}
    entropy = tokens["entropy"].to_numpy(np.float64)
    values = pd.DataFrame({"entropy": entropy, "value": tail_scale(tokens["behavior_logprob"]).clip(*TAIL_SCALES)})
    top = max(entropy.max(), 1e-3)
    heights = np.geomspace(TAIL_SCALES[0], max(values["value"].max(), 1) * 1.001, GRID[1] + 1)
    edges = root_edges(top, GRID[0]), heights
    parts = masked_series(values, masked["estr"], masked["fixed_magnitude"], edges)

    scale = np.geomspace(*TAIL_SCALES, 2 * LINE_POINTS)
    curve = binary_entropy(torch.from_numpy(1 / (1 + scale))).numpy()
    parts.append(pd.DataFrame({"series": "binary_entropy", "entropy": curve, "value": scale, "count": 0}))
    bins = root_edges(top, ALLOCATION_BINS)
    for name in RULES:
        counts = np.histogram(entropy[masked[name]], bins)[0]
        share = counts / counts.sum() if counts.sum() else np.full(len(counts), np.nan)
        columns = {"series": f"share_{name}", "entropy": bins[:-1], "entropy_high": bins[1:], "value": share}
        parts.append(pd.DataFrame(columns | {"count": counts}))
    return of_source(source, parts)


def tail_scale(logprob: pd.Series) -> np.ndarray:
    """(1 - q)/q of log-probabilities log q, float64; 0 where q rounded to 1."""
    logs = logprob.to_numpy(np.float64)
    scale: np.ndarray = -np.expm1(logs) * np.exp(-logs)
    return scale


def _draw_plane(ax: Axes, data: pd.DataFrame) -> None:
    draw_masked(ax, data[~data["series"].str.startswith("share_")], "entropy", "value")
    curve = data[data["series"] == "binary_entropy"]
    ax.plot(curve["entropy"], curve["value"], color=style.INK, linewidth=0.9)
    ax.set_yscale("log")
    shares = data[data["series"] == "share_estr"]
    entropy_axis(ax, shares["entropy_high"].max())
    drawn = data.loc[data["series"].isin(["kept_by_both", "estr_only", "fixed_only", "both"])]
    ax.set_ylim(TAIL_SCALES[0], 2 * drawn[["value", "value_high"]].max().max())
    ax.set_ylabel("tail scale (1 - q) / q")


def _draw_shares(ax: Axes, data: pd.DataFrame) -> None:
    for name, look in RULES.items():
        shares = data[data["series"] == f"share_{name}"]
        edges = np.append(shares["entropy"], shares["entropy_high"].iloc[-1])
        if shares["value"].notna().all():
            ax.stairs(100 * shares["value"], edges, **{"linewidth": 1.3} | look)
    entropy_axis(ax, edges[-1])
    masked = data.loc[data["series"] == "share_estr", "count"].sum()
    if masked:
        ax.set_title(f"{masked:,.0f} tokens masked by each rule", loc="right", fontsize=6.5, color=style.MUTED)
    else:
        ax.text(0.5, 0.5, "ESTR masks no token", transform=ax.transAxes, ha="center", color=style.MUTED)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("% of its masked tokens")


def _handles() -> list[Artist]:
    rules = [
        Line2D([], [], **{"linewidth": 1.3} | look, label=f"right: {short_name(name)}") for name, look in RULES.items()
    ]
    return [*masked_handles(), Line2D([], [], color=style.INK, linewidth=0.9, label="binary entropy of q"), *rules]
