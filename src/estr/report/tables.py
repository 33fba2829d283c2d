"""All tables by name.

`TABLES` makes them: each call gets all folders of an experiment and its calibration files, and writes out_stem.csv
(full precision), .md and .tex. `VIEWS` shows them, as made or read back from the CSV.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from estr.algorithm.collapse import SHARE, WINDOW
from estr.errors import UserError
from estr.report.claims.scoreboard import claims, claims_views
from estr.report.components import components_views, v2_table2_components
from estr.report.edge_figure import edge_scan
from estr.report.efficiency import efficiency_views, table2_efficiency
from estr.report.frontier import frontier_views, write_stability_frontier
from estr.report.matched_budget import matched_budget_views, table7_matched_budget
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs
from estr.report.scaling_table import scaling_fit, scaling_fit_views
from estr.report.sensitivity_views import batch_views, table4_5_tau, table6_batch_size, tau_views
from estr.report.settings_table import settings_views, table3_settings
from estr.report.sources import run_folders
from estr.report.staleness_table import staleness_sweep, staleness_views
from estr.report.table1 import table1_frame
from estr.report.table1_views import table1_views
from estr.report.views import View, plain, write_table


def write_table1(
    folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path, bootstrap_seed: int = 0
) -> None:
    """Write Table 1 from the runs of one scale.

    calibrations: results/<scale>/calibration/<task>.json of every task with a matched-budget run.
    """
    frame = table1_frame(load_runs(run_folders(folders)), calibrations, load_paper_values(), bootstrap_seed)
    write_table(frame, table1_views(frame), out_stem)


def write_stability_edge(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the stability scan of one task, a row per run; it has no use for a calibration."""
    frame = edge_scan(load_runs(run_folders(folders)))
    write_table(frame, edge_views(frame), out_stem)


def edge_views(frame: pd.DataFrame) -> list[View]:
    """The scan as it stands."""
    scale = frame["run_id"].iloc[0].split("/")[0]
    note = (
        f"Means over {WINDOW} steps at {scale} scale. Collapsed: the last mean is below {SHARE:g} of the highest, the "
        "first step's included. ESTR's masked fraction is a diagnostic; no token was masked."
    )
    return [_as_it_stands(frame, "Stability edge of vanilla async (not in the paper)", note)]


def _as_it_stands(frame: pd.DataFrame, title: str, note: str = "") -> View:
    rows = tuple(tuple(plain(value) for value in row) for row in frame.itertuples(index=False))
    return View(title, note, tuple(frame.columns), rows)


TABLES: dict[str, Callable[[Sequence[Path], Sequence[Path], Path], None]] = {
    "claims": claims,
    "table1": write_table1,
    "table2_efficiency": table2_efficiency,
    "table3_settings": table3_settings,
    "table4_5_tau": table4_5_tau,
    "table6_batch_size": table6_batch_size,
    "table7_matched_budget": table7_matched_budget,
    "v2_table2_components": v2_table2_components,
    "staleness_sweep": staleness_sweep,
    "scaling_fit": scaling_fit,
    "stability_edge": write_stability_edge,
    "stability_frontier": write_stability_frontier,
}

VIEWS: dict[str, Callable[[pd.DataFrame], list[View]]] = {
    "claims": claims_views,
    "table1": table1_views,
    "table2_efficiency": efficiency_views,
    "table3_settings": settings_views,
    "table4_5_tau": tau_views,
    "table6_batch_size": batch_views,
    "table7_matched_budget": matched_budget_views,
    "v2_table2_components": components_views,
    "staleness_sweep": staleness_views,
    "scaling_fit": scaling_fit_views,
    "stability_edge": edge_views,
    "stability_frontier": frontier_views,
}


def read_table(path: Path) -> pd.DataFrame:
    """Read a table's or figure's CSV back; floats come back exactly."""
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as CSV; make the table again") from error


def views_of(name: str, frame: pd.DataFrame) -> list[View]:
    """Views of the table `name`; one that is not in `VIEWS` is shown as it stands."""
    return VIEWS[name](frame) if name in VIEWS else [_as_it_stands(frame, name)]
