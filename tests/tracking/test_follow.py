"""A training followed by a real server that goes away, comes back, or hangs."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from tests.reproduction import BIN, ENVIRONMENT
from tests.servers import free_port, mlflow_server

RUN = "results/smoke/runs/dapo_math/estr/seed0"
STEPS, EVERY = 60, 5
pytestmark = pytest.mark.slow


def estr(folder: Path, *arguments: str) -> str:
    command = [str(BIN / "estr"), *arguments, "--scale", "smoke"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr


@pytest.fixture
def prepared(workspace: Path) -> Path:
    """A checkout whose smoke scale trains for STEPS steps with a checkpoint every EVERY, data and warm start made."""
    scale = workspace / "configs/scales/smoke.yaml"
    text = scale.read_text()
    text = re.sub(r"(?m)^  steps: 20$", f"  steps: {STEPS}", text, count=1)
    text = re.sub(r"(?m)^  checkpoint_every: 10$", f"  checkpoint_every: {EVERY}", text, count=1)
    scale.write_text(text)
    estr(workspace, "data", "prepare", "dapo_math")
    estr(workspace, "pretrain", "dapo_math")
    return workspace


def reached(folder: Path) -> int:
    """The step of the newest checkpoint."""
    notes = (folder / RUN / "state").glob("*/step*.json")
    return max((int(re.findall(r"\d+", note.name)[0]) for note in notes), default=0)


def logged(address: str, folder: Path) -> tuple[str, list[int]]:
    """Status and logged steps of the one MLflow run that there is."""
    client = MlflowClient(address)
    study = json.loads((folder / "results/smoke/mlflow/study.json").read_text())
    place = study["chapters"]["main_results"]["experiment_id"]
    [run] = client.search_runs([place], "tags.kind = 'run'")
    return run.info.status, [point.step for point in client.get_metric_history(run.info.run_id, "reward")]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_server_that_is_away_costs_neither_the_training_nor_a_point(prepared: Path, comes_back: bool) -> None:
    port = free_port()
    with mlflow_server(prepared, port) as address:
        estr(prepared, "track", "open", "--uri", address, "--live")
        command = [str(BIN / "estr"), "train", "dapo_math", "estr", "--scale", "smoke"]
        training = subprocess.Popen(command, cwd=prepared, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        while reached(prepared) < 2 * EVERY:
            assert training.poll() is None
            time.sleep(0.05)
    if comes_back:
        os.kill(training.pid, signal.SIGSTOP)  # so that the server is back before the end
        with mlflow_server(prepared, port) as address:
            os.kill(training.pid, signal.SIGCONT)
            _, errors = training.communicate()
            assert logged(address, prepared) == ("FINISHED", list(range(1, STEPS + 1)))
    else:
        _, errors = training.communicate()
        assert "MLflow did not take this" in errors and "Traceback" not in errors
        estr(prepared, "evaluate", "dapo_math", "warm_start")
        estr(prepared, "evaluate", "dapo_math", "estr")
        with mlflow_server(prepared, port) as address:
            estr(prepared, "track", "import")
            assert logged(address, prepared) == ("FINISHED", list(range(1, STEPS + 1)))
    assert training.returncode == 0, errors
    assert pq.read_table(prepared / RUN / "metrics.parquet")["step"].to_pylist() == list(range(1, STEPS + 1))


def test_a_server_that_hangs_does_not_hold_up_the_training(prepared: Path) -> None:
    with mlflow_server(prepared, free_port()) as address:
        estr(prepared, "track", "open", "--uri", address, "--live")
        command = [str(BIN / "estr"), "train", "dapo_math", "estr", "--scale", "smoke"]
        training = subprocess.Popen(command, cwd=prepared, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        while reached(prepared) < EVERY:
            assert training.poll() is None
            time.sleep(0.05)
        [group] = {os.getpgid(process.pid) for process in psutil.process_iter() if address[-5:] in process.cmdline()}
        os.killpg(group, signal.SIGSTOP)
        try:
            _, errors = training.communicate(timeout=300)
        finally:
            os.killpg(group, signal.SIGCONT)
        assert training.returncode == 0
        assert errors.count("MLflow did not take this") <= 3  # left alone for a minute after each failure
        estr(prepared, "evaluate", "dapo_math", "warm_start")
        estr(prepared, "evaluate", "dapo_math", "estr")
        estr(prepared, "track", "import")
        assert logged(address, prepared) == ("FINISHED", list(range(1, STEPS + 1)))
