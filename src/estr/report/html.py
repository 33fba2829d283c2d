"""report.html: one self-contained page with tables, figures, runs, the paper's contradictions and our
deviations.
"""

import base64
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from estr.errors import UserError
from estr.report.captions import CAPTIONS
from estr.report.labels import display
from estr.report.paper import CONTRADICTIONS
from estr.report.runs import RunResult, load_runs
from estr.report.style import PNG_DPI
from estr.report.tables import VERDICTS, read_table, views_of

CSS_PIXELS_PER_INCH = 144  # figures are shown at 1.5 times their printed size


class ReportContext(TypedDict, total=False):
    """What only the caller knows: the command that remakes each artifact (by stem), our deviations."""

    commands: dict[str, str]
    deviations: Sequence[str]


def write_report(
    scale_dir: Path,
    run_dirs: Sequence[Path],
    tables: Sequence[Path],
    figures: Sequence[Path],
    out: Path,
    context: ReportContext,
) -> None:
    """Write the page from finished runs and from the tables' CSV and the figures' PNG and CSV files.

    scale_dir: results/<scale>, which must hold all runs. tables and figures: any file of each; its CSV and
    PNG are read. Run ids link to the runs' run.json, relative to the page.

    Raises:
        UserError: a run, table or figure cannot be read, a run lies elsewhere, or the context has an unknown
        key.
    """
    unknown = set(context) - ReportContext.__annotations__.keys()
    if unknown:
        raise UserError(f"report context: unknown key {', '.join(sorted(unknown))}")
    runs = load_runs(run_dirs)
    for run in runs:
        if not run.path.resolve().is_relative_to(scale_dir.resolve()):
            raise UserError(f"{run.path}: does not lie in {scale_dir}, whose report this is")
    commands = context.get("commands", {})
    table_parts = [_table_part(path, commands) for path in tables]
    environment = Environment(
        loader=PackageLoader("estr.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        scale=runs[0].scale,
        task=runs[0].task,
        engine=", ".join(sorted({run.engine for run in runs})),
        commits=sorted({run.commit for run in runs}),
        machines=_machines(runs),
        seeds=sorted({run.seed for run in runs}),
        wall_hours=sum(run.wall_seconds for run in runs) / 3600,
        tables=table_parts,
        outcomes=VERDICTS,
        verdicts=Counter(verdict for part in table_parts for verdict in part["verdicts"]),
        figures=[_figure_part(path, commands) for path in figures],
        runs=[_run_part(run, out.parent) for run in runs],
        packages=_packages(runs),
        contradictions=CONTRADICTIONS,
        deviations=context.get("deviations", ()),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def _table_part(path: Path, commands: dict[str, str]) -> dict[str, Any]:
    frame = read_table(path.with_suffix(".csv"))
    verdict_columns = [column for column in frame.columns if column.endswith("_verdict")]
    verdicts = [value for column in verdict_columns for value in frame[column] if value in VERDICTS]
    return {
        "stem": path.stem,
        "views": views_of(frame, path.stem),
        "verdicts": verdicts,
        "command": commands.get(path.stem),
    }


def _figure_part(path: Path, commands: dict[str, str]) -> dict[str, Any]:
    caption = CAPTIONS.get(path.stem)
    image = path.with_suffix(".png")
    try:
        content = image.read_bytes()
    except OSError as error:
        raise UserError(f"{image}: cannot be read ({error.strerror})") from error
    data = read_table(path.with_suffix(".csv")) if caption else pd.DataFrame()
    return {
        "stem": path.stem,
        "image": base64.b64encode(content).decode("ascii"),
        "width": _png_width(content) * CSS_PIXELS_PER_INCH // PNG_DPI,
        "title": caption.title if caption else path.stem,
        "paper": caption.paper if caption else None,
        "measured": caption.measured(data) if caption else None,
        "command": commands.get(path.stem),
    }


def _png_width(content: bytes) -> int:
    """Width in pixels, from the header chunk."""
    return int.from_bytes(content[16:20], "big")


def _run_part(run: RunResult, page_folder: Path) -> dict[str, Any]:
    return {
        "id": run.run_id,
        "name": display(run.label),
        "seed": run.seed,
        "steps": run.steps,
        "thresholds": run.thresholds or "keeps every token",
        "minutes": run.wall_seconds / 60,
        "config_hash": run.config_hash,
        "commit": run.commit,
        "mlflow_run_id": run.mlflow_run_id or "-",
        "link": quote(Path(os.path.relpath(run.path / "run.json", page_folder)).as_posix()),
    }


def _machines(runs: Sequence[RunResult]) -> list[str]:
    described = (", ".join(f"{name}: {value}" for name, value in run.machine.items()) for run in runs)
    return list(dict.fromkeys(described))


def _packages(runs: Sequence[RunResult]) -> list[str]:
    """Package versions, one text per distinct set."""
    described = (", ".join(f"{name} {version}" for name, version in sorted(run.packages.items())) for run in runs)
    return list(dict.fromkeys(described))
