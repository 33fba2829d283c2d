"""report.html: one self-contained page, from the scoreboard of claims to the runs behind every number."""

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
from estr.files.atomic import replacing
from estr.pipeline.measurement import load_measurement
from estr.report.captions import CAPTIONS
from estr.report.claims.outcome import VERDICTS as OUTCOMES
from estr.report.labels import PAPER_SCALE, benchmarks, display, task_name
from estr.report.paper import CONTRADICTIONS
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.samples import load_sample
from estr.report.sources import run_folders, sample_folders, throughput_folders
from estr.report.style import PNG_DPI
from estr.report.tables import read_table, views_of
from estr.report.verdicts import VERDICTS

CSS_PIXELS_PER_INCH = 144  # figures are shown at 1.5 times their printed size
CLAIMS = "claims"
LOCAL_SERVER = "http://127.0.0.1:5000"  # where `make ui` serves the local store


class ReportContext(TypedDict, total=False):
    """What only the caller knows: the command that remakes each artifact (by stem), our deviations, and where the runs
    are in MLflow (what `estr track runs` writes).
    """

    commands: dict[str, str]
    deviations: Sequence[str]
    mlflow: dict[str, Any]


def write_report(
    scale_dir: Path,
    folders: Sequence[Path],
    tables: Sequence[Path],
    figures: Sequence[Path],
    out: Path,
    context: ReportContext,
) -> None:
    """Write the page from finished, evaluated runs and from the tables' CSV and the figures' PNG and CSV files.

    scale_dir: results/<scale>, which must hold all runs. folders: runs, throughput measurements, token samples. tables
    and figures: any file of each; its CSV and PNG are read, and they are shown in the paper's order. A table `claims`
    opens the page. Run ids link to the runs' run.json, relative to the page, and to their MLflow runs.

    Raises:
        UserError: a run, table or figure cannot be read, a run lies elsewhere, or the context has an unknown
        key.
    """
    unknown = set(context) - ReportContext.__annotations__.keys()
    if unknown:
        raise UserError(f"report context: unknown key {', '.join(sorted(unknown))}")
    runs = load_runs(run_folders(folders))
    for run in runs:
        if not run.path.resolve().is_relative_to(scale_dir.resolve()):
            raise UserError(f"{run.path}: does not lie in {scale_dir}, whose report this is")
    commands = context.get("commands", {})
    scale, tasks = runs[0].scale, by_task(runs)
    frames = {path: read_table(path.with_suffix(".csv")) for path in sorted(tables, key=_paper_order)}
    claims = next((frames.pop(path) for path in list(frames) if path.stem == CLAIMS), None)
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
        outcomes=(*VERDICTS, *OUTCOMES),
        scoreboard=None if claims is None else _scoreboard(claims, commands),
        figures=[_figure_part(path, commands) for path in sorted(figures, key=_paper_order)],
        runs=[
            (task_name(task), [_run_part(run, out.parent, context.get("mlflow", {})) for run in chosen])
            for task, chosen in tasks.items()
        ],
        measurements=[_measurement_part(folder, out.parent) for folder in throughput_folders(folders)],
        samples=[_sample_part(folder, out.parent) for folder in sample_folders(folders)],
        packages=_packages(runs),
        contradictions=CONTRADICTIONS,
        deviations=context.get("deviations", ()),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as new:
        new.write_text(page, encoding="utf-8")


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
    views = [(f"{path.stem}-{_slug(view.title)}", view) for view in views_of(path.stem, frame)]
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


def _paper_order(path: Path) -> tuple[int, int, str]:
    """Sort key: the first version's artifacts by number, then those of the second alone, then ours."""
    number = re.search(r"(?:fig|table)(\d+)", path.stem)
    if number is None:
        return 2 if path.stem != "scaling_fit" else 1, 0, path.stem
    return int(path.stem.startswith("v2_")), int(number[1]), path.stem


def _scoreboard(claims: pd.DataFrame, commands: dict[str, str]) -> dict[str, Any]:
    """How many claims came out how, and every claim, section by section."""
    counts = Counter(claims["verdict"])
    sections = list(dict.fromkeys(claims["section"]))
    ordered = claims.sort_values("section", key=lambda column: column.map(sections.index), kind="stable")
    return {
        "counts": [(name, counts[name]) for name in OUTCOMES if counts[name]],
        "meanings": list(OUTCOMES.items()),
        "claims": ordered.fillna("").to_dict("records"),
        "command": commands.get(CLAIMS),
    }


def _measurement_part(folder: Path, page_folder: Path) -> dict[str, Any]:
    record = load_measurement(folder).record
    return {
        "name": f"throughput/{record['task']}/{record['label']}/seed{record['seed']}",
        "link": _link(folder / "throughput.json", page_folder),
        "text": f"{record['mode']}, {record['steps']} updates measured, {record['wall_seconds']:.0f} s",
        "commit": record["commit"],
    }


def _sample_part(folder: Path, page_folder: Path) -> dict[str, Any]:
    sample = load_sample(folder)
    tokens = ", ".join(f"{part.tokens:,} {name}" for name, part in sample.scenarios.items())
    return {
        "name": f"samples/{sample.name}",
        "link": _link(folder / "sample.json", page_folder),
        "text": f"{sample.model}: tokens {tokens}",
        "commit": sample.commit,
    }


def _link(path: Path, page_folder: Path) -> str:
    return quote(Path(os.path.relpath(path, page_folder)).as_posix())


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


def _run_part(run: RunResult, page_folder: Path, mlflow: dict[str, Any]) -> dict[str, Any]:
    tracked = mlflow.get("runs", {}).get(run.run_id)
    server = str(mlflow.get("tracking_uri", ""))
    server = server if server.startswith("http") else LOCAL_SERVER
    return {
        "id": run.run_id,
        "name": display(run.label),
        "seed": run.seed,
        "steps": run.steps,
        "thresholds": run.thresholds or "keeps every token",
        "minutes": run.wall_seconds / 60,
        "config_hash": run.config_hash,
        "commit": run.commit,
        "mlflow_run_id": tracked["run_id"] if tracked else run.mlflow_run_id or "-",
        "mlflow_link": "{}/#/experiments/{experiment_id}/runs/{run_id}".format(server, **tracked) if tracked else None,
        "link": _link(run.path / "run.json", page_folder),
    }


def _machines(runs: Sequence[RunResult]) -> list[str]:
    described = (", ".join(f"{name}: {value}" for name, value in run.machine.items()) for run in runs)
    return list(dict.fromkeys(described))


def _packages(runs: Sequence[RunResult]) -> list[str]:
    """Package versions, one text per distinct set."""
    described = (", ".join(f"{name} {version}" for name, version in sorted(run.packages.items())) for run in runs)
    return list(dict.fromkeys(described))
