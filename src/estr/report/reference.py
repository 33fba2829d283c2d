"""The committed copy of a reference run: tables, pictures, and where they come from."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from estr.files.atomic import replacing
from estr.report.captions import CAPTIONS
from estr.report.labels import benchmarks, task_name
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.sources import run_folders
from estr.report.tables import read_table


def export_reference(folders: Sequence[Path], tables: Sequence[Path], figures: Sequence[Path], page: Path) -> None:
    """Write `page`, which shows the results and says where they come from; .csv, .md and .png are copied beside it."""
    runs = load_runs(run_folders(folders))
    out = page.parent
    out.mkdir(parents=True, exist_ok=True)
    parts = [_provenance(runs)]
    for table in tables:
        for suffix in (".csv", ".md"):
            shutil.copyfile(table.with_suffix(suffix), out / table.with_suffix(suffix).name)
        parts.append(table.with_suffix(".md").read_text().strip())
    for figure in figures:
        shutil.copyfile(figure.with_suffix(".png"), out / figure.with_suffix(".png").name)
        caption = CAPTIONS[figure.stem]
        parts.append(f"### {caption.title}\n\n![{caption.title}]({figure.stem}.png)\n\nThe paper: {caption.paper}")
        parts += caption.measured(read_table(figure.with_suffix(".csv")))
    with replacing(page) as new:
        new.write_text("\n\n".join([*parts, _run_list(runs)]) + "\n")


def _provenance(runs: Sequence[RunResult]) -> str:
    first = runs[0]
    tasks = benchmarks(list(by_task(runs)), first.scale)
    commits = ", ".join(sorted({run.commit for run in runs}))
    machine = f"{first.machine['processor']}, {first.machine['cores']} cores, Python {first.machine['python']}"
    hours = sum(run.wall_seconds for run in runs) / 3600
    return (
        f"# Reference results at {first.scale} scale\n\n"
        f"{tasks[0].upper()}{tasks[1:]}. {len(runs)} runs, {hours:.2f} hours of training in all, one core each. "
        f"Commit {commits}; {machine}; torch {first.packages['torch']}. "
        f"Written by `make reference` from `results/{first.scale}/`."
    )


def _run_list(runs: Sequence[RunResult]) -> str:
    parts = ["### Every run"]
    for task, chosen in by_task(runs).items():
        lines = [f"| {task_name(task)} | Config hash | Commit | Training (s) |", "| --- | --- | --- | --- |"]
        lines += [f"| {run.run_id} | {run.config_hash} | {run.commit} | {run.wall_seconds:.0f} |" for run in chosen]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
