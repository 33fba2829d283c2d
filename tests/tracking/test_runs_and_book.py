"""Against a real SQLite store: what the pipeline logs is there once, whatever is repeated."""

import csv
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from estr.config import keep_rule, resolve
from estr.layout import Layout
from estr.provenance import read_json
from estr.tracking import VIEWS, Catalogue, RunTracker, Study, import_runs, link_of, open_study, publish
from estr.tracking.follow import Follower
from estr.tracking.pages import LONGEST_TAG, parent_note
from estr.tracking.runs import metric_name
from tests.reproduction import BIN, REPOSITORY
from tests.tracking.conftest import metrics


@pytest.fixture
def study(layout: Layout, catalogue: Catalogue, fresh_store: Path) -> Study:
    layout.results.mkdir()
    shutil.copyfile(fresh_store, layout.results / "mlflow.db")
    return open_study(layout, catalogue)


@pytest.fixture
def imported(study: Study, layout: Layout, catalogue: Catalogue, complete: Callable[..., Path], tmp_path: Path) -> Path:
    """A complete run that was imported twice, with `runs.json` beside the results."""
    folder = complete()
    for _ in range(2):
        import_runs(study, layout, catalogue, [folder], tmp_path / "runs.json")
    return folder


def runs_of(study: Study, experiment: str, kind: str) -> list[Run]:
    client = MlflowClient(study.tracking_uri)
    return list(client.search_runs([study.chapter(experiment).experiment_id], f"tags.kind = '{kind}'"))


def history(study: Study, run: Run, name: str) -> list[tuple[int, float]]:
    points = MlflowClient(study.tracking_uri).get_metric_history(run.info.run_id, name)
    return [(point.step, point.value) for point in points]


def test_a_followed_run_continues_and_repeats_add_nothing(study: Study, layout: Layout, catalogue: Catalogue) -> None:
    config = resolve("smoke", "dapo_math", "estr__tau=0.7", 0)
    tracker = RunTracker(study, layout, catalogue, config)
    tracker.log_settings({"name": "entropy_scaled", "tau": 0.7})
    tracker.sync_metrics(metrics(1, 2))
    tracker.end("KILLED")
    [run] = runs_of(study, "tau_sensitivity", "run")
    assert run.info.status == "KILLED"

    again = RunTracker(study, layout, catalogue, config, tracker.run_id)
    again.sync_metrics(metrics(1, 2, 3))
    again.sync_metrics(metrics(1, 2, 3))
    [run] = runs_of(study, "tau_sensitivity", "run")
    assert history(study, run, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run.info.run_name == "DAPO-Math (AIME), ESTR (tau 0.7), seed 0"
    assert run.data.tags["mlflow.parentRunId"] == study.chapter("tau_sensitivity").parent_run_id
    assert run.data.params["rule.tau"] == "0.7"
    assert run.data.params["train.learning_rate"] == str(config.train.learning_rate)
    assert "masked_entropy" not in run.data.metrics


def test_a_complete_run_is_logged_in_full_once(study: Study, imported: Path, tmp_path: Path) -> None:
    [run] = runs_of(study, "main_results", "run")
    places = read_json(tmp_path / "runs.json")
    assert places["runs"] == {
        "smoke/gsm8k/estr/seed0": {"experiment_id": run.info.experiment_id, "run_id": run.info.run_id}
    }
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 1000000000000, 1000000003000)
    assert history(study, run, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert history(study, run, "eval/avg_at_4") == [(3, 0.25)]
    assert history(study, run, "system/cpu_utilization_percentage") == [(1, 50.0), (2, 75.0)]
    tags = run.data.tags
    assert (tags["commit"], tags["slurm_job"], tags["method"], tags["seed"]) == ("0123abc", "17", "estr", "0")
    assert tags["experiments"].startswith("main_results, mask_behavior, matched_budget")
    assert {"table1", "fig08_masking", "table7_matched_budget"} <= set(tags["artifacts"].split(", "))
    note = tags["mlflow.note.content"]
    assert "estr train gsm8k estr --seed 0 --scale smoke" in note and "| C1" in note
    [dataset] = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.tags[0].value) == ("gsm8k train (smoke)", "training")
    client = MlflowClient(study.tracking_uri)
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"run.json", "metrics.parquet", "tokens.parquet", "policy", "evaluation.json"}


