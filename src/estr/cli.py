"""`estr`: every stage of the reproduction as a command. The workflow calls these; so may you."""

import ctypes
import itertools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from estr.config import (
    Deviations,
    StudyConfig,
    configs_folder,
    expand,
    load_experiment,
    parse,
    read_yaml,
    resolve,
)
from estr.errors import UserError
from estr.layout import Layout, existing

INTERRUPTED = 130
WARM_START = "warm_start"


class _Commands(click.Group):
    """Turns the mistakes a user can make into one line and exit code 2, everything foreseeable else into 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(str(error), 2)
        except ModuleNotFoundError as error:
            package = (error.name or "?").partition(".")[0]
            _fail(f"the package {package!r} is not installed: run `make setup`", 1)
        except OSError as error:
            _fail(f"{error.filename or 'file system'}: {error.strerror or error}", 1)
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "mlflow":
                raise
            _fail(f"MLflow: {str(error).splitlines()[0]}", 1)


def _fail(message: str, code: int) -> None:
    click.echo(f"estr: error: {message}", err=True)
    sys.exit(code)


def _scale(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--scale", default="laptop", show_default=True, help="a file of configs/scales/")(command)
    return click.option(
        "--results",
        type=click.Path(path_type=Path),
        default=Path("results"),
        show_default=True,
        help="folder of runs and tables",
    )(command)


def _artifacts(command: Callable[..., Any]) -> Callable[..., Any]:
    path = click.Path(path_type=Path)
    command = click.option("--figure", "figures", multiple=True, type=path, help="a figure's .png")(command)
    return click.option("--table", "tables", multiple=True, type=path, help="a table's .csv")(command)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="estr")
def main() -> None:
    """Reproduce *Entropy-Scaled Trust Regions for Asynchronous RL*, stage by stage.

    `snakemake all` runs every stage in order. By hand, for one run:

    \b
      estr data prepare dapo_math
      estr pretrain dapo_math
      estr evaluate dapo_math warm_start
      estr train dapo_math estr --seed 0
      estr evaluate dapo_math estr --seed 0

    A run's label is a method with optional overrides: `estr__tau=1.0__inter=20`, `icepop__thresholds=matched`.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _prepare_process()


def _prepare_process() -> None:
    """One thread per job, and freed memory stays with the process (glibc): half the time of a step is page faults."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(option, 1 << 30)


@main.group()
def data() -> None:
    """Train and evaluation sets."""


@data.command("prepare")
@click.argument("task")
@_scale
def data_prepare(task: str, scale: str, results: Path) -> None:
    """Write the train, evaluation and demonstration sets of TASK, with counts and hashes."""
    from estr.stages import prepare_data

    prepare_data(Layout(results, scale), resolve(scale, task, "sync", 0))


@main.command()
@click.argument("task")
@_scale
def pretrain(task: str, scale: str, results: Path) -> None:
    """Train the tiny policy that every run of TASK starts from."""
    from estr.stages import warm_start

    warm_start(Layout(results, scale), resolve(scale, task, "sync", 0))


@main.command()
@click.argument("task")
@click.argument("label")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@_scale
def train(task: str, label: str, seed: int, scale: str, results: Path) -> None:
    """Train TASK with the method and overrides that LABEL names; a stopped run resumes.

    Ctrl-C ends the run after the current step and leaves a checkpoint.
    """
    from estr.embedded.trainer import Interrupted
    from estr.stages import train as train_stage

    try:
        train_stage(Layout(results, scale), resolve(scale, task, label, seed))
    except Interrupted as stopped:
        _fail(str(stopped), INTERRUPTED)


@main.command()
@click.argument("task")
@click.option("--reference", default="async", show_default=True, help="label of the run whose tokens are shared")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="seed of that run")
@_scale
def calibrate(task: str, reference: str, seed: int, scale: str, results: Path) -> None:
    """Find the thresholds at which every baseline masks as many tokens as ESTR (matched budget)."""
    from estr.stages import calibrate_matched_budget

    calibrate_matched_budget(Layout(results, scale), task, resolve(scale, task, reference, seed))


@main.command()
@click.argument("task")
@click.argument("label")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@_scale
def evaluate(task: str, label: str, seed: int, scale: str, results: Path) -> None:
    """Sample k answers per held-out problem; avg@k and pass@k with intervals.

    LABEL is that of a finished run, or `warm_start` for the policy that all runs start from.
    """
    from estr import stages

    layout = Layout(results, scale)
    if label == WARM_START:
        stages.evaluate_warm_start(layout, resolve(scale, task, "sync", 0))
    else:
        stages.evaluate(layout, resolve(scale, task, label, seed))


@main.command()
@click.argument("name")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="a .csv; .md and .tex go beside it")
@click.option("--calibration", type=click.Path(path_type=Path), help="matched-budget thresholds to print")
def table(name: str, runs: tuple[Path, ...], out: Path, calibration: Path | None) -> None:
    """Write table NAME (table1) from the run folders RUNS: ours beside the paper's."""
    from estr.report.tables import TABLES

    _pick(TABLES, name, "table")(list(runs), calibration, out.with_suffix(""))


