"""v2's Figure 6: the keep rule against the behavior probability of the sampled token, a row of panels per source.

Left the discrepancy in probability that triggers masking. To first order |pi - mu| = mu |delta|, so a fixed threshold c
asks for mu c, linear in the probability; ESTR asks for mu sqrt(tau (H + eps)), which depends on the entropy too: drawn
are its quantiles over the tokens of each probability. Right where the rules spend an equal budget.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from estr.algorithm.rules import FixedMagnitude
from estr.report import style
from estr.report.entropy_ratio import upper_bound
from estr.report.scaling_fit import MIN_BIN_TOKENS
from estr.report.token_plane import draw_masked, masked_handles, masked_series, name_panel, of_source
from estr.report.tokens import TokenSource, at_equal_budget, foot, masked_by, token_sources

GRID = (50, 40)  # density cells over mu and over mu |delta|
BINS = 20  # equally wide in mu
HEADROOM = 1.3  # upper end of the axis over what the rules ask for
ROW_HEIGHT = 1.75  # inches
SHARES: dict[str, tuple[str, dict[str, Any]]] = {
    "share_estr": ("right: ESTR", {"color": style.RED, "linewidth": 1.5}),
    "share_fixed": ("right: fixed", {"color": style.BLUE, "linewidth": 1.5, "linestyle": "--"}),
}


def v2_fig06_probability(folders: Sequence[Path], out_stem: Path) -> None:
    """Discrepancy that each rule needs to mask a token, and the share of masked tokens, against mu(y)."""
    sources = token_sources(folders)
    data = pd.concat([probability_data(source) for source in sources], ignore_index=True)
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
            ax.set_xlabel("behavior probability μ(y)")
        fig.legend(handles=_handles(), loc="outside upper center", ncols=4)
        style.add_footer(fig, foot(sources))
        style.save(fig, out_stem)


def probability_data(source: TokenSource) -> pd.DataFrame:
    """What is drawn of a source: columns task, title, series, probability, discrepancy, count.

    series: those of `masked_series`; need_fixed (the line mu c); need_estr, need_estr_low, need_estr_high (median, 5th
    and 95th percentile of mu sqrt(tau (H + eps)) in bins of at least MIN_BIN_TOKENS tokens, at their mean mu);
    share_estr and share_fixed (lower edge of a bin; discrepancy the share of the rule's masked tokens in it, empty
    without any).
    """
    tokens = source.tokens
    fixed = at_equal_budget(source, FixedMagnitude(c=1.0))
    probability = np.exp(tokens["behavior_logprob"].to_numpy(np.float64)).clip(max=1)
    discrepancy = probability * tokens["log_ratio"].abs().to_numpy(np.float64)
    values = pd.DataFrame({"probability": probability, "discrepancy": discrepancy})
    masked = {"estr": masked_by(source.rule, tokens), "fixed": masked_by(fixed, tokens)}
    grid = np.linspace(0, 1, GRID[0] + 1), np.linspace(0, 1.001 * fixed.threshold, GRID[1] + 1)
    parts = masked_series(values, masked["estr"], masked["fixed"], grid)

    line = np.array([0.0, 1.0])
    parts.append(_series("need_fixed", line, line * fixed.threshold))
    edges = np.linspace(0, 1, BINS + 1)
    index = np.digitize(probability, edges[1:-1])
    need = probability * upper_bound(source.rule, tokens["entropy"].to_numpy())
    bins = pd.DataFrame({"probability": probability, "need": need}).groupby(index)
    enough = bins.size() >= MIN_BIN_TOKENS
    for name, quantile in (("need_estr_low", 0.05), ("need_estr", 0.5), ("need_estr_high", 0.95)):
        quantiles = bins["need"].quantile(quantile)[enough]
        parts.append(_series(name, bins["probability"].mean()[enough].to_numpy(), quantiles.to_numpy()))
    for name, mask in masked.items():
        counts = np.histogram(probability[mask], edges)[0]
        share = counts / counts.sum() if counts.sum() else np.full(BINS, np.nan)
        parts.append(_series(f"share_{name}", edges[:-1], share).assign(count=counts))
    return of_source(source, parts)


def _series(name: str, probability: np.ndarray, discrepancy: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"series": name, "probability": probability, "discrepancy": discrepancy, "count": 0})


def _draw_plane(ax: Axes, data: pd.DataFrame) -> None:
    draw_masked(ax, data, "probability", "discrepancy", counts_at="upper left")
    series = dict(list(data.groupby("series")))
    fixed = series["need_fixed"]
    ax.plot(fixed["probability"], fixed["discrepancy"], color=style.INK, linestyle="--")
    if "need_estr" in series:
        need = series["need_estr"]
        low, high = (series[f"need_estr_{end}"]["discrepancy"] for end in ("low", "high"))
        ax.fill_between(need["probability"], low, high, color=style.PURPLE, alpha=0.15, linewidth=0)
        ax.plot(need["probability"], need["discrepancy"], color=style.PURPLE, marker="o", markersize=2.5)
    ax.set_xlim(0, 1)
    needed = data.loc[data["series"].isin(["need_fixed", "need_estr"]), "discrepancy"]
    ax.set_ylim(0, HEADROOM * needed.max())
    ax.grid(False)
    ax.set_ylabel("μ |δ| ≈ |π - μ|")


def _draw_shares(ax: Axes, data: pd.DataFrame) -> None:
    for name, (_, look) in SHARES.items():
        shares = data[data["series"] == name]
        if shares["discrepancy"].notna().all():
            edges = np.append(shares["probability"], 1)
            ax.stairs(100 * shares["discrepancy"], edges, **look)
    masked = data.loc[data["series"] == "share_estr", "count"].sum()
    if not masked:
        ax.text(0.5, 0.5, "ESTR masks no token", transform=ax.transAxes, ha="center", color=style.MUTED)
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("% of its masked tokens")


def _handles() -> list[Artist]:
    needs = [
        Line2D([], [], color=style.PURPLE, marker="o", markersize=2.5, label="left: ESTR masks above (median, 90 %)"),
        Line2D([], [], color=style.INK, linestyle="--", label="left: fixed masks above"),
    ]
    shares = [Line2D([], [], **look, label=label) for label, look in SHARES.values()]
    return [*masked_handles(), *needs, *shares]
