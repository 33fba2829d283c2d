"""The real Snakemake on the real rules, from an empty folder to the report, and what a change then reruns."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from estr.config import load_experiment
from tests.reproduction import BIN, ENVIRONMENT, REPOSITORY, planned, snakemake

RUNS = "results/smoke/runs/dapo_math"
EXPERIMENTS = [
    load_experiment(name) for name in yaml.safe_load((REPOSITORY / "configs/config.yaml").read_text())["experiments"]
]
TABLES = [name for experiment in EXPERIMENTS for name in experiment.tables]
FIGURES = [name for experiment in EXPERIMENTS for name in experiment.figures]
# 18 main results, 3 at the matched budget, 8 of the staleness sweep, 3 components, 4 values of tau, 3 batch sizes
RUN_COUNT = 39


@pytest.fixture
def checkout(workspace: Path) -> Path:
    return workspace


def test_lint_is_clean(checkout: Path) -> None:
    assert "Congratulations" in snakemake(checkout, "--lint")


def test_plan_of_an_empty_folder(checkout: Path) -> None:
    jobs = planned(checkout)
    assert (jobs["train"], jobs["evaluate"], jobs["pretrain"], jobs["calibrate"]) == (RUN_COUNT, RUN_COUNT, 3, 1)
    assert (jobs["throughput"], jobs["sample"]) == (6, 1)
    assert (jobs["table"], jobs["figure"]) == (len(TABLES), len(FIGURES))
    assert (jobs["claims"], jobs["html"], jobs["open_study"], jobs["track_runs"], jobs["track"]) == (1, 1, 1, 1, 1)
    one = planned(checkout, f"{RUNS}/estr__tau=1.0/seed7/evaluation.json")
    chain = ("open_study", "prepare", "pretrain", "evaluate_warm_start", "train", "evaluate")
    assert one == dict.fromkeys(chain, 1)


def test_published_data_have_their_rule(checkout: Path) -> None:
    assert planned(checkout, "published_data") == {"prepare_published": 4, "published_data": 1}
    path = checkout / "configs/config.yaml"
    path.write_text(path.read_text().replace("published_copies: null", "published_copies: nowhere"))
    target = "results/paper/data/gsm8k/data.json"
    assert "--from nowhere" in snakemake(checkout, "-n", "-p", target)
    snakemake(checkout, target, code=1)
    log = (checkout / "logs/paper/data/gsm8k.log").read_text()
    assert log.startswith("estr: error: ") and "nowhere" in log and len(log.splitlines()) == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (f"{RUNS}/ppo/seed0/run.json", "unknown method 'ppo'"),
        (f"{RUNS}/estr__colour=red/seed0/run.json", "unknown override 'colour'"),
        (f"{RUNS}/estr__tau=-1/seed0/run.json", "tau must be >= 0"),
        (f"{RUNS}/estr__tau=1.6/seed0/run.json", "write it as 'estr'"),
        ("results/smoke/tables/table9.csv", "no experiment declares the table 'table9'"),
    ],
)
def test_unknown_targets(checkout: Path, target: str, message: str) -> None:
    assert message in snakemake(checkout, "-n", target, code=1)


def test_unknown_config_key(checkout: Path) -> None:
    path = checkout / "configs/config.yaml"
    path.write_text(path.read_text() + "colour: red\n")
    assert "colour" in snakemake(checkout, "-n", "all", code=1)


@pytest.mark.slow
def test_everything_is_there(reproduced: Path) -> None:
    for name in (*TABLES, "claims"):
        for suffix in ("csv", "md", "tex"):
            assert (reproduced / "results/smoke/tables" / f"{name}.{suffix}").stat().st_size > 100, name
    for name in FIGURES:
        for suffix in ("pdf", "png", "csv"):
            assert (reproduced / "figures/smoke" / f"{name}.{suffix}").stat().st_size > 100, name
    report = (reproduced / "results/smoke/report.html").read_text()
    labels = ["sync", "async", "icepop", "kpop", "m2po", "estr"]
    labels += [f"{method}__thresholds=matched" for method in ("icepop", "kpop", "m2po")]
    for task in ("browsecomp_plus", "gsm8k", "dapo_math"):
        for label in labels[: 9 if task == "gsm8k" else 6]:
            assert f"smoke/{task}/{label}/seed0" in report
            folder = reproduced / "results/smoke/runs" / task / label / "seed0"
            record = json.loads((folder / "run.json").read_text())
            assert (record["status"], record["steps"]) == ("complete", 20)
            scores = json.loads((folder / "evaluation.json").read_text())
            assert scores["missing"] == 0 and scores["n_problems"] == 32
    judged = json.loads(
        (reproduced / RUNS.replace("dapo_math", "browsecomp_plus") / "estr/seed0/evaluation.json").read_text()
    )
    assert judged["judge"] == "exact match (offline, no judge model)"
    quiet = reproduced / "logs/smoke/runs/dapo_math/estr/seed0/train.log"
    assert quiet.read_text() == ""  # not a terminal: no progress bar
    budget = json.loads((reproduced / "results/smoke/calibration/gsm8k.json").read_text())
    gsm8k = reproduced / RUNS.replace("dapo_math", "gsm8k")
    matched = json.loads((gsm8k / "kpop__thresholds=matched/seed0/run.json").read_text())
    assert matched["rule"]["phi"] == budget["rules"]["kpop"]["phi"]


@pytest.mark.slow
def test_nothing_is_left_to_do_and_edits_of_rules_do_not_retrain(reproduced: Path) -> None:
    assert planned(reproduced) == {}
    rules = reproduced / "workflow/rules/train.smk"
    before = rules.read_text()
    rules.write_text(before.replace("estr train {wildcards.task}", "estr  train {wildcards.task}"))
    try:
        assert "train" not in planned(reproduced)
    finally:
        rules.write_text(before)


def plan_with(folder: Path, method: str, **thresholds: float) -> dict[str, int]:
    """Jobs per rule once the method's thresholds have been edited."""
    path = folder / f"configs/methods/{method}.yaml"
    before = path.read_text()
    content = yaml.safe_load(before)
    content["thresholds"] |= thresholds
    path.write_text(yaml.safe_dump(content))
    try:
        return planned(folder)
    finally:
        path.write_text(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "thresholds", "retrained"),
    [
        # its own runs, and the matched budget: the calibration starts from the published shapes and from ESTR's budget
        ("kpop", {"phi": 0.2}, 6),
        # BrowseComp-Plus has a tau of its own
        ("estr", {"tau": 1.2}, 17),
    ],
)
def test_a_changed_threshold_retrains_what_it_concerns(
    reproduced: Path, method: str, thresholds: dict[str, float], retrained: int
) -> None:
    jobs = plan_with(reproduced, method, **thresholds)
    assert (jobs["train"], jobs["evaluate"], jobs["calibrate"]) == (retrained, retrained, 1)
    assert "pretrain" not in jobs


