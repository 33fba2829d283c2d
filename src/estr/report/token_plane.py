"""Tokens in the plane of entropy and log-ratio: density cells, masked points, and the axes of the token figures.

Kept tokens are counted in cells, masked ones are points, of which at most POINTS per series are drawn (a fixed random
choice); legends and captions give the true totals.
"""

from collections.abc import Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from estr.report import style
from estr.report.tokens import TokenSource

POINTS = 300
LINE_POINTS = 80
SIGNIFICANT_DIGITS = 4
FLOOR = 1e-4  # nats; smaller |delta| is drawn here
ENTROPY_TICKS = (0, 0.01, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 10)
PANEL_HEIGHT = 1.9  # inches
KEPT = LinearSegmentedColormap.from_list("kept", ["#EDEDED", "#8C8C8C"])
Corner = Literal["lower right", "upper left"]
MASKED = {
    "estr_only": ("masked by ESTR only", style.RED),
    "fixed_only": ("masked by fixed only", style.BLUE),
    "both": ("masked by both", style.INK),
}
"""Series of masked tokens, with what the legend calls them and their colour."""


def panels(sources: Sequence[TokenSource]) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per source in two columns; an odd one out leaves its neighbour empty."""
    columns = min(2, len(sources))
    rows = -(-len(sources) // columns)
    size = (style.DOUBLE if columns > 1 else style.SINGLE + 1, 1.0 + PANEL_HEIGHT * rows)
    fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for ax in axes.flat[len(sources) :]:
        ax.set_axis_off()
    return fig, list(axes.flat[: len(sources)])


def name_panel(ax: Axes, source: TokenSource, detail: str = "") -> None:
    """What produced the tokens of a panel above it, and in a second line how many they are."""
    head(ax, source.heading, ", ".join(filter(None, (f"{len(source.tokens):,} tokens", detail))))


def head(ax: Axes, title: str, detail: str) -> None:
    """A bold title over the axes and a small second line under it."""
    ax.set_title(title, loc="left", fontweight="bold", pad=12)
    note = ax.annotate(detail, (0, 1), (0, 3), "axes fraction", "offset points", fontsize=6.5, color=style.MUTED)
    note.set_in_layout(False)


def of_source(source: TokenSource, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """A figure's rows of one source: task and title before the other columns, floats shortened for the CSV."""
    data = rounded(pd.concat(parts, ignore_index=True))
    data.insert(0, "task", source.key)
    data.insert(1, "title", source.title)
    return data


def rounded(data: pd.DataFrame) -> pd.DataFrame:
    """The frame with its floats at SIGNIFICANT_DIGITS, as far as a figure can be read."""
    short = data.copy()
    for name in [column for column, kind in short.dtypes.items() if kind == np.float64]:
        short[name] = [float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in short[name]]
    return short


def masked_series(
    values: pd.DataFrame, estr: np.ndarray, fixed: np.ndarray, edges: tuple[np.ndarray, np.ndarray]
) -> list[pd.DataFrame]:
    """Tokens in a plane by which of the two rules masks them.

    Args:
        values: two columns, the tokens' coordinates.
        estr: masked by ESTR's rule, bool [tokens].
        fixed: masked by a fixed threshold, bool [tokens].
        edges: cells along the first and the second coordinate.

    Returns:
        Frames with the column series, the two coordinates and count: kept_by_both (cells, see `density`), MASKED (the
        points drawn), and all_kept_by_both, all_estr_only, ... (means and number of all tokens of the series).
    """
    chosen = {
        "kept_by_both": ~estr & ~fixed,
        "estr_only": estr & ~fixed,
        "fixed_only": fixed & ~estr,
        "both": estr & fixed,
    }
    parts = [density(values[chosen["kept_by_both"]], edges).assign(series="kept_by_both")]
    parts += [chosen_points(values[chosen[name]]).assign(series=name) for name in MASKED]
    for name, mask in chosen.items():
        total = values[mask].mean().to_frame().T.assign(count=int(mask.sum()), series=f"all_{name}")
        parts.append(total)
    return parts


