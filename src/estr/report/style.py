"""One look for all figures: sizes for print, one colour and marker per method, reproducible files.

Published thresholds are drawn solid with filled markers, matched-budget variants in the same colour, dashed
and hollow. Colours are Okabe and Ito's, which stay apart for colour-blind readers.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any
from zlib import crc32

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from estr.files.atomic import replacing
from estr.report.labels import is_matched, split_label
from estr.report.runs import RunResult

SINGLE, DOUBLE = 3.3, 6.9  # column widths, inches
PNG_DPI = 200
FOOTER_CHARACTERS = 19  # per inch
RED, BLUE, PURPLE, INK, MUTED = "#D55E00", "#0072B2", "#5B2A86", "#222222", "#666666"

_COLOUR_MARKER = {
    "sync": ("#000000", "s"),
    "async": ("#D55E00", "X"),
    "icepop": ("#E69F00", "^"),
    "kpop": ("#009E73", "D"),
    "m2po": ("#CC79A7", "v"),
    "fixed_magnitude": ("#7F7F7F", "h"),
    "exploration_preserving": ("#56B4E9", "P"),
    "outlier_suppressing": ("#B59B00", "*"),
    "estr": ("#0072B2", "o"),
}
_OTHER_METHODS = (("#8C564B", "p"), ("#882255", "d"), ("#999933", "8"))
_SWEEP_MARKERS = ("o", "^", "D", "v", "P", "X", "*")

_RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "pdf.fonttype": 42,
    "savefig.dpi": PNG_DPI,
}


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib settings of every figure; figures made inside are closed at the end."""
    with plt.rc_context(_RC):
        try:
            yield
        finally:
            plt.close("all")


def line_style(label: str) -> dict[str, Any]:
    """Keyword arguments of a line for the method or variant, the same in every figure."""
    method, _ = split_label(label)
    other = _OTHER_METHODS[crc32(method.encode()) % len(_OTHER_METHODS)]
    colour, marker = _COLOUR_MARKER.get(method, other)
    matched = is_matched(label)
    return {
        "color": colour,
        "marker": marker,
        "linestyle": (0, (4, 1.5)) if matched else "-",
        "markerfacecolor": "white" if matched else colour,
        "markeredgecolor": colour,
        "markeredgewidth": 0.8,
    }


def sweep_styles(count: int, hue: str = BLUE) -> list[dict[str, Any]]:
    """As `line_style`, for the settings of one method in increasing order: one hue from light to dark."""
    shades = LinearSegmentedColormap.from_list("shades", [_mix(hue, "white", 0.55), hue, _mix(hue, "black", 0.45)])
    colours = [to_hex(shade) for shade in shades([0.5] if count == 1 else [i / (count - 1) for i in range(count)])]
    return [
        {"color": colour, "marker": marker, "linestyle": "-", "markeredgecolor": colour, "markeredgewidth": 0.8}
        for colour, marker in zip(colours, cycle(_SWEEP_MARKERS), strict=False)
    ]


def _mix(colour: str, other: str, share: float) -> str:
    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))
    return to_hex((red, green, blue))


def scale_line(runs: Sequence[RunResult]) -> str:
    """What every figure says at its foot, e.g. ``laptop scale · 3 seeds · embedded engine``."""
    counts = sorted(Counter((run.task, run.label) for run in runs).values())
    seeds = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    engines = sorted({run.engine for run in runs})
    return f"{runs[0].scale} scale · {seeds} {'seed' if seeds == '1' else 'seeds'} · {', '.join(engines)} engine"


def add_footer(fig: Figure, text: str) -> None:
    """Put the scale line at the foot of the figure, inside the constrained layout, in as many lines as it takes."""
    fig.supxlabel(fill(text, int(FOOTER_CHARACTERS * fig.get_figwidth())), x=0.01, ha="left", fontsize=7, color=MUTED)


def save(fig: Figure, stem: Path) -> None:
    """Write stem.pdf and stem.png; equal data give equal bytes (no dates in the files)."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # the layout is settled; both files need not solve it again
    pages, picture, small = io.BytesIO(), io.BytesIO(), io.BytesIO()  # in memory: they report a full disk badly
    fig.savefig(pages, format="pdf", metadata={"CreationDate": None, "ModDate": None})
    fig.savefig(picture, format="png")
    with Image.open(picture) as image:  # 256 colours are enough and make a third of the size
        image.convert("RGB").quantize(256).save(small, format="png", optimize=True, dpi=(PNG_DPI, PNG_DPI))
    for suffix, content in (("pdf", pages), ("png", small)):
        with replacing(_with_suffix(stem, suffix)) as new:
            new.write_bytes(content.getvalue())


def save_data(frame: pd.DataFrame, stem: Path) -> None:
    """Write the plotted numbers beside the figure."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with replacing(_with_suffix(stem, "csv")) as new:
        frame.to_csv(new, index=False, lineterminator="\n")


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")
