"""What a job of the verl engine starts beside verl, and what it reads of Slurm."""

from pathlib import Path

import pandas as pd
import pytest

from estr.cluster.launch.allocation import Allocation, job_environment, token_environment
from estr.cluster.launch.command import Place, verl_command
from estr.cluster.launch.server import search_service
from estr.config import ClusterRun, load_site, resolve_any
from estr.errors import UserError
from estr.tools.client import HttpSearch
from tests.servers import free_port


@pytest.mark.slow
def test_the_retriever_serves_while_the_job_runs(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.parquet"
    texts = {"a": "the capital of France is Paris", "b": "bread is baked from flour"}
    pd.DataFrame({"docid": list(texts), "text": list(texts.values())}).to_parquet(corpus)
    with search_service(corpus, "127.0.0.1", free_port(), tmp_path / "log.txt") as url:
        assert HttpSearch(url).search("capital of France", 1)[0].docid == "a"
    with pytest.raises(UserError):
        HttpSearch(url, timeout=1.0, retries=0)


def test_a_retriever_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="the retriever ended while it started"),
        search_service(tmp_path / "nothing.parquet", "127.0.0.1", free_port(), tmp_path / "log.txt"),
    ):
        pass


def test_allocation_from_slurms_variables() -> None:
    inside = {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "ESTR_HEAD": "10.0.0.1"}
    found = Allocation.of_this_job(4, 8, 96, 6379, inside)
    assert (found.rank, found.nodes, found.address) == (3, 4, "10.0.0.1:6379")
    with pytest.raises(UserError, match="needs 2 nodes with one task each, this job has 4"):
        Allocation.of_this_job(2, 8, 96, 6379, inside)


def test_what_slurm_says_of_other_vendors_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "ROCR_VISIBLE_DEVICES" not in job_environment()
    assert job_environment()["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_end_of_the_job_is_told_to_verl() -> None:
    end, told = {"SLURM_JOB_END_TIME": "1790000000"}, "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
    assert job_environment(end)[told] == "1790000000"
    assert job_environment(end | {told: "1"})[told] == "1"
    assert told not in job_environment({})


def test_the_margin_before_the_end_spans_a_weight_version() -> None:
    """verl looks once per version; an update is reckoned to take up to a fiftieth of the wall time."""
    run, site = resolve_any("paper", "gsm8k", "async", 0), load_site()
    assert isinstance(run, ClusterRun) and (run.resources.hours, run.train.sync_interval) == (24, 4)
    place = Place(Path("/model"), Path("/data"), Path("/state"))
    assert "trainer.esi_redundant_time=6912" in verl_command(run, place, site, tools=False).settings


def test_rays_secret_is_the_runs_own(tmp_path: Path) -> None:
    file = tmp_path / "state" / "ray_token"
    first, again = token_environment(file), token_environment(file)
    assert first == again == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    assert len(file.read_text()) == 64 and file.stat().st_mode & 0o777 == 0o600
