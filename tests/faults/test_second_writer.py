"""Two commands on one run: the second refuses and says who is there; a killed one leaves no lock behind."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import EVALUATE, EVALUATE_WARM_START, RUN, SCALE, TASK, TRAIN, WARM_START, Started, finish, said, start
from same import assert_same_evaluation, assert_same_training

from estr.config import ClusterRun, load_site, resolve_any
from estr.errors import UserError
from estr.files.lock import NAME, only_writer
from estr.layout import Layout

EVALUATE_MODEL = ("evaluate", "--model", str(WARM_START), "--task", TASK, "--data", f"results/{SCALE}/data/{TASK}")
EVALUATE_MODEL += ("--samples", "1", "--out", "out")


@contextmanager
def held(folder: Path, lock: Path, *command: str) -> Iterator[Started]:
    """A command that has the lock and is stopped by SIGSTOP; at the end of the block it goes on to its own."""
    first = start(folder, *command)
    try:
        first.until(lambda: lock.exists() and lock.stat().st_size > 0)
        first.send(signal.SIGSTOP)
        assert first.running()
        yield first
        first.send(signal.SIGCONT)
        assert first.wait() == 0
    finally:
        first.process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "where"),
    [
        (TRAIN, TRAIN, RUN),
        (EVALUATE_WARM_START, EVALUATE_WARM_START, WARM_START),
        (EVALUATE_WARM_START, ("pretrain", TASK), WARM_START),
        (EVALUATE_MODEL, EVALUATE_MODEL, Path("out")),
    ],
    ids=["train", "evaluate", "pretrain", "evaluate model"],
)
def test_the_second_command_refuses_and_the_first_goes_on(
    first: tuple[str, ...], second: tuple[str, ...], where: Path, prepared: Path, unbroken: Path
) -> None:
    with held(prepared, prepared / where / NAME, *first) as running:
        before = sorted((prepared / where).rglob("*"))
        line = said(finish(prepared, *second, code=2))
        assert line.startswith(f"estr: error: {where}: process {running.pid} on ") and ", started 20" in line
        assert sorted((prepared / where).rglob("*")) == before
    if first == TRAIN:
        assert_same_training(prepared, unbroken)
    elif where == WARM_START:
        assert_same_evaluation(prepared, unbroken, WARM_START)
    assert (prepared / where / NAME).read_bytes() == b""


@pytest.mark.slow
def test_a_run_that_is_evaluated_is_not_trained(finished: Path, unbroken: Path) -> None:
    (finished / RUN / "samples.jsonl").unlink()
    with held(finished, finished / RUN / NAME, *EVALUATE) as running:
        assert f"process {running.pid} on " in said(finish(finished, *TRAIN, code=2))
    assert_same_evaluation(finished, unbroken)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = "import sys, time, pathlib, estr.files.lock as l, subprocess\n"
    script += f"with l.only_writer(pathlib.Path({str(tmp_path)!r})):\n"
    script += "    subprocess.Popen(['sleep', '30']); print('locked', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    with pytest.raises(UserError, match=f"process {process.pid} on "), only_writer(tmp_path):
        pass
    process.kill()
    process.wait()
    with only_writer(tmp_path):  # although a child of the killed one still runs
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    os.killpg(process.pid, signal.SIGKILL)


def test_a_holder_that_has_not_said_who_it_is(tmp_path: Path) -> None:
    with (tmp_path / NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=f"{tmp_path}: another process writes here"), only_writer(tmp_path):
            pass


def test_the_first_node_of_a_verl_run_refuses_as_well(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from estr.cluster.launch.driver import train

    run = resolve_any("paper", "gsm8k", "async", 0)
    assert isinstance(run, ClusterRun)
    site = load_site().model_copy(update={"models": str(tmp_path / "models")})
    layout = Layout(tmp_path / "results", "paper")
    model, data = tmp_path / "models" / run.policy.model, layout.data("gsm8k")
    for path in (model / "config.json", model / "model.safetensors", data / "train.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    slurm = {"SLURM_NTASKS": str(run.resources.nodes), "SLURM_PROCID": "0", "ESTR_HEAD": "127.0.0.1"}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    with only_writer(layout.run(run)), pytest.raises(UserError, match=f"process {os.getpid()} on .* writes here"):
        train(layout, run, site)
    assert not (layout.run(run) / "state").exists()
