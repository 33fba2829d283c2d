"""The committed copy of a reference run: tables, pictures, and where they come from."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from estr.report.captions import CAPTIONS
from estr.report.runs import RunResult, load_runs


def export_reference(run_dirs: Sequence[Path], tables: Sequence[Path], figures: Sequence[Path], page: Path) -> None:
    """Write `page`, which shows the results and says where they come from; .csv, .md and .png are copied beside it."""
    runs = load_runs(run_dirs)
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
    page.write_text("\n\n".join([*parts, _run_list(runs)]) + "\n")


def _provenance(runs: Sequence[RunResult]) -> str:
    first = runs[0]
    commits = ", ".join(sorted({run.commit for run in runs}))
    machine = f"{first.machine['processor']}, {first.machine['cores']} cores, Python {first.machine['python']}"
    hours = sum(run.wall_seconds for run in runs) / 3600
    return (
        f"# Reference results at {first.scale} scale\n\n"
        f"{len(runs)} runs, {hours:.2f} hours of training in all, one core each. Commit {commits}; {machine}; "
        f"torch {first.packages['torch']}. Written by `make reference` from `results/{first.scale}/`."
    )


def _run_list(runs: Sequence[RunResult]) -> str:
    lines = ["### Every run", "", "| Run | Config hash | Commit | Training (s) |", "| --- | --- | --- | --- |"]
    lines += [f"| {run.run_id} | {run.config_hash} | {run.commit} | {run.wall_seconds:.0f} |" for run in runs]
    return "\n".join(lines)
