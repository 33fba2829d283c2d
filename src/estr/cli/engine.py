"""The concurrent engine as a command."""

from pathlib import Path

import click

from estr.cli.group import fail, main, scale_options
from estr.config import resolve
from estr.layout import Layout


@main.command()
@click.argument("task")
@click.argument("label")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@scale_options
def throughput(task: str, label: str, seed: int, scale: str, results: Path) -> None:
    """Measure how fast the concurrent engine trains TASK with the method and overrides that LABEL names.

    \b
      estr throughput dapo_math estr
      estr throughput dapo_math sync

    Rollout and trainer run as two processes on two cores, beside which nothing else should run; a synchronous method
    takes turns on both. Needs the warm start of TASK, and leaves throughput.json, steps.parquet, trajectories.parquet.
    """
    from estr.embedded.concurrent import WorkerFailed
    from estr.measure import measure_throughput
    from estr.provenance import read_json

    try:
        folder = measure_throughput(Layout(results, scale), resolve(scale, task, label, seed))
    except WorkerFailed as error:
        fail(str(error), 1)
    found = read_json(folder / "throughput.json")
    click.echo(
        f"{task} {label}: {found['tokens_per_second']:.0f} tokens/s, {found['step_seconds']['mean']:.3f} s/step, "
        f"idle: trainer {found['trainer_idle_fraction']:.0%}, rollout {found['rollout_idle_fraction']:.0%}"
    )
