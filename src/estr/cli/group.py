"""The command group, its error handling, and options that several commands share."""

import ctypes
import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from estr.errors import UserError

PATH = click.Path(path_type=Path)


ADVICE = {
    errno.ENOSPC: "make room, and the same command goes on from there",
    errno.EDQUOT: "make room, and the same command goes on from there",
    errno.EROFS: "mount it for writing, or choose another place (--results, --out)",
}


class Commands(click.Group):
    """Turns the mistakes a user can make into one line and exit code 2, everything foreseeable else into 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            fail(str(error), 2)
        except ModuleNotFoundError as error:
            package = (error.name or "?").partition(".")[0]
            fail(f"the package {package!r} is not installed: run `make setup`", 1)
        except OSError as error:
            said = f"{error.filename or 'file system'}: {error.strerror or error}"
            fail("; ".join(filter(None, (said, ADVICE.get(error.errno or 0)))), 1)
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "mlflow":
                raise
            fail(f"MLflow: {str(error).splitlines()[0]}", 1)


def fail(message: str, code: int) -> None:
    click.echo(f"estr: error: {message}", err=True)
    sys.exit(code)


def scale_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--scale", default="laptop", show_default=True, help="a file of configs/scales/")(command)
    return click.option(
        "--results",
        type=PATH,
        default=Path("results"),
        show_default=True,
        help="folder of runs and tables",
    )(command)


def artifact_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--figure", "figures", multiple=True, type=PATH, help="a figure's .png")(command)
    return click.option("--table", "tables", multiple=True, type=PATH, help="a table's .csv")(command)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
