"""Ended at any moment while MLflow is written to, the same command leaves every run and point there once."""

import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient
from processes import TASK, TRAIN, finish, start

STEPS = list(range(1, 13))


def with_one_experiment(folder: Path) -> Path:
    """The tiny scale has one task; so have its experiments."""
    experiments = folder / "configs" / "experiments"
    for path in experiments.glob("*.yaml"):
        path.unlink()
    for name in ("main_results", "mask_behavior"):
        content = {"title": name, "runs": [{"tasks": [TASK], "methods": ["estr"], "seeds": 1}]}
        (experiments / f"{name}.yaml").write_text(yaml.safe_dump(content))
    path = folder / "configs" / "config.yaml"
    config = yaml.safe_load(path.read_text()) | {"experiments": ["main_results", "mask_behavior"]}
    path.write_text(yaml.safe_dump(config))
    return folder


def assert_everything_once(folder: Path, evaluations: int) -> None:
    database = folder / "results" / "mlflow.db"
    with sqlite3.connect(database) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    client = MlflowClient(f"sqlite:///{database}")
    places = {e.name: e.experiment_id for e in client.search_experiments()}
    [run] = client.search_runs([places["estr-tiny/main_results"]], "tags.kind = 'run'")
    assert run.info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "reward")] == STEPS
    found = client.search_runs([places["estr-tiny/main_results"]], "tags.kind = 'evaluation'")
    assert [e.info.status for e in found] == ["FINISHED"] * evaluations
    assert all("eval/avg_at_2" in e.data.metrics for e in [*found, *[run] * evaluations])
    if evaluations:
        [entry] = client.search_runs([places["estr-tiny/mask_behavior"]], "tags.kind = 'run'")
        assert (entry.info.status, entry.data.metrics["step"]) == ("FINISHED", 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_an_import_that_is_killed_is_gone_on_with(seed: int, finished: Path) -> None:
    rng = random.Random(f"import/{seed}")
    folder = with_one_experiment(finished)
    artifacts = folder / "results" / "mlartifacts"
    for _ in range(2):
        logging = start(folder, "track", "import")
        place = rng.choice(["*/main_results", "*/main_results/*/artifacts/run.json", "*/*/*/artifacts/policy/*"])
        logging.until(lambda place=place: any(artifacts.glob(place)))
        time.sleep(rng.choice([0, rng.uniform(0, 0.1), rng.uniform(0, 0.5)]))
        logging.send(signal.SIGKILL)
        logging.wait()
    finish(folder, "track", "import")
    assert_everything_once(folder, evaluations=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_followed_training_that_is_killed_has_every_step_once(seed: int, prepared: Path) -> None:
    rng = random.Random(f"follow/{seed}")
    folder = with_one_experiment(prepared)
    finish(folder, "track", "open", "--live")
    for _ in range(2):
        training = start(folder, *TRAIN)
        training.until(lambda: any(folder.glob("results/tiny/runs/*/*/*/state/*/mlflow_run.json")))
        time.sleep(rng.uniform(0, 1.0))
        training.send(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        training.wait()
    finish(folder, *TRAIN)
    assert_everything_once(folder, evaluations=0)


@pytest.mark.slow
def test_a_training_that_ends_before_mlflow_has_everything_is_finished_by_the_next(prepared: Path) -> None:
    folder = with_one_experiment(prepared)
    finish(folder, "track", "open", "--live")
    training = start(folder, *TRAIN)
    training.until(lambda: any(folder.glob("results/tiny/runs/*/*/*/run.json")))
    training.send(signal.SIGKILL)
    training.wait()
    finish(folder, *TRAIN)
    assert_everything_once(folder, evaluations=0)