@main.command()
@click.argument("name")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="a .png; .pdf and .csv go beside it")
def figure(name: str, runs: tuple[Path, ...], out: Path) -> None:
    """Draw figure NAME (for example fig07_reward) from the run folders RUNS."""
    from estr.report.figures import FIGURES

    _pick(FIGURES, name, "figure")(list(runs), out.with_suffix(""))


def _pick(known: dict[str, Callable[..., None]], name: str, kind: str) -> Callable[..., None]:
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}: there are {', '.join(known)}")
    return known[name]


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@_artifacts
@click.option("--out", type=click.Path(path_type=Path), required=True)
@_scale
def report(
    runs: tuple[Path, ...],
    tables: tuple[Path, ...],
    figures: tuple[Path, ...],
    out: Path,
    scale: str,
    results: Path,
) -> None:
    """Write the self-contained HTML report of the run folders RUNS with their tables and figures."""
    from estr.report.html import ReportContext, write_report

    config = configs_folder()
    deviations = parse(Deviations, read_yaml(config / "paper" / "deviations.yaml"), "configs/paper/deviations.yaml")
    commands = {path.stem: f"snakemake {path}" for path in (*tables, *figures)}
    context: ReportContext = {"commands": commands, "deviations": deviations.of(scale)}
    write_report(Layout(results, scale).root, list(runs), list(tables), list(figures), out, context)


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@_artifacts
@click.option("--out", type=click.Path(path_type=Path), required=True, help="the README.md of that folder")
def reference(runs: tuple[Path, ...], tables: tuple[Path, ...], figures: tuple[Path, ...], out: Path) -> None:
    """Copy tables and pictures of RUNS into the folder that git keeps, with their commit and machine."""
    from estr.report.reference import export_reference

    export_reference(list(runs), list(tables), list(figures), out)


@main.group()
def track() -> None:
    """The MLflow store."""


@track.command("open")
@click.option("--uri", help="tracking store [default: sqlite:///<results>/mlflow.db]")
@_scale
def track_open(uri: str | None, scale: str, results: Path) -> None:
    """Create the store, the experiment and the parent run of a reproduction, and write study.json."""
    from estr.tracking import open_study

    open_study(scale, results, uri, Layout(results, scale).study)


@track.command("publish")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@_artifacts
@click.option("--report", type=click.Path(path_type=Path), required=True)
@_scale
def track_publish(
    runs: tuple[Path, ...],
    tables: tuple[Path, ...],
    figures: tuple[Path, ...],
    report: Path,
    scale: str,
    results: Path,
) -> None:
    """Put the evaluations of RUNS into their MLflow runs, and tables, figures and report into the parent."""
    from estr.tracking import Study, publish

    study = Study.load(existing(Layout(results, scale).study, "estr track open"))
    publish(study, runs, tables, figures, report)


@main.command()
@click.option("--port", type=click.IntRange(1024, 65535), default=5000, show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
def ui(port: int, results: Path) -> None:
    """Serve the MLflow store on 127.0.0.1."""
    from estr.tracking import default_uri

    existing(results / "mlflow.db", "make reproduce")
    command = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", default_uri(results)]
    os.execv(sys.executable, [sys.executable, *command])


@main.command("check-config")
def check_config() -> None:
    """Validate every file under configs/, down to each run's thresholds, and count the runs of each experiment."""
    folder = configs_folder()
    parse(StudyConfig, read_yaml(folder / "config.yaml"), "configs/config.yaml")
    parse(Deviations, read_yaml(folder / "paper" / "deviations.yaml"), "configs/paper/deviations.yaml")
    kinds = ("scales", "experiments", "methods", "tasks")
    names = {kind: sorted(path.stem for path in (folder / kind).glob("*.yaml")) for kind in kinds}
    for scale in names["scales"]:
        for task, method in itertools.product(names["tasks"], names["methods"]):
            resolve(scale, task, method, 0)
        for name in names["experiments"]:
            click.echo(f"{scale} {name}: {len(expand(load_experiment(name), scale))} runs")
