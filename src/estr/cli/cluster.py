"""The paper's scale from the command line: what a job would run, and the models it needs."""

import shlex
from pathlib import Path

import click

from estr.cli.group import PATH, main
from estr.config import ClusterRun, load_site, resolve_any
from estr.errors import UserError
from estr.layout import PAPER, Layout


@main.group()
def cluster() -> None:
    """The verl engine: what a Slurm job of `snakemake --profile slurm` runs, and what it needs. See docs/cluster.md."""


@cluster.command()
@click.argument("task")
@click.argument("label")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--scale", default=PAPER, show_default=True, help="a file of configs/scales/ with engine: verl")
@click.option("--results", type=PATH, default=Path("results"), show_default=True, help="folder of runs and tables")
def command(task: str, label: str, seed: int, scale: str, results: Path) -> None:
    """Print the verl command that trains TASK with the method and overrides of LABEL; nothing is run.

    \b
      estr cluster command dapo_math estr
      estr cluster command gsm8k estr__tau=1.0
    """
    from estr.cluster.launch.command import Place, verl_command

    run, site, layout = cluster_run(scale, task, label, seed), load_site(), Layout(results, scale)
    model = Path(run.policy.model)
    place = Place(
        model=model if model.is_absolute() else Path(site.models).absolute() / model,
        data=layout.data(task).absolute(),
        state=layout.run(run).absolute() / "state",
        retriever=site.retrievers.get(task),
    )
    made = verl_command(run, place, site, tools=run.train.turns > 1 and task != "dapo_math")
    variables = [f"{key}={shlex.quote(value)}" for key, value in made.environment.items()]
    lines = [*variables, f"python -m {made.module}", *map(shlex.quote, made.settings)]
    click.echo(" \\\n  ".join(lines))


@cluster.command()
@click.argument("name")
@click.option("--revision", help="commit, branch or tag [default: the newest]")
def model(name: str, revision: str | None) -> None:
    """Fetch the model NAME from the Hugging Face Hub into the site's folder of models.

    \b
      estr cluster model Qwen/Qwen2.5-7B
    """
    from huggingface_hub import snapshot_download

    folder = Path(load_site().models) / name
    snapshot_download(
        name, revision=revision, local_dir=folder, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]
    )
    click.echo(folder)


def cluster_run(scale: str, task: str, label: str, seed: int) -> ClusterRun:
    """A run of the verl engine. Raises `UserError` if the scale trains in the embedded one."""
    run = resolve_any(scale, task, label, seed)
    if not isinstance(run, ClusterRun):
        raise UserError(
            f"scale {scale!r} trains in the embedded engine; this is for one with engine: verl, such as {PAPER}"
        )
    return run
