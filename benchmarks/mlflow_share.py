"""What MLflow adds to a training run: followed live, and imported when it is complete."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

from benchmarks.step import StepSizes
from benchmarks.timing import ESTR, Clock, Measurement, Spent, measured, of_a_process, plus, spent
from estr import stages
from estr.config import RunConfig
from estr.layout import Layout
from estr.provenance import read_json, write_json
from estr.tracking import Follower, RunTracker, Study, load_catalogue, open_study

IMPORT_MLFLOW = "import time; t = time.perf_counter(), time.process_time(); from mlflow.tracking import MlflowClient; \
print(time.perf_counter() - t[0], time.process_time() - t[1])"
AT_MOST = 1.01
REPRODUCTION = 102
"""Runs of `make reproduce`, which one call imports."""


def mlflow_share(
    layout: Layout, sizes: StepSizes, steps: int, turns: int, runs: int = REPRODUCTION
) -> list[Measurement]:
    """Runs of `steps` updates with live tracking on and off, in turn, in units of the run without MLflow.

    The clock of what goes to MLflow runs inside the run with tracking: the difference between two runs would be noise.
    `live` has that time and the client's import, once a process; `live, on against off` is the noisy difference, for
    comparison; `import` is one of `runs` runs that one call of `estr track runs` takes in, in a process of its own.
    """
    study = open_study(layout, load_catalogue(layout.scale))
    config = sizes.config("estr")
    config = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
    off, on, live, imported = [], [], [], []
    for turn in range(turns):
        off.append(_run(layout, config, replace(study, live=False)))
        imported.append(_import(layout, config, turn, runs))
        with _clocked() as inside:
            on.append(_run(layout, config, replace(study, live=True)))
        live += plus([_client_import()], [Spent(sum(s.wall for s in inside), sum(s.cpu for s in inside))])
    case, alone = f"{steps} updates, {off[0].wall:.1f} s", "the run without"
    arms = {"live": plus(off, live), "live, on against off": on, "import": plus(off, imported)}
    found = [measured("MLflow", case, arm, alone, taken, off) for arm, taken in arms.items()]
    return [each if "against" in each.arm else each.aim(at_most=AT_MOST) for each in found]


def _run(layout: Layout, config: RunConfig, study: Study) -> Spent:
    write_json(layout.study, asdict(study))
    shutil.rmtree(layout.run(config), ignore_errors=True)
    return spent(lambda: stages.train(layout, config))


def _import(layout: Layout, config: RunConfig, turn: int, runs: int) -> Spent:
    """`estr track runs` on copies of the run, as the workflow calls it once for all of them: what one of them costs."""
    folder = layout.run(config)
    record = read_json(folder / "run.json")
    write_json(folder / "evaluation.json", {"steps": config.train.steps, "avg@4": 0.5, "pass@4": 0.75})
    with tempfile.TemporaryDirectory(dir=layout.results) as name:
        copies = [Path(name) / str(number) for number in range(runs)]
        for copy in copies:
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("state"))
            other = config.model_copy(update={"seed": 1000 * (turn + 1) + int(copy.name)})
            write_json(copy / "run.json", record | {"run_id": other.run_id, "config": other.model_dump()})
        options = ("--out", f"{name}/runs.json", "--scale", layout.scale, "--results", str(layout.results))
        taken = of_a_process(*ESTR, "track", "runs", *map(str, copies), *options)
    return Spent(taken.wall / runs, taken.cpu / runs)


@contextmanager
def _clocked() -> Iterator[list[Spent]]:
    """What the stage has MLflow do while it trains; all of it goes through one function."""
    inside: list[Spent] = []
    attempt = Follower._attempt

    def timed(follower: Follower, action: Callable[[RunTracker], None]) -> None:
        clock = Clock()
        attempt(follower, action)
        inside.append(clock.stop())

    with patch.object(Follower, "_attempt", timed):
        yield inside


def _client_import() -> Spent:
    answer = subprocess.run([sys.executable, "-c", IMPORT_MLFLOW], check=True, capture_output=True, text=True)
    return Spent(*map(float, answer.stdout.split()))
