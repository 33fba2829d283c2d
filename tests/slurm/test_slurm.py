"""`snakemake --profile slurm` on a real Slurm: a run of the verl engine on two nodes, cancelled while it trains."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
import yaml

REPOSITORY = Path(__file__).parents[2]
VERL = REPOSITORY / ".venv-verl" / "bin"
sys.path.append(str(REPOSITORY / "tests" / "cluster" / "verl"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(slurm_cluster.available() is not None, reason=str(slurm_cluster.available())),
    pytest.mark.skipif(not (VERL / "estr").exists(), reason="no environment with verl; make cluster-env builds it"),
]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout whose scale `cpu` is a run of minutes, its jobs in verl's environment."""
    from cpu_scale import make_workspace, tiny_policy

    make_workspace(tiny_policy(tmp_path / "policy"), tmp_path)
    only_matched_budget(tmp_path / "configs")
    (tmp_path / "workflow").symlink_to(REPOSITORY / "workflow")
    (tmp_path / "environments").symlink_to(REPOSITORY / "environments")
    (tmp_path / "slurm").symlink_to("workflow/profiles/slurm")
    site = yaml.safe_load((tmp_path / "configs" / "site.yaml").read_text())
    site |= {"launch": f"{VERL}/{{command}}", "memory_gb": 8}
    # the nodes have names that nobody else resolves; a slow sampler, so that there is a middle to cancel in
    site["setup"] = "export ESTR_HEAD=127.0.0.1 ESTR_TEST_TOKEN_SECONDS=0.05"
    (tmp_path / "configs" / "site.yaml").write_text(yaml.safe_dump(site))
    return tmp_path


def only_matched_budget(configs: Path) -> None:
    """An experiment whose runs the scale has."""
    for path in (configs / "experiments").iterdir():
        path.unlink()
    runs = [
        {"tasks": ["dapo_math"], "methods": ["async"]},
        {"tasks": ["dapo_math"], "methods": ["icepop"], "overrides": {"thresholds": ["matched"]}},
    ]
    (configs / "experiments" / "small.yaml").write_text(yaml.safe_dump({"title": "Small", "runs": runs}))
    study = yaml.safe_load((configs / "config.yaml").read_text()) | {"experiments": ["small"]}
    (configs / "config.yaml").write_text(yaml.safe_dump(study))


def test_cancelled_training_resumes(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = workspace / "results" / "cpu" / "runs" / "dapo_math" / "async" / "seed0"
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")):
        environment = dict(os.environ) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        log = (workspace / "snakemake.txt").open("w")
        command = ["snakemake", "--profile", "slurm", "--config", "scale=cpu", "--latency-wait", "10"]
        command += ["--", "results/cpu/calibration/dapo_math.json"]
        process = subprocess.Popen(command, cwd=workspace, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            first = _training_job(process, run, workspace)
            assert first["nodes"] == "2" and first["gres"] == "gres:gpu:h800:1", first
            subprocess.run(["scancel", first["id"]], check=True)
            assert process.wait(timeout=900) == 0, _said(workspace)
        finally:
            process.kill()  # asked politely it would wait for its jobs, and cancel those of the next cluster
    record = json.loads((run / "run.json").read_text())
    jobs = [attempt["slurm_job"] for attempt in record["attempts"]]
    assert len(jobs) == 2 and jobs[0] == first["id"] and jobs[1] != first["id"]
    assert record["steps"] == 6
    assert record["attempts"][1]["updates_before"] >= 2
    thresholds = json.loads((workspace / "results" / "cpu" / "calibration" / "dapo_math.json").read_text())["rules"]
    assert set(thresholds) == {"icepop", "kpop", "m2po"}


def _training_job(process: subprocess.Popen, run: Path, workspace: Path) -> dict[str, str]:
    """The job that trains, once it has a checkpoint."""
    deadline = time.monotonic() + 600
    while not any(run.glob("state/*/checkpoints/latest_checkpointed_iteration.txt")):
        assert process.poll() is None and time.monotonic() < deadline, _said(workspace)
        time.sleep(1)
    (job,) = [job for job in slurm_cluster.queue() if job["state"] == "RUNNING"]
    return job


def _said(workspace: Path) -> str:
    logs = sorted((workspace / "logs").rglob("*.log"))
    return (workspace / "snakemake.txt").read_text()[-3000:] + "".join(log.read_text()[-1500:] for log in logs[-3:])
