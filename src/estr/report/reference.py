"""The committed copy of a reference run: tables, pictures, and where they come from."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from estr.config import expand, load_experiment, load_study
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
    parts = [_provenance(runs), _times(runs)]
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


def _times(runs: Sequence[RunResult]) -> str:
    """Measured training time of each experiment of the study; a run that several need is trained once."""
    seconds = {run.run_id: run.wall_seconds for run in runs}
    lines = [
        "| Experiment | Command | Runs | Of these not needed above | Training alone (min) | Beside those above (min) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    known: set[str] = set()
    for name in load_study().experiments:
        experiment = load_experiment(name)
        needed = {run.run_id for run in expand(experiment.runs, runs[0].scale)} & seconds.keys()
        if not needed:
            continue
        alone, beside = (sum(seconds[run] for run in some) / 60 for some in (needed, needed - known))
        counts = f"{len(needed)} | {len(needed - known)}"
        lines.append(f"| {experiment.title} | `snakemake {name}` | {counts} | {alone:.1f} | {beside:.1f} |")
        known |= needed
    note = (
        "Minutes of training, one core a run, two runs at a time; data, warm starts, evaluation, measurements of "
        "throughput and the language model's tokens come on top and are the rest of `make reproduce`."
    )
    return "\n".join(["### Measured time per experiment", "", *lines, "", note])


def _run_list(runs: Sequence[RunResult]) -> str:
    parts = ["### Every run"]
    for task, chosen in by_task(runs).items():
        lines = [f"| {task_name(task)} | Config hash | Commit | Training (s) |", "| --- | --- | --- | --- |"]
        lines += [f"| {run.run_id} | {run.config_hash} | {run.commit} | {run.wall_seconds:.0f} |" for run in chosen]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