def test_claims_about_another_task_or_method_are_not_the_runs(catalogue: Catalogue) -> None:
    claims = {claim.id for claim in catalogue.claims(resolve("smoke", "gsm8k", "kpop", 0))}
    by_id = {claim.id: claim for found in catalogue.experiments.values() for claim in found.claims}
    assert claims
    for name in claims:
        mentioned = json.dumps(by_id[name].parameters)
        assert "kpop" in mentioned or not any(method in mentioned for method in ('"icepop"', '"m2po"', '"estr"')), name


def test_its_evaluation_lies_below_it(
    study: Study, layout: Layout, catalogue: Catalogue, imported: Path, tmp_path: Path
) -> None:
    [run], [evaluation] = runs_of(study, "main_results", "run"), runs_of(study, "main_results", "evaluation")
    assert evaluation.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert evaluation.data.metrics["eval/avg_at_4"] == 0.25
    assert evaluation.inputs.dataset_inputs[0].tags[0].value == "evaluation"

    changed = read_json(imported / "evaluation.json") | {"avg@4": 0.5}
    (imported / "evaluation.json").write_text(json.dumps(changed))
    import_runs(study, layout, catalogue, [imported], tmp_path / "runs.json")
    assert len(runs_of(study, "main_results", "evaluation")) == 2
    [run], [entry] = runs_of(study, "main_results", "run"), runs_of(study, "matched_budget", "run")
    assert run.data.metrics["eval/avg_at_4"] == entry.data.metrics["eval/avg_at_4"] == 0.5


def test_other_experiments_that_need_the_run_have_an_entry(study: Study, imported: Path) -> None:
    [run] = runs_of(study, "main_results", "run")
    [entry] = runs_of(study, "matched_budget", "run")
    assert entry.info.run_name == run.info.run_name
    assert entry.data.tags["logged_in_full"] == run.info.run_id
    assert f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}" in entry.data.tags["mlflow.note.content"]
    assert history(study, entry, "reward") == [(3, 0.3)] and entry.data.metrics["eval/avg_at_4"] == 0.25


def test_a_run_of_no_experiment_is_kept_with_the_reproduction(
    study: Study, layout: Layout, catalogue: Catalogue, complete: Callable[..., Path], tmp_path: Path
) -> None:
    import_runs(study, layout, catalogue, [complete("dapo_math", "estr__tau=0.123", 9)], tmp_path / "runs.json")
    [run] = runs_of(study, "reproduction", "run")
    assert "experiments" not in run.data.tags and run.data.tags["overrides"] == "tau=0.123"


