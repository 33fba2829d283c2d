"""All tables by name; each call reads runs and writes out_stem.csv (full precision), .md and .tex."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from estr.errors import UserError
from estr.report.edge_figure import COLLAPSE_SHARE, WINDOW, edge_scan
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs
from estr.report.table1 import COLUMNS, table1_frame
from estr.report.table1_views import table1_views
from estr.report.views import View, latex, markdown, plain


def write_table1(
    run_dirs: Sequence[Path], calibrations: Sequence[Path], out_stem: Path, bootstrap_seed: int = 0
) -> None:
    """Write Table 1 from the runs of one scale.

    calibrations: results/<scale>/calibration/<task>.json of every task with a matched-budget run.
    """
    frame = table1_frame(load_runs(run_dirs), calibrations, load_paper_values(), bootstrap_seed)
    _write(frame, table1_views(frame), out_stem)


def write_stability_edge(run_dirs: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the stability scan of one task, a row per run; it has no use for a calibration."""
    runs = load_runs(run_dirs)
    frame = edge_scan(runs)
    note = (
        f"Means over {WINDOW} steps at {runs[0].scale} scale. Collapsed: the last mean is below "
        f"{COLLAPSE_SHARE:g} of the highest, the first step's included. ESTR's masked fraction is a diagnostic; "
        "no token was masked."
    )
    [view] = views_of(frame, "Stability edge of vanilla async (not in the paper)")
    _write(frame, [replace(view, note=note)], out_stem)


def _write(frame: pd.DataFrame, views: Sequence[View], out_stem: Path) -> None:
    out_stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {
        "csv": frame.to_csv(index=False, lineterminator="\n"),
        "md": "\n\n".join(markdown(view) for view in views) + "\n",
        "tex": "\n\n".join(latex(view) for view in views) + "\n",
    }
    for suffix, text in texts.items():
        out_stem.with_name(f"{out_stem.name}.{suffix}").write_text(text, encoding="utf-8")


TABLES: dict[str, Callable[[Sequence[Path], Sequence[Path], Path], None]] = {
    "table1": write_table1,
    "stability_edge": write_stability_edge,
}


def read_table(path: Path) -> pd.DataFrame:
    """Read a table's or figure's CSV back; floats come back exactly."""
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as CSV; make the table again") from error


def views_of(frame: pd.DataFrame, title: str) -> list[View]:
    """Views of any table; one that is not Table 1 is shown as it stands."""
    if list(frame.columns) == COLUMNS:
        return table1_views(frame)
    rows = tuple(tuple(plain(value) for value in row) for row in frame.itertuples(index=False))
    return [View(title, "", tuple(frame.columns), rows)]
