"""The stages of the reproduction as commands. The workflow calls these; so may you."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click

from estr.cli.group import PATH, artifact_options, fail, main, scale_options
from estr.config import (
    ClusterRun,
    Deviations,
    configs_folder,
    expand,
    load_any_scale,
    load_experiment,
    load_site,
    load_study,
    parse,
    read_yaml,
    resolve,
    resolve_any,
)
from estr.errors import UserError
from estr.layout import PAPER, Layout

INTERRUPTED = 130
WARM_START = "warm_start"


@main.group()
def data() -> None:
    """Train and evaluation sets."""


@data.command("prepare")
@click.argument("task")
@click.option("--from", "source", type=PATH, help="folder with local copies of the published data sets")
@click.option(
    "--oracle/--calculator",
    default=True,
    show_default=True,
    help="gsm8k: verl's answer-checking tool (the paper's setting), or a calculator",
)
@click.option("--get-document", is_flag=True, help="browsecomp_plus: offer get_document beside search")
@click.option("--corpus/--no-corpus", default=None, help="documents to search [default: browsecomp_plus only]")
@scale_options
def data_prepare(
    task: str,
    source: Path | None,
    oracle: bool,
    get_document: bool,
    corpus: bool | None,
    scale: str,
    results: Path,
) -> None:
    """Write the train and evaluation sets of TASK, with counts and hashes.

    At scale `paper` these are the published benchmarks, from the Hugging Face Hub or from copies (--from); the other
    options are theirs. At every other scale it is the laptop counterpart, with demonstrations for the warm start.
    """
    folder = Layout(results, scale).data(task)
    if scale == PAPER:
        from estr.data.benchmarks import prepare_benchmark

        prepare_benchmark(task, folder, source, oracle=oracle, get_document=get_document, corpus=corpus)
        return
    if source is not None:
        raise UserError(f"--from is for the published data sets: add --scale {PAPER}")
    from estr.stages import prepare_data

    prepare_data(Layout(results, scale), resolve(scale, task, "sync", 0))


@main.command()
@click.argument("task")
@scale_options
def pretrain(task: str, scale: str, results: Path) -> None:
    """Train the tiny policy that every run of TASK starts from."""
    from estr.stages import warm_start

    warm_start(Layout(results, scale), resolve(scale, task, "sync", 0))


@main.command()
@click.argument("task")
@click.argument("label")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@scale_options
def train(task: str, label: str, seed: int, scale: str, results: Path) -> None:
    """Train TASK with the method and overrides that LABEL names; a stopped run resumes.

    Ctrl-C ends the run after the current step and leaves a checkpoint. At a scale of the verl engine this is one
    process per node of a Slurm job (docs/cluster.md), and a stopped run resumes at verl's last checkpoint.
    """
    config = resolve_any(scale, task, label, seed)
    if isinstance(config, ClusterRun):
        _train_in_verl(Layout(results, scale), config)
        return
    from estr.embedded.trainer import Interrupted
    from estr.stages import train as train_stage

    try:
        train_stage(Layout(results, scale), config)
    except Interrupted as stopped:
        fail(str(stopped), INTERRUPTED)


def _train_in_verl(layout: Layout, config: ClusterRun) -> None:
    from estr.cluster.launch.allocation import NodeLost
    from estr.cluster.launch.driver import train as train_in_verl

    try:
        train_in_verl(layout, config, load_site())
    except NodeLost as error:
        fail(str(error), 1)


@main.command()
@click.argument("task")
@click.option("--reference", default="async", show_default=True, help="label of the run whose tokens are shared")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="seed of that run")
@scale_options
def calibrate(task: str, reference: str, seed: int, scale: str, results: Path) -> None:
    """Find the thresholds at which every baseline masks as many tokens as ESTR (matched budget)."""
    from estr.matched_budget import calibrate_matched_budget

    calibrate_matched_budget(Layout(results, scale), task, resolve_any(scale, task, reference, seed))


@main.command()
@click.argument("task")
@click.argument("label")
@click.option("--axis", type=click.Choice(["learning_rate", "inter"]), required=True, help="what is raised")
@scale_options
def frontier(task: str, label: str, axis: Literal["learning_rate", "inter"], scale: str, results: Path) -> None:
    """Find the largest learning rate or inter-trajectory staleness at which LABEL does not collapse on TASK.

    Bisection over the scale's values with one seed, confirmed by the majority of three; a collapsed run is stopped
    early, and a stopped search goes on where it was.
    """
    from estr.embedded.trainer import Interrupted
    from estr.frontier import find_frontier

    try:
        find_frontier(Layout(results, scale), resolve(scale, task, label, 0), axis)
    except Interrupted:
        fail("stopped; the finished runs are kept, and the same command goes on from there", INTERRUPTED)


@main.command()
@click.argument("name")
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--out", type=PATH, required=True, help="a .csv; .md and .tex go beside it")
@click.option("--calibration", "calibrations", multiple=True, type=PATH, help="matched-budget thresholds of a task")
def table(name: str, folders: tuple[Path, ...], out: Path, calibrations: tuple[Path, ...]) -> None:
    """Write table NAME (for example table1) from FOLDERS of runs, measurements and samples: ours beside the paper's."""
    from estr.report.tables import TABLES

    _pick(TABLES, name, "table")(list(folders), list(calibrations), out.with_suffix(""))


