"""`estr train` at a scale of the verl engine, with the real verl on two nodes that are processes of this machine."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from cpu_scale import make_workspace
from mlflow.tracking import MlflowClient
from verl_runs import REPOSITORY

from estr.algorithm import build_rule
from estr.report.runs import load_run

pytestmark = pytest.mark.slow

ESTR = Path(sys.executable).with_name("estr")


@pytest.fixture
def workspace(policy_folder: Path, tmp_path: Path) -> Path:
    """A checkout whose scale `cpu` trains the embedded engine's policy for six updates, two per weight version."""
    return make_workspace(policy_folder, tmp_path)


@pytest.fixture
def lab_book(workspace: Path) -> Iterator[str]:
    """A live study of the workspace, behind MLflow's server from the laptop's environment; its address."""
    experiments = workspace / "configs" / "experiments"
    for path in experiments.glob("*.yaml"):
        path.unlink()
    matrix = {"tasks": ["dapo_math"], "methods": ["estr"], "overrides": {"tau": [0.01]}}
    (experiments / "main_results.yaml").write_text(yaml.safe_dump({"title": "Main results", "runs": [matrix]}))
    config = yaml.safe_load((workspace / "configs" / "config.yaml").read_text())
    (workspace / "configs" / "config.yaml").write_text(yaml.safe_dump(config | {"experiments": ["main_results"]}))
    laptop = REPOSITORY / ".venv" / "bin" / "estr"
    assert laptop.exists(), "run `make setup`"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (workspace / "server.txt").open("wb") as log:
        command = [laptop, "ui", "--port", address.rpartition(":")[2]]
        server = subprocess.Popen(
            command, cwd=workspace, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + 300
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=10):
            break
        assert server.poll() is None and time.monotonic() < deadline, (workspace / "server.txt").read_text()[-2000:]
        time.sleep(1)
    opened = [laptop, "track", "open", "--scale", "cpu", "--uri", address, "--live"]
    subprocess.run(opened, cwd=workspace, env=environment, check=True)
    yield address
    os.killpg(server.pid, signal.SIGTERM)
    server.wait()


def start(workspace: Path, rank: int, label: str, nodes: int = 2, **more: str) -> subprocess.Popen:
    environment = dict(os.environ) | {
        "SLURM_NTASKS": str(nodes),
        "SLURM_PROCID": str(rank),
        "ESTR_HEAD": "127.0.0.1",
        "ESTR_TEST_WORKSPACE": str(workspace),
    }
    command = [ESTR, "train", "dapo_math", label, "--scale", "cpu"]
    log = (workspace / f"node{rank}.txt").open("ab")
    return subprocess.Popen(
        command, cwd=workspace, env=environment | more, stdout=log, stderr=log, start_new_session=True
    )


def run_folder(workspace: Path, label: str) -> Path:
    return workspace / "results" / "cpu" / "runs" / "dapo_math" / label / "seed0"


def wait(process: subprocess.Popen, workspace: Path, seconds: float = 420) -> int:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail((workspace / "node0.txt").read_text()[-3000:])


def recorded(state: Path) -> int:
    lines = [line for file in state.glob("*/record/sums-*") for line in file.read_text().splitlines()]
    return max((json.loads(line)["step"] for line in lines), default=0)