def density(values: pd.DataFrame, edges: tuple[np.ndarray, np.ndarray]) -> pd.DataFrame:
    """Cells of the plane of two columns that hold tokens: lower and (name_high) upper corner, count."""
    x, y = values.columns
    counts, *_ = np.histogram2d(values[x], values[y], bins=edges)
    column, row = counts.nonzero()
    corners = {
        x: edges[0][column],
        f"{x}_high": edges[0][column + 1],
        y: edges[1][row],
        f"{y}_high": edges[1][row + 1],
    }
    return pd.DataFrame(corners | {"count": counts[column, row].astype(int)})


def chosen_points(values: pd.DataFrame) -> pd.DataFrame:
    """At most POINTS of the rows with count = 1, the same ones for the same data."""
    return (values.sample(POINTS, random_state=0).sort_index() if len(values) > POINTS else values).assign(count=1)


def draw_density(ax: Axes, cells: pd.DataFrame, x: str, y: str) -> None:
    """Cells as grey rectangles, darker for more tokens on a logarithmic scale."""
    left, right, low, high = (cells[name].to_numpy() for name in (x, f"{x}_high", y, f"{y}_high"))
    corners = np.stack([np.stack(pair, -1) for pair in ((left, low), (right, low), (right, high), (left, high))], 1)
    norm = LogNorm(1, max(2, cells["count"].max()))
    look: dict[str, Any] = {"linewidths": 0, "antialiased": False, "rasterized": True}
    ax.add_collection(PolyCollection(list(corners), array=cells["count"].to_numpy(), cmap=KEPT, norm=norm, **look))


def draw_masked(ax: Axes, data: pd.DataFrame, x: str, y: str, counts_at: Corner | None = "lower right") -> None:
    """The rows of `masked_series`, and at a corner how many tokens each series holds."""
    series = dict(list(data.groupby("series")))
    if "kept_by_both" in series:
        draw_density(ax, series["kept_by_both"], x, y)
    handles = []
    for name, (_, colour) in MASKED.items():
        if name in series:
            draw_points(ax, series[name], x, y, colour)
        number = series[f"all_{name}"]["count"].iloc[0]
        handles.append(Line2D([], [], color=colour, marker="o", linestyle="", markersize=2.5, label=f"{number:,.0f}"))
    if counts_at:
        ax.legend(handles=handles, loc=counts_at, fontsize=6, labelspacing=0.2, handletextpad=0, borderaxespad=0.2)


def draw_points(ax: Axes, points: pd.DataFrame, x: str, y: str, colour: str, size: float = 3) -> None:
    ax.scatter(points[x], points[y], s=size, c=colour, alpha=0.6, linewidths=0, rasterized=True)


def masked_handles() -> list[Artist]:
    """What the figure's legend says of `draw_masked`."""
    dots = [
        Line2D([], [], color=colour, marker="o", linestyle="", markersize=3, label=label)
        for label, colour in MASKED.values()
    ]
    return [Patch(color="#B0B0B0", label="kept by both (density)"), *dots]


def entropy_axis(ax: Axes, top: float, tick_distance: float = 0.07) -> None:
    """A square-root axis from 0 to the largest entropy; ticks nearer than a share of the axis are left out."""
    ax.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    ticks: list[float] = []
    for tick in ENTROPY_TICKS:
        if tick <= top and (not ticks or np.sqrt(tick) - np.sqrt(ticks[-1]) >= tick_distance * np.sqrt(top)):
            ticks.append(tick)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlim(0, 1.02 * top)
    ax.grid(False)


def root_edges(top: float, cells: int) -> np.ndarray:
    """Edges from 0 to top, equally spaced on the square-root axis."""
    return np.linspace(0, np.sqrt(max(top, 1e-3)), cells + 1) ** 2


def magnitude_edges(size: np.ndarray, cells: int) -> np.ndarray:
    """Edges from FLOOR to the largest |delta|, equally spaced on a logarithmic axis."""
    return np.geomspace(FLOOR, max(float(size.max()), 10 * FLOOR) * 1.001, cells + 1)
