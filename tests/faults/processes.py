"""`estr` commands as processes of their own, forked from a server that has imported torch already."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

TASK, LABEL, SCALE = "dapo_math", "estr", "tiny"
TRAIN = ("train", TASK, LABEL)
EVALUATE = ("evaluate", TASK, LABEL)
EVALUATE_WARM_START = ("evaluate", TASK, "warm_start")
RUN = Path("results", SCALE, "runs", TASK, LABEL, "seed0")
WARM_START = Path("results", SCALE, "warm_start", TASK)
PATIENCE = 120.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["estr.cli", "estr.stages", "estr.report.tables", "estr.report.figures"])


@dataclass(frozen=True)
class Started:
    """A command that runs in `folder`; `log` takes what it prints."""

    process: BaseProcess
    log: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def running(self) -> bool:
        return self.process.exitcode is None

    def send(self, number: signal.Signals) -> None:
        if self.running():
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, self.log.read_text()
        return self.process.exitcode

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until then, or until the command has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.running() and not reached():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.001)


def start(folder: Path, *arguments: str, scale: str = SCALE, **environment: str) -> Started:
    """Begin `estr <arguments>` in `folder`, at scale `tiny` unless a model is named."""
    options = [] if "--model" in arguments or not scale else ["--scale", scale]
    log = folder.parent / f"{folder.name}-{arguments[0]}.log"
    process = _context.Process(target=_main, args=([*arguments, *options], folder, log, environment))
    process.start()
    return Started(process, log)


def finish(folder: Path, *arguments: str, code: int = 0, **more: str) -> str:
    """Run `estr <arguments>` to its end; returns what it printed."""
    started = start(folder, *arguments, **more)
    assert started.wait() == code, started.log.read_text()
    return started.log.read_text()


def said(printed: str) -> str:
    """The one line that a command which fails has to print."""
    lines = [line for line in printed.splitlines() if line.startswith("estr: error:")]
    assert len(lines) == 1 and "Traceback" not in printed, printed
    return lines[0]


def _main(arguments: list[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    from estr.cli import main

    os.chdir(folder)
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    main(arguments, prog_name="estr")