@pytest.mark.slow
def test_a_new_method_is_a_yaml_and_a_line(reproduced: Path, tmp_path: Path) -> None:
    folder = tmp_path / "widened"
    shutil.copytree(reproduced, folder)
    method = {"title": "My rule", "source": "here", "synchronous": False, "rule": "fixed_magnitude"}
    (folder / "configs/methods/my_rule.yaml").write_text(yaml.safe_dump(method | {"thresholds": {"c": 0.5}}))
    experiment = folder / "configs/experiments/main_results.yaml"
    experiment.write_text(experiment.read_text().replace("m2po, estr]", "m2po, estr, my_rule]"))
    assert planned(folder)["train"] == 3
    snakemake(folder, "results/smoke/tables/table1.csv", "figures/smoke/fig06_07_reward.png")
    assert "| My rule |" in (folder / "results/smoke/tables/table1.md").read_text()
    assert "my_rule" in (folder / "figures/smoke/fig06_07_reward.csv").read_text()


@pytest.mark.slow
def test_interrupted_reproduction_resumes_and_ends_as_if_unbroken(reproduced: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(reproduced, folder)
    run = folder / RUNS / "estr/seed0"
    wanted = (run / "policy/model.safetensors").read_bytes()
    shutil.rmtree(run)
    command = [str(BIN / "estr"), "train", "dapo_math", "estr", "--scale", "smoke"]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(run, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130 and "the same command resumes" in errors
    assert not (run / "run.json").exists()

    shutil.rmtree(run)
    target = [str(BIN / "snakemake"), "--config", "scale=smoke", "--", f"{RUNS}/estr/seed0/run.json"]
    process = subprocess.Popen(
        target, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for_checkpoint(run, process)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode != 0
    assert list(run.glob("state/*/step*.json")) and not (run / "run.json").exists()

    snakemake(folder, f"{RUNS}/estr/seed0/run.json")
    assert (run / "policy/model.safetensors").read_bytes() == wanted
    assert not (run / "state").exists()


def wait_for_checkpoint(run: Path, process: "subprocess.Popen[str]") -> None:
    while not list(run.glob("state/*/step*.json")):
        assert process.poll() is None
        time.sleep(0.02)
