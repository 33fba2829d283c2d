"""`python -m benchmarks [NAME ...]`: measure, write results/<date>.json, and the tables of README.md from it."""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks import mlflow_share, objective, recording, sampling, step, tables
from benchmarks.growth import around, growth
from benchmarks.policies import Load
from benchmarks.step import StepSizes, started
from benchmarks.timing import Clock, Measurement
from estr.layout import Layout
from estr.provenance import commit, machine, packages, read_json, write_json

FOLDER = Path(__file__).parent
SKEWED = Load(max_tokens=128)
STEP = StepSizes()
OTHER_STEPS = (replace(STEP, prompts=8), replace(STEP, prompts=128), replace(STEP, max_tokens=6))
OBJECTIVES = ((16, 2048), (256, 2048), (64, 512), (64, 8192))


def plan(layout: Layout, effort: float) -> dict[str, Callable[[], list[Measurement]]]:
    """The benchmarks in the order of README.md; `effort` multiplies their turns."""

    def turns(count: int) -> int:
        return max(round(count * effort), 3)

    return {
        "objective": lambda: objective.alone(64, 2048, turns(40)),
        "update": lambda: objective.in_a_step(64, 2048, rows=4, turns=turns(8)),
        "recording": lambda: recording.per_step(Load(), turns(300)),
        "sampling": lambda: sampling.equal_lengths(Load(), turns(20)),
        "skewed": lambda: [m for spread in (0.4, 1.0) for m in sampling.skewed_lengths(SKEWED, spread, 4, turns(5))],
        "step": lambda: step.whole_step(layout, STEP, steps=3, turns=turns(12)),
        "mlflow": lambda: mlflow_share.mlflow_share(layout, STEP, steps=100, turns=2),
        "growth": lambda: growth(OBJECTIVES, list(around(Load())), OTHER_STEPS, layout, turns(6)),
    }


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--effort", default=1.0, show_default=True, help="multiplies the number of turns")
@click.option("--note", default="", help="a remark on the conditions, for README.md")
@click.option("--tables-only", is_flag=True, help="write the tables of the newest results again")
def main(names: tuple[str, ...], effort: float, note: str, tables_only: bool) -> None:
    torch.set_num_threads(1)
    results = FOLDER / "results"
    if not tables_only:
        results.mkdir(exist_ok=True)
        measure(names, effort, note, results / f"{date.today()}.json")
    tables.write(FOLDER / "README.md", sorted(results.glob("[0-9]*.json"))[-1])


def measure(names: tuple[str, ...], effort: float, note: str, out: Path) -> None:
    """Run the benchmarks of these names, or all; `out` has what is there after each of them.

    With names, what `out` already has of the others stays.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    seconds: dict[str, float] = {}
    if names and out.exists():
        before = read_json(out)
        found, seconds = before["measurements"], before["seconds"]
    conditions: dict[str, Any] = {
        "date": str(date.today()),
        "commit": commit(),
        "machine": machine(),
        "packages": packages() | {name: version(name) for name in ("transformers", "trl")},
        "threads": torch.get_num_threads(),
        "note": note,
    }
    load_before = os.getloadavg()[0]
    with started(STEP) as layout:
        benchmarks = plan(layout, effort)
        unknown = set(names) - set(benchmarks)
        if unknown:
            raise click.UsageError(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(benchmarks)}")
        for name in names or benchmarks:
            stopwatch = Clock()
            found[name] = [asdict(each) | {"verdict": each.verdict} for each in benchmarks[name]()]
            seconds[name] = stopwatch.stop().wall
            click.echo(f"{name}: {seconds[name]:.0f} s")
            results = {
                "load_average": {"before": load_before, "after": os.getloadavg()[0]},
                "seconds": {key: seconds[key] for key in benchmarks if key in seconds},
                "measurements": {key: found[key] for key in benchmarks if key in found},
            }
            write_json(out, conditions | results)


if __name__ == "__main__":
    main()