def kill_everything(workspace: Path) -> None:
    """Both nodes, Ray's services and workers, verl: all that inherited the workspace's mark; no other Ray."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ESTR_TEST_WORKSPACE") == str(workspace):
                process.kill()


@pytest.fixture(autouse=True)
def nothing_left(workspace: Path):
    yield
    kill_everything(workspace)


def test_train_killed_and_resumed(workspace: Path, policy_folder: Path, lab_book: str) -> None:
    """Both nodes are killed after a checkpoint; the same command goes on; each update counts once, as in MLflow."""
    label = "estr__tau=0.01"
    state = run_folder(workspace, label) / "state"
    slow = {"ESTR_TEST_TOKEN_SECONDS": "0.05"}
    nodes = [start(workspace, rank, label, **slow) for rank in (0, 1)]
    deadline = time.monotonic() + 400
    while not any(state.glob("*/checkpoints/latest_checkpointed_iteration.txt")) or recorded(state) < 3:
        assert all(node.poll() is None for node in nodes), (workspace / "node0.txt").read_text()[-3000:]
        assert time.monotonic() < deadline, (workspace / "node0.txt").read_text()[-3000:]
        time.sleep(1)
    kill_everything(workspace)
    for node in nodes:
        node.wait()

    nodes = [start(workspace, rank, label, **slow) for rank in (0, 1)]
    codes = [wait(node, workspace) for node in nodes]
    assert codes == [0, 0], (workspace / "node0.txt").read_text()[-3000:]

    folder = run_folder(workspace, label)
    run = load_run(folder)  # as the report reads it: steps 1..6, each once
    assert run.metrics["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.metrics["target_version"].tolist() == [0, 0, 1, 1, 2, 2]
    record = json.loads((folder / "run.json").read_text())
    assert len(record["attempts"]) == 2 and all(attempt["ended"] for attempt in record["attempts"])
    assert record["config"]["engine"] == "verl" and record["packages"]["verl"] == "0.9.1"
    tokens = run.read_tokens()
    rule = build_rule("entropy_scaled", tau=0.01, eps=0.01)
    score = tokens["log_ratio"].astype(float) ** 2 / (tokens["entropy"].clip(lower=0).astype(float) + rule.eps)
    assert ((score <= 0.01) == tokens["kept"]).mean() > 0.999
    masked = 1 - tokens.groupby("step")["kept"].mean()
    assert run.metrics["masked_fraction"].to_numpy() == pytest.approx(masked.to_numpy())
    assert (run.metrics["grad_norm"] > 0).all()
    assert 0 < run.metrics["reward"].mean() < 1
    client = MlflowClient(lab_book)
    [place] = [e.experiment_id for e in client.search_experiments() if e.name == "estr-cpu/main_results"]
    [tracked] = client.search_runs([place], "tags.kind = 'run'")
    assert (tracked.info.status, tracked.info.run_id) == ("FINISHED", record["mlflow_run_id"])
    history = client.get_metric_history(tracked.info.run_id, "masked_fraction")
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]
    assert "system/process_memory_megabytes" in tracked.data.metrics

    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = AutoModelForCausalLM.from_pretrained(folder / "policy").state_dict()
    start_from = AutoModelForCausalLM.from_pretrained(policy_folder).state_dict()
    assert trained.keys() == start_from.keys()
    assert any(not torch.equal(trained[name].float(), start_from[name].float()) for name in trained)
    assert len(AutoTokenizer.from_pretrained(folder / "policy")) > 0


def test_a_lost_node_ends_the_job(workspace: Path) -> None:
    nodes = [start(workspace, rank, "async", ESTR_TEST_TOKEN_SECONDS="0.5") for rank in (0, 1)]
    state = run_folder(workspace, "async") / "state"
    deadline = time.monotonic() + 300
    while not any(state.glob("*/trainer-attempt0.log")):
        assert time.monotonic() < deadline and nodes[0].poll() is None, (workspace / "node0.txt").read_text()[-3000:]
        time.sleep(1)
    power_off(nodes[1])
    assert wait(nodes[0], workspace, 300) == 1
    said = (workspace / "node0.txt").read_text()
    assert "1 of 2 nodes left" in said


def power_off(node: subprocess.Popen) -> None:
    """Everything that the node runs is gone at once, Ray included."""
    everything = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    node.wait()


def test_a_checkpoint_is_saved_before_the_job_ends(workspace: Path) -> None:
    """The end of Slurm's job comes near: versions that `save_every` passes over are saved."""
    path = workspace / "configs" / "scales" / "cpu.yaml"
    scale = yaml.safe_load(path.read_text())
    scale["train"]["save_every"] = 1000
    scale["resources"]["hours"] = 25
    path.write_text(yaml.safe_dump(scale))
    end = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3000)}  # less than two fiftieths of 25 hours
    nodes = [start(workspace, rank, "async", ESTR_TEST_TOKEN_SECONDS="0.05", **end) for rank in (0, 1)]
    state = run_folder(workspace, "async") / "state"
    deadline = time.monotonic() + 400
    while not any(state.glob("*/checkpoints/global_step_[12]")):  # the third and last would be saved in any case
        assert all(node.poll() is None for node in nodes), (workspace / "node0.txt").read_text()[-3000:]
        assert time.monotonic() < deadline, (workspace / "node0.txt").read_text()[-3000:]
        time.sleep(1)


def test_wrong_number_of_nodes(workspace: Path) -> None:
    node = start(workspace, 0, "estr", nodes=3)
    assert wait(node, workspace, 60) == 2
    assert "needs 2 nodes" in (workspace / "node0.txt").read_text()
