"""The paper's own scale as the workflow sees it: every job of its DAG, with nodes, GPUs and hours, in a dry run."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from estr.config import ClusterRun, expand, load_any_scale, load_experiment, load_site, resolve, resolve_any
from estr.errors import UserError
from estr.report.settings_table import load_paper_settings

REPOSITORY = Path(__file__).parents[1]
NODES = {"browsecomp_plus": 4, "dapo_math": 2, "gsm8k": 2, "search_r1": 2}


@pytest.fixture(scope="module")
def jobs() -> list[dict[str, str]]:
    """Rule, wildcards and resources of every job of `snakemake --profile slurm --dry-run all`."""
    command = [Path(sys.executable).with_name("snakemake"), "--profile", "slurm", "--dry-run", "all"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = []
    for block in re.split(r"\n(?=(?:local)?rule )", done.stdout + done.stderr):
        rule = re.match(r"(?:local)?rule (\w+):", block)
        if rule is None:
            continue
        fields = {"rule": rule[1]}
        for line in ("wildcards", "resources"):
            text = re.search(rf"\n    {line}: (.*)", block)
            fields |= dict(re.findall(r"(\w+)=([^,]+)", text[1])) if text else {}
        found.append(fields)
    return found


@pytest.mark.slow
def test_every_run_is_a_job_of_the_right_size(jobs: list[dict[str, str]]) -> None:
    trained = {(job["task"], job["label"]): job for job in jobs if job["rule"] == "train"}
    for name in ("main_results", "matched_budget", "staleness_sweep", "component_ablation", "tau_sensitivity"):
        for run in expand(load_experiment(name).runs, "paper"):
            job = trained[run.task, run.label]
            assert (job["nodes"], job["tasks"], job["mpi"]) == (str(NODES[run.task]), str(NODES[run.task]), "srun")
            assert (job["gres"], job["runtime"], job["tasks_per_gpu"]) == ("gpu:h800:8", str(24 * 60), "0")
    counts = Counter(task for task, _ in trained)
    assert counts["search_r1"] == 6
    assert len(trained) == sum(counts.values()) == len([job for job in jobs if job["rule"] == "evaluate"])


@pytest.mark.slow
def test_the_rest_of_the_dag(jobs: list[dict[str, str]]) -> None:
    rules = Counter(job["rule"] for job in jobs)
    assert rules["prepare_published"] == rules["evaluate_warm_start"] == 4
    assert rules["calibrate"] == rules["claims"] == rules["html"] == 1
    assert not {"pretrain", "prepare", "throughput", "sample", "frontier"} & set(rules)
    for job in jobs:
        if job["rule"] in ("evaluate", "evaluate_warm_start"):
            assert job["gres"] == "gpu:h800:8" and "mpi" not in job
        elif job["rule"] in ("table", "figure", "claims", "html"):
            assert "gres" not in job


def test_values_of_table_3() -> None:
    """The same table against verl's resolved configuration is tests/cluster/verl/test_command.py."""
    paper = {row["setting"]: row for row in load_paper_settings()}
    for task in ("browsecomp_plus", "dapo_math", "gsm8k"):
        run = resolve_any("paper", task, "estr", 0)
        assert isinstance(run, ClusterRun) and run.reported
        assert str(run.resources.nodes) == paper["Total nodes (x 8 H800)"][task]
        assert str(run.train.prompts) == paper["Global batch (prompts)"][task]
        assert str(run.train.epochs) == paper["Epochs"][task]
        assert run.evaluation.samples == int(paper["Answers per problem (evaluation)"][task])
    assert not resolve_any("paper", "search_r1", "estr", 0).reported


def test_the_batch_sweep_is_the_papers() -> None:
    prompts = {run.train.prompts for run in expand(load_experiment("batch_size").runs, "paper")}
    assert prompts == {32, 64, 128, 256}
    assert {run.train.prompts for run in expand(load_experiment("batch_size").runs, "laptop")} == {8, 16, 32, 64}


def test_the_hash_forgets_what_changes_no_number() -> None:
    run = resolve_any("paper", "gsm8k", "estr", 0)
    longer = run.model_copy(update={"resources": run.resources.model_copy(update={"hours": 48})})
    other = run.model_copy(update={"resources": run.resources.model_copy(update={"tokens_per_gpu": 1})})
    assert run.hash == longer.hash != other.hash


def test_the_embedded_engine_refuses_it() -> None:
    with pytest.raises(UserError, match="trains in verl"):
        resolve("paper", "gsm8k", "estr", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ray_prot": 6379}, "key 'ray_prot': Extra inputs"),
        ({"ray_port": 12000}, "key 'ray_port'"),
        ({"cores": 0}, "key 'cores'"),
    ],
)
def test_a_mistake_in_the_site_is_named(workspace: Path, change: dict[str, int], message: str) -> None:
    path = workspace / "configs" / "site.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        load_site()


def test_a_mistake_in_the_scale_is_named(workspace: Path) -> None:
    path = workspace / "configs" / "scales" / "paper.yaml"
    content = yaml.safe_load(path.read_text())
    content["tasks"]["gsm8k"]["train"]["promts"] = 256
    path.write_text(yaml.safe_dump(content))
    assert load_any_scale("paper").engine == "verl"
    with pytest.raises(UserError, match=r"train\.promts"):
        resolve_any("paper", "gsm8k", "estr", 0)
