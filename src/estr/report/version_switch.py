"""Figure 3: entropy, |delta| and |z| around version switches, a row of panels per source."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from estr.errors import UserError
from estr.report import style
from estr.report.scaling_fit import interval, matched_means, switch_quantities
from estr.report.token_plane import name_panel
from estr.report.tokens import foot, token_sources

OFFSETS = range(-10, 11)
RARE_OFFSET = 0.1  # offsets with fewer clusters than this share of the most frequent one are not drawn
QUANTITIES = {
    "entropy": ("entropy H (nats)", style.PURPLE),
    "log_ratio_abs": ("|δ| (nats)", style.RED),
    "z_abs": ("|z| = |δ| / √(H + ε)", style.BLUE),
}


def fig03_version_switch(folders: Sequence[Path], out_stem: Path) -> None:
    """Position-matched entropy, |delta| and |z| against the offset to the nearest version switch, 95 % bands.

    A source in whose sampled sequences no version switches has no row; the figure's foot names it.
    """
    sources = token_sources(folders, scenarios=["switch"])
    parts = {source.key: switch_data(source.tokens) for source in sources}
    drawn = [source for source in sources if not parts[source.key].empty]
    if not drawn:
        raise UserError(f"{sources[0].path}: no sampled sequence switches version; nothing to draw")
    for source in drawn:
        parts[source.key].insert(0, "task", source.key)
        parts[source.key].insert(1, "title", source.title)
    data = pd.concat([parts[source.key] for source in drawn], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        fig, axes = plt.subplots(
            len(drawn), len(QUANTITIES), figsize=(style.DOUBLE, 0.7 + 1.6 * len(drawn)), squeeze=False
        )
        for row, source in zip(axes, drawn, strict=True):
            for ax, (quantity, (label, colour)) in zip(row, QUANTITIES.items(), strict=True):
                curve = data[(data["task"] == source.key) & (data["quantity"] == quantity)]
                ax.axvline(0, color=style.MUTED, linewidth=0.8, linestyle=":")
                ax.fill_between(curve["offset"], curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
                ax.plot(curve["offset"], curve["mean"], color=colour, marker="o", markersize=3)
                ax.set_ylim(bottom=0)
                ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
                ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
                ax.set_ylabel(label)
            name_panel(row[0], source)
        for ax in axes[-1]:
            ax.set_xlabel("tokens from version switch")
        text = f"{foot(drawn)} · position-matched · 95 % bands"
        absent = [source.title for source in sources if source not in drawn]
        style.add_footer(fig, f"{text} · no version switch sampled: {', '.join(absent)}" if absent else text)
        style.save(fig, out_stem)


def switch_data(tokens: pd.DataFrame) -> pd.DataFrame:
    """Position-matched means around version switches: quantity, offset, mean, low, high, n_tokens, n_clusters.

    What stands at a position matters more than a switch: half of a chain's tokens are certain. So the mean at an
    offset is matched by position (`matched_means`). In a dialogue a position is the turn and the place in it, since
    tool output of any length may lie before it; offsets count response tokens, so that a switch between two turns has
    its last token before in one and its first after in the other. Tokens from before staleness has ramped up are left
    out, and offsets that occur in few clusters. The 95 % band is of a bootstrap over clusters (`TokenSource.tokens`:
    the steps of runs, whose sequences switch at the same positions, or the problems of a sample); NaN where a single
    cluster holds all tokens of an offset.
    """
    settled = tokens[tokens["settled"]]
    groups = [settled["switch_offset"] == offset for offset in OFFSETS]
    quantities = switch_quantities(settled)
    rows = []
    for name in QUANTITIES:
        matched = matched_means(settled, quantities[name], groups)
        for index, offset in enumerate(OFFSETS):
            clusters = matched.clusters[index]
            if np.isnan(matched.means[index]) or clusters < RARE_OFFSET * matched.clusters.max():
                continue
            low, high = interval(matched.resampled[:, index]) if clusters > 1 else (np.nan, np.nan)
            rows.append((name, offset, matched.means[index], low, high, matched.tokens[index], clusters))
    return pd.DataFrame(rows, columns=["quantity", "offset", "mean", "low", "high", "n_tokens", "n_clusters"])