@main.command()
@click.argument("name")
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--out", type=PATH, required=True, help="a .png; .pdf and .csv go beside it")
def figure(name: str, folders: tuple[Path, ...], out: Path) -> None:
    """Draw figure NAME (for example fig08_masking) from FOLDERS of runs, measurements and samples."""
    from estr.report.figures import FIGURES

    _pick(FIGURES, name, "figure")(list(folders), out.with_suffix(""))


def _pick(known: dict[str, Callable[..., None]], name: str, kind: str) -> Callable[..., None]:
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}: there are {', '.join(known)}")
    return known[name]


@main.command()
@click.argument("folders", nargs=-1, required=True, type=PATH)
@artifact_options
@click.option("--mlflow", type=PATH, help="what `estr track runs` wrote: links to the runs there")
@click.option("--out", type=PATH, required=True)
@scale_options
def report(
    folders: tuple[Path, ...],
    mlflow: Path | None,
    tables: tuple[Path, ...],
    figures: tuple[Path, ...],
    out: Path,
    scale: str,
    results: Path,
) -> None:
    """Write the self-contained HTML report of FOLDERS (runs, measurements, samples) with their tables and figures."""
    from estr.provenance import read_json
    from estr.report.html import ReportContext, write_report

    config = configs_folder()
    deviations = parse(Deviations, read_yaml(config / "paper" / "deviations.yaml"), "configs/paper/deviations.yaml")
    used = {"scale": scale, "results": str(results)}
    if figures and figures[0].parent.name == scale:
        used["figures"] = str(figures[0].parents[1])
    study = load_study()
    overrides = [f"{key}={value}" for key, value in used.items() if value != getattr(study, key)]
    option = f" --config {' '.join(overrides)}" if overrides else ""
    commands = {path.stem: f"snakemake {path}{option}" for path in (*tables, *figures)}
    context: ReportContext = {"commands": commands, "deviations": deviations.of(scale)}
    if mlflow is not None:
        context["mlflow"] = read_json(mlflow)
    write_report(Layout(results, scale).root, list(folders), list(tables), list(figures), out, context)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=PATH)
@artifact_options
@click.option("--out", type=PATH, required=True, help="the README.md of that folder")
def reference(folders: tuple[Path, ...], tables: tuple[Path, ...], figures: tuple[Path, ...], out: Path) -> None:
    """Copy tables and pictures made from FOLDERS into the folder that git keeps, with their commit and machine."""
    from estr.report.reference import export_reference

    export_reference(list(folders), list(tables), list(figures), out)


@main.command("check-config")
def check_config() -> None:
    """Validate every file under configs/, down to each run's thresholds, and count the runs of each experiment."""
    folder = configs_folder()
    load_study()
    parse(Deviations, read_yaml(folder / "paper" / "deviations.yaml"), "configs/paper/deviations.yaml")
    load_site()
    kinds = ("scales", "experiments", "methods")
    names = {kind: sorted(path.stem for path in (folder / kind).glob("*.yaml")) for kind in kinds}
    for scale in names["scales"]:
        found = load_any_scale(scale)
        for task, method in itertools.product(found.tasks, names["methods"]):
            resolve_any(scale, task, method, 0)
        for name in names["experiments"]:
            experiment = load_experiment(name)
            if found.engine in experiment.engines:
                click.echo(f"{scale} {name}: {len(expand(experiment.runs, scale))} runs")
