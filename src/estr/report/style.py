"""One look for all figures: sizes for print, one colour and marker per method, reproducible files.

Published thresholds are drawn solid with filled markers, matched-budget variants in the same colour, dashed
and hollow. Colours are Okabe and Ito's, which stay apart for colour-blind readers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from estr.report.labels import is_matched, split_label
from estr.report.runs import RunResult

SINGLE, DOUBLE = 3.3, 6.9  # column widths, inches
PNG_DPI = 200
RED, BLUE, PURPLE, INK, MUTED = "#D55E00", "#0072B2", "#5B2A86", "#222222", "#666666"

_COLOUR_MARKER = {
    "sync": ("#000000", "s"),
    "async": ("#D55E00", "X"),
    "icepop": ("#E69F00", "^"),
    "kpop": ("#009E73", "D"),
    "m2po": ("#CC79A7", "v"),
    "estr": ("#0072B2", "o"),
}
_OTHER_METHODS = (("#56B4E9", "P"), ("#B59B00", "*"), ("#7F7F7F", "h"))

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


def scale_line(runs: Sequence[RunResult]) -> str:
    """What every figure says at its foot, e.g. ``laptop scale · 3 seeds · embedded engine``."""
    counts = sorted(Counter((run.task, run.label) for run in runs).values())
    seeds = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    engines = sorted({run.engine for run in runs})
    return f"{runs[0].scale} scale · {seeds} {'seed' if seeds == '1' else 'seeds'} · {', '.join(engines)} engine"


def add_footer(fig: Figure, text: str) -> None:
    """Put the scale line at the foot of the figure, inside the constrained layout."""
    fig.supxlabel(text, x=0.01, ha="left", fontsize=7, color=MUTED)


def save(fig: Figure, stem: Path) -> None:
    """Write stem.pdf and stem.png; equal data give equal bytes (no dates in the files)."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # the layout is settled; both files need not solve it again
    fig.savefig(_with_suffix(stem, "pdf"), metadata={"CreationDate": None, "ModDate": None})
    fig.savefig(_with_suffix(stem, "png"), metadata={"Software": None})


def save_data(frame: pd.DataFrame, stem: Path) -> None:
    """Write the plotted numbers beside the figure."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(_with_suffix(stem, "csv"), index=False, lineterminator="\n")


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")
