"""Against a real SQLite store: what the pipeline logs is there once, whatever is repeated."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from estr.config import RunConfig, resolve
from estr.provenance import read_json, write_json
from estr.records import metrics_row
from estr.tracking import RunTracker, Study, import_runs, metric_name, open_study, publish


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    results = tmp_path_factory.mktemp("results")
    return open_study("smoke", results, None, results / "study.json")


@pytest.fixture
def run() -> RunConfig:
    return resolve("smoke", "dapo_math", "estr__tau=0.5", 3)


def table(*steps: int) -> pa.Table:
    rows = [{"step": s, "target_version": s - 1, "reward": s / 10, "masked_entropy": math.nan} for s in steps]
    return pa.concat_tables([metrics_row(row | {"wall_time": 1e9 + row["step"]}) for row in rows])


def test_study_has_a_parent_in_its_experiment(study: Study) -> None:
    client = MlflowClient(study.tracking_uri)
    parent = client.get_run(study.parent_run_id)
    assert client.get_experiment(study.experiment_id).name == "estr-smoke"
    assert parent.info.experiment_id == study.experiment_id
    assert parent.data.tags["scale"] == "smoke"


def test_run_is_a_child_and_repeats_add_nothing(study: Study, run: RunConfig, tmp_path: Path) -> None:
    client = MlflowClient(study.tracking_uri)
    tracker = RunTracker(study, run, None)
    tracker.log_params(run, {"name": "entropy_scaled", "tau": 0.5})
    tracker.sync_metrics(table(1, 2))
    tracker.end("KILLED")
    assert client.get_run(tracker.run_id).info.status == "KILLED"

    again = RunTracker(study, run, tracker.run_id)
    assert again.run_id == tracker.run_id
    again.sync_metrics(table(1, 2, 3))
    again.sync_metrics(table(1, 2, 3))
    history = client.get_metric_history(tracker.run_id, "reward")
    assert [(point.step, point.value) for point in history] == [(1, 0.1), (2, 0.2), (3, 0.3)]

    logged = client.get_run(tracker.run_id).data
    assert logged.tags["mlflow.parentRunId"] == study.parent_run_id
    assert logged.tags["mlflow.runName"] == "dapo_math estr__tau=0.5 seed 3"
    assert logged.params["rule.tau"] == "0.5"
    assert logged.params["train.learning_rate"] == str(run.train.learning_rate)
    assert "masked_entropy" not in logged.metrics


@pytest.fixture
def complete(run: RunConfig, tmp_path: Path) -> Path:
    """The files of a complete run of three steps."""
    folder = tmp_path / "run"
    (folder / "policy").mkdir(parents=True)
    for name in ("tokens.parquet", "policy/model.safetensors"):
        (folder / name).write_text("x")
    pq.write_table(table(1, 2, 3), folder / "metrics.parquet")
    record = {"run_id": run.run_id, "config_hash": run.hash, "config": run.model_dump(), "rule": {"tau": 0.5}}
    record |= {"commit": "0123abc"}
    write_json(folder / "run.json", record)
    write_json(folder / "evaluation.json", {"steps": 3, "avg@4": 0.25, "n_problems": 4})
    for name in ("table1.csv", "table1.md", "report.html"):
        (tmp_path / name).write_text("x")
    return folder


def children(study: Study, run: RunConfig) -> list[Run]:
    client = MlflowClient(study.tracking_uri)
    query = f"tags.config_hash = '{run.hash}' and attributes.status = 'FINISHED'"
    return list(client.search_runs([study.experiment_id], query))


def test_publish_files_everything_under_the_parent(study: Study, run: RunConfig, complete: Path) -> None:
    client = MlflowClient(study.tracking_uri)
    tracker = RunTracker(study, run, None)
    tracker.sync_metrics(table(1, 2))
    tracker.finish(complete)
    top = complete.parent
    import_runs(study, [complete], top / "runs.json")
    publish(study, [top / "table1.csv"], [], top / "report.html")
    [child] = children(study, run)
    assert child.info.run_id == tracker.run_id
    assert (child.info.status, child.data.metrics["eval/avg_at_4"]) == ("FINISHED", 0.25)
    assert [point.step for point in client.get_metric_history(tracker.run_id, "reward")] == [1, 2, 3]
    names = {file.path for file in client.list_artifacts(tracker.run_id)}
    assert names == {"run.json", "metrics.parquet", "tokens.parquet", "policy", "evaluation.json"}
    tables = {file.path for file in client.list_artifacts(study.parent_run_id, "tables")}
    assert tables == {"tables/table1.csv", "tables/table1.md"}
    assert "report.html" in {file.path for file in client.list_artifacts(study.parent_run_id)}
    assert client.get_run(study.parent_run_id).info.status == "FINISHED"


def test_import_makes_the_runs_that_the_store_lacks_and_makes_them_once(
    run: RunConfig, complete: Path, tmp_path: Path
) -> None:
    fresh = open_study("smoke", tmp_path / "lost", None, tmp_path / "lost/study.json")
    for _ in range(2):
        import_runs(fresh, [complete], tmp_path / "runs.json")
    [child] = children(fresh, run)
    places = read_json(tmp_path / "runs.json")
    assert places["runs"] == {run.run_id: child.info.run_id}
    assert (places["tracking_uri"], places["experiment_id"]) == (fresh.tracking_uri, fresh.experiment_id)
    assert (child.data.params["rule.tau"], child.data.tags["commit"]) == ("0.5", "0123abc")
    client = MlflowClient(fresh.tracking_uri)
    assert len(client.get_metric_history(child.info.run_id, "eval/avg_at_4")) == 1
    history = MlflowClient(fresh.tracking_uri).get_metric_history(child.info.run_id, "reward")
    assert [(point.step, point.value) for point in history] == [(1, 0.1), (2, 0.2), (3, 0.3)]


@pytest.mark.parametrize(
    ("name", "clean"), [("avg@4", "avg_at_4"), ("a,b(c)=d", "a_b_c__d"), ("eval/x-y.z", "eval/x-y.z")]
)
def test_metric_names_are_made_acceptable(name: str, clean: str) -> None:
    assert metric_name(name) == clean