def test_the_policy_is_a_model_version_with_the_seeds_alias(
    study: Study,
    layout: Layout,
    catalogue: Catalogue,
    complete: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = complete()
    import_runs(study, layout, catalogue, [first], tmp_path / "runs.json")
    client = MlflowClient(study.tracking_uri)
    version = client.get_model_version_by_alias("estr-smoke-gsm8k-estr", "seed0")
    assert (int(version.version), version.tags["run_id"]) == (1, "smoke/gsm8k/estr/seed0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", study.tracking_uri)
    got = download_artifacts("models:/estr-smoke-gsm8k-estr@seed0", dst_path=tmp_path)
    assert (Path(got) / "model.safetensors").read_text() == "x"

    pq.write_table(metrics(1, 2, 3, 4), first / "metrics.parquet")  # trained again: another run, another version
    import_runs(study, layout, catalogue, [first], tmp_path / "runs.json")
    assert int(client.get_model_version_by_alias("estr-smoke-gsm8k-estr", "seed0").version) == 2
    runs, evaluations = runs_of(study, "main_results", "run"), runs_of(study, "main_results", "evaluation")
    assert [run.data.metrics["eval/avg_at_4"] for run in runs] == [0.25, 0.25]
    assert {e.data.tags["mlflow.parentRunId"] for e in evaluations} == {run.info.run_id for run in runs}


class Failing:
    """`method` of MLflow's client fails when it is called the `at`-th time."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str, at: int) -> None:
        real, calls = getattr(MlflowClient, method), itertools.count(1)

        def call(*arguments: object, **named: object) -> object:
            if next(calls) == at:
                raise ConnectionError("away")
            return real(*arguments, **named)

        patch.setattr(MlflowClient, method, call)


@pytest.mark.parametrize(
    ("method", "at"), [("log_batch", 1), ("log_inputs", 1), ("log_batch", 2), ("log_batch", 4), ("log_inputs", 2)]
)
def test_an_import_that_failed_anywhere_is_gone_on_with(
    study: Study,
    layout: Layout,
    catalogue: Catalogue,
    complete: Callable[..., Path],
    tmp_path: Path,
    method: str,
    at: int,
) -> None:
    folder = complete()
    samples = [f'{{"time": {1e9 + number}, "cpu_utilization_percentage": {number}}}' for number in range(1, 1201)]
    (folder / "system.jsonl").write_text("\n".join(samples) + "\n")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionError):
        Failing(patch, method, at)
        import_runs(study, layout, catalogue, [folder], tmp_path / "runs.json")
    import_runs(study, layout, catalogue, [folder], tmp_path / "runs.json")
    [run], [evaluation] = runs_of(study, "main_results", "run"), runs_of(study, "main_results", "evaluation")
    assert run.info.status == evaluation.info.status == "FINISHED"
    assert run.data.params["rule.tau"] == "0.5"
    assert len(run.inputs.dataset_inputs) == len(evaluation.inputs.dataset_inputs) == 1
    assert history(study, run, "system/cpu_utilization_percentage") == [(n, float(n)) for n in range(1, 1201)]
    assert history(study, run, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]


@pytest.mark.parametrize(("method", "at"), [("log_batch", 1), ("log_inputs", 1)])
def test_a_follower_whose_first_calls_fail_leaves_one_whole_run(
    study: Study, layout: Layout, catalogue: Catalogue, complete: Callable[..., Path], method: str, at: int
) -> None:
    folder, config = complete(), resolve("smoke", "gsm8k", "estr", 0)
    open_study(layout, catalogue, live=True)
    follower = Follower(layout, config, keep_rule(config), layout.results)
    with pytest.MonkeyPatch.context() as patch:
        Failing(patch, method, at)
        follower.metrics(metrics(1))
    assert runs_of(study, "main_results", "run")[0].data.metrics == {}
    follower.finish(folder)
    [run] = runs_of(study, "main_results", "run")
    assert run.info.status == "FINISHED" and run.data.params["rule.tau"] == "1.6"
    assert len(run.inputs.dataset_inputs) == 1 and len(history(study, run, "reward")) == 3


def test_a_run_whose_id_was_never_noted_is_used_and_one_with_points_is_not(
    study: Study, layout: Layout, catalogue: Catalogue
) -> None:
    config = resolve("smoke", "gsm8k", "estr", 0)
    first = RunTracker(study, layout, catalogue, config)
    other = RunTracker(study, layout, catalogue, resolve("smoke", "gsm8k", "estr", 1))
    assert RunTracker(study, layout, catalogue, config).run_id == first.run_id != other.run_id
    first.sync_metrics(metrics(1))
    assert RunTracker(study, layout, catalogue, config).run_id not in (first.run_id, other.run_id)


def test_a_followed_run_that_lost_its_server_is_completed_not_doubled(
    study: Study, layout: Layout, catalogue: Catalogue, complete: Callable[..., Path], tmp_path: Path
) -> None:
    config = resolve("smoke", "gsm8k", "estr", 0)
    tracker = RunTracker(study, layout, catalogue, config)
    tracker.sync_metrics(metrics(1))
    import_runs(study, layout, catalogue, [complete(mlflow_run_id=tracker.run_id)], tmp_path / "runs.json")
    [run] = runs_of(study, "main_results", "run")
    assert (run.info.run_id, run.info.status) == (tracker.run_id, "FINISHED")
    assert history(study, run, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_a_lost_store_is_made_again(
    study: Study, layout: Layout, catalogue: Catalogue, complete: Callable[..., Path], tmp_path: Path
) -> None:
    folder = complete()
    import_runs(study, layout, catalogue, [folder], tmp_path / "before.json")
    (layout.results / "mlflow.db").unlink()
    shutil.rmtree(layout.results / "mlartifacts")
    command = [str(BIN / "estr"), "track", "import", "--scale", "smoke", "--results", str(layout.results)]
    for _ in range(2):
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("1 runs, 0 tables, ")
    again = Study.load(layout)
    [run] = runs_of(again, "main_results", "run")
    assert history(again, run, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert len(runs_of(again, "matched_budget", "run")) == 1


def test_publish_puts_each_artifact_into_its_experiment_and_links_rows_to_runs(
    study: Study, layout: Layout, catalogue: Catalogue, tmp_path: Path
) -> None:
    rows = [
        {"task": "gsm8k", "run_ids": "smoke/gsm8k/estr/seed0 smoke/gsm8k/estr/seed1", "ours_avg_percent": "83.25"},
        {"task": "gsm8k", "run_ids": "", "ours_avg_percent": ""},
    ]
    with (tmp_path / "table1.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "claims.csv").write_text("id,verdict\nC15,not held\n")
    for name in ("table1.md", "fig08_masking.png", "report.html"):
        (tmp_path / name).write_text("x")
    tables = [tmp_path / "table1.csv", tmp_path / "claims.csv"]
    for _ in range(2):
        publish(study, catalogue, tables, [tmp_path / "fig08_masking.png"], tmp_path / "report.html")
    client = MlflowClient(study.tracking_uri)

    def artifacts(experiment: str, folder: str | None = None) -> set[str]:
        parent = study.chapter(experiment).parent_run_id
        return {file.path for file in client.list_artifacts(parent, folder)}

    assert artifacts("main_results", "tables") == {"tables/table1.csv", "tables/table1.md"}
    assert artifacts("mask_behavior", "figures") == {"figures/fig08_masking.png"}
    assert artifacts("reproduction") == {"tables", "report.html"}
    parent = client.get_run(study.chapter("main_results").parent_run_id)
    note = parent.data.tags["mlflow.note.content"]
    assert parent.info.status == "FINISHED"
    assert "- [GSM8K, ESTR: 83.2 %](#/experiments/" in note and "label%20%3D%20%27estr%27" in note
    assert "| C15 | Table 1 |" in note and "| not held |" in note
    [view] = [view for view in VIEWS if view.key == "estr-icepop-gsm8k"]
    assert link_of(study, view) in note
    tags = client.get_experiment(study.chapter("main_results").experiment_id).tags
    assert json.loads(tags["mlflow.sharedViewState.estr-icepop-gsm8k"])["searchFilter"] == view.search


def test_saved_views_are_searches_that_mlflow_understands(study: Study) -> None:
    client = MlflowClient(study.tracking_uri)
    for view in VIEWS:
        place = study.chapter(view.experiment).experiment_id
        client.search_runs([place], view.search, order_by=[f"metrics.`{view.by}`"])


def test_a_table_whose_rows_name_no_runs_has_no_heading(catalogue: Catalogue) -> None:
    note = parent_note("main_results", catalogue, {"table1": [("row", "#/experiments/1")], "table9": []})
    assert "table1: the runs of each row" in note and "table9: the runs" not in note


def test_a_long_description_ends_at_a_line(catalogue: Catalogue) -> None:
    rows = {"table1": [(f"row {n}", "#/experiments/1") for n in range(1000)]}
    note = parent_note("main_results", catalogue, rows)
    assert len(note) <= LONGEST_TAG
    assert note.splitlines()[-1] == "..." and note.splitlines()[-2].endswith("(#/experiments/1)")


@pytest.mark.parametrize(
    ("name", "clean"), [("avg@4", "avg_at_4"), ("a,b(c)=d", "a_b_c__d"), ("eval/x-y.z", "eval/x-y.z")]
)
def test_metric_names_are_made_acceptable(name: str, clean: str) -> None:
    assert metric_name(name) == clean
