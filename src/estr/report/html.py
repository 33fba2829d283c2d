"""report.html: one self-contained page with tables, figures, runs, the paper's contradictions and our
deviations.
"""

import base64
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from estr.errors import UserError
from estr.report.captions import CAPTIONS
from estr.report.labels import PAPER_SCALE, benchmarks, display, task_name, task_order
from estr.report.paper import CONTRADICTIONS
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.style import PNG_DPI
from estr.report.tables import read_table, views_of
from estr.report.verdicts import VERDICTS

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
    """Write the page from finished, evaluated runs and from the tables' CSV and the figures' PNG and CSV files.

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
    scale, tasks = runs[0].scale, by_task(runs)
    frames = {path: read_table(path.with_suffix(".csv")) for path in tables}
    environment = Environment(
        loader=PackageLoader("estr.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        scale=scale,
        benchmarks=benchmarks(list(tasks), PAPER_SCALE),
        tasks=[_task_part(task, chosen) for task, chosen in tasks.items()],
        commits=sorted({run.commit for run in runs}),
        machines=_machines(runs),
        n_runs=len(runs),
        wall_hours=sum(run.wall_seconds for run in runs) / 3600,
        tables=[_table_part(path, frame, commands) for path, frame in frames.items()],
        outcomes=VERDICTS,
        verdicts=_verdicts(list(frames.values())),
        figures=[_figure_part(path, commands) for path in figures],
        runs=[(task_name(task), [_run_part(run, out.parent) for run in chosen]) for task, chosen in tasks.items()],
        packages=_packages(runs),
        contradictions=CONTRADICTIONS,
        deviations=context.get("deviations", ()),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def _task_part(task: str, runs: Sequence[RunResult]) -> dict[str, Any]:
    """What the header says of a task; its scoring is that of every distinct evaluation."""
    seeds = sorted({run.seed for run in runs})
    return {
        "name": benchmarks([task], runs[0].scale),
        "engine": ", ".join(sorted({run.engine for run in runs})),
        "n_runs": len(runs),
        "seeds": ", ".join(map(str, seeds)),
        "scoring": "; ".join(sorted({run.read_evaluation().scored_by for run in runs})),
    }


def _table_part(path: Path, frame: pd.DataFrame, commands: dict[str, str]) -> dict[str, Any]:
    views = [(f"{path.stem}-{_slug(view.title)}", view) for view in views_of(frame, path.stem)]
    parts: dict[str, str] = {}
    for anchor, view in views:
        parts.setdefault(view.section or view.title, anchor)
    return {
        "stem": path.stem,
        "views": views,
        "parts": [(anchor, name) for name, anchor in parts.items()],
        "command": commands.get(path.stem),
    }


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _verdicts(frames: Sequence[pd.DataFrame]) -> list[tuple[str, Counter[str]]]:
    """How many claims of the paper came out how, per task."""
    counts: dict[str, Counter[str]] = {}
    for frame in frames:
        columns = [column for column in frame.columns if column.endswith("_verdict")]
        for task, rows in frame.groupby("task") if columns else ():
            outcomes = (value for column in columns for value in rows[column] if value in VERDICTS)
            counts.setdefault(str(task), Counter()).update(outcomes)
    return [(task_name(task), counts[task]) for task in sorted(counts, key=task_order) if counts[task]]


def _figure_part(path: Path, commands: dict[str, str]) -> dict[str, Any]:
    caption = CAPTIONS.get(path.stem)
    image = path.with_suffix(".png")
    try:
        content = image.read_bytes()
    except OSError as error:
        raise UserError(f"{image}: cannot be read ({error.strerror})") from error
    return {
        "stem": path.stem,
        "image": base64.b64encode(content).decode("ascii"),
        "width": _png_width(content) * CSS_PIXELS_PER_INCH // PNG_DPI,
        "title": caption.title if caption else path.stem,
        "paper": caption.paper if caption else None,
        "measured": caption.measured(read_table(path.with_suffix(".csv"))) if caption else [],
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
