"""`estr track`, `estr ui`: MLflow as the lab book."""

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from estr.cli.group import PATH, artifact_options, main, scale_options
from estr.config import load_study
from estr.errors import UserError
from estr.layout import Layout, existing

if TYPE_CHECKING:
    from estr.tracking import Study

LOOPBACK = ("127.0.0.1", "localhost")


@main.group()
def track() -> None:
    """The MLflow store: a view of results/ that `estr track import` can always make again."""


@track.command("open")
@click.option("--uri", help="tracking store [default: sqlite:///<results>/mlflow.db]")
@click.option("--live", is_flag=True, help="runs log while they train, not only when they are complete")
@scale_options
def track_open(uri: str | None, live: bool, scale: str, results: Path) -> None:
    """Create the store with an experiment and a parent run for every experiment of the paper; write study.json.

    What is there already is used again.
    """
    from estr.tracking import load_catalogue, open_study

    open_study(Layout(results, scale), load_catalogue(scale), uri, live)


@track.command("runs")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", type=PATH, required=True, help="a .json: the MLflow run of every run")
@scale_options
def track_runs(runs: tuple[Path, ...], out: Path, scale: str, results: Path) -> None:
    """Put the complete runs RUNS with their evaluations into the store; what it has already stays."""
    from estr.tracking import import_runs, load_catalogue

    layout, catalogue = Layout(results, scale), load_catalogue(scale)
    import_runs(_reopened(layout), layout, catalogue, runs, out)


@track.command("publish")
@artifact_options
@click.option("--report", type=PATH, required=True)
@scale_options
def track_publish(tables: tuple[Path, ...], figures: tuple[Path, ...], report: Path, scale: str, results: Path) -> None:
    """Put tables, figures and report into the parent runs, with links from table rows to runs."""
    from estr.tracking import load_catalogue, publish

    publish(_reopened(Layout(results, scale)), load_catalogue(scale), tables, figures, report)


@track.command("import")
@click.option("--uri", help="tracking store [default: that of study.json, else sqlite:///<results>/mlflow.db]")
@scale_options
def track_import(uri: str | None, scale: str, results: Path) -> None:
    """Put everything that is complete under results/ into the store; what it has already stays.

    For a store that was deleted, damaged or moved, and for runs that were trained elsewhere and copied here.
    """
    from estr.tracking import import_runs, load_catalogue, publish

    layout, catalogue = Layout(results, scale), load_catalogue(scale)
    runs = sorted(path.parent for path in (layout.root / "runs").glob("*/*/seed*/run.json"))
    evaluated = [folder for folder in runs if (folder / "evaluation.json").exists()]
    if len(evaluated) < len(runs):
        missing = sorted(set(runs) - set(evaluated))
        click.echo(f"not evaluated yet, left out: {', '.join(map(str, missing))}", err=True)
    study = _reopened(layout, uri)
    import_runs(study, layout, catalogue, evaluated, layout.tracked_runs)
    tables = sorted((layout.root / "tables").glob("*.csv"))
    figures = sorted((Path(load_study().figures) / scale).glob("*.png"))
    report = layout.root / "report.html"
    publish(study, catalogue, tables, figures, report if report.exists() else None)
    click.echo(f"{len(evaluated)} runs, {len(tables)} tables, {len(figures)} figures in {study.tracking_uri}")


def _reopened(layout: Layout, uri: str | None = None) -> "Study":
    """The study of this commit in the store of study.json, whether or not it still has what was there."""
    from estr.tracking import Study, load_catalogue, open_study

    try:
        known = Study.load(layout)
        uri, live = uri or known.tracking_uri, known.live
    except UserError:  # not opened yet, or by another version
        live = False
    return open_study(layout, load_catalogue(layout.scale), uri, live)


@track.command("views")
@click.option("--server", default="http://127.0.0.1:5000", show_default=True, help="where the store is served")
@scale_options
def track_views(server: str, scale: str, results: Path) -> None:
    """Print links to the saved views: filters, columns and order of the runs' tables."""
    from estr.tracking import VIEWS, Study, link_of

    study = Study.load(Layout(results, scale))
    for view in VIEWS:
        click.echo(f"{view.title}\n  {server}/{link_of(study, view)}")


@main.command()
@click.option("--port", type=click.IntRange(1024, 65535), default=5000, show_default=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="the address to listen on; any other than this one lets everybody who reaches it read and write",
)
@click.option("--results", type=PATH, default=Path("results"), show_default=True)
def ui(port: int, host: str, results: Path) -> None:
    """Serve the MLflow store. With --host, for the jobs of a cluster as well (docs/tracking.md)."""
    from estr.tracking import default_uri

    existing(results, "make reproduce")
    names, artifacts = list(LOOPBACK), (results / "mlartifacts").resolve().as_uri()
    command = ["-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", default_uri(results)]
    if host in LOOPBACK:  # who logs here writes files here
        command += ["--no-serve-artifacts", "--default-artifact-root", artifacts]
    else:
        command += ["--artifacts-destination", artifacts]
        names += [host, socket.gethostname(), socket.getfqdn()]
        click.echo(
            f"everybody who reaches {host}:{port} can read and change the store: it asks for no password", err=True
        )
    # by default MLflow answers to names that a foreign page can claim
    command += ["--allowed-hosts", ",".join(f"{name}:{port}" for name in dict.fromkeys(names))]
    os.environ |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    os.execv(sys.executable, [sys.executable, *command])
