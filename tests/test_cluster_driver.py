"""`estr train` at a scale of the verl engine, with everything but verl: what a start takes up, and what it leaves."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from estr import provenance
from estr.cluster.launch import driver
from estr.cluster.launch.command import Place
from estr.config import ClusterRun, Site, load_site, resolve_any
from estr.layout import Layout
from tests.test_cluster_export import signals, write


class Killed(Exception):
    """The job ends while verl trains."""


class Launch:
    """`driver.train` on the first node; verl records its last update and saves its last checkpoint at once."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = resolve_any("paper", "dapo_math", "estr", 0)
        assert isinstance(run, ClusterRun)
        self.run, self.layout = run, Layout(folder / "results", "paper")
        self.site: Site = load_site().model_copy(update={"models": str(folder / "models")})
        self.folder = self.layout.run(run)
        self.trained: list[Path] = []
        self.killed = False
        model, data = folder / "models" / run.policy.model, self.layout.data("dapo_math")
        for path in (model / "config.json", model / "model.safetensors", data / "train.parquet", data / "data.json"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        self.on_node(0, monkeypatch)
        monkeypatch.setattr(driver, "_prepare", lambda *_: None)
        monkeypatch.setattr(driver, "_run", lambda allocation, command, place, follow: self._run(place))
        monkeypatch.setattr(driver, "export", self._export)
        monkeypatch.setattr(driver, "_merge", lambda *_: None)

    def on_node(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = {"SLURM_NTASKS": self.run.resources.nodes, "SLURM_PROCID": rank, "ESTR_HEAD": "127.0.0.1"}
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))

    def train(self, **thresholds: float) -> None:
        changed = {"thresholds": self.run.thresholds | thresholds}
        driver.train(self.layout, self.run.model_copy(update=changed), self.site)

    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return content

    def _run(self, place: Place) -> None:
        self.trained.append(place.state)
        place.record.mkdir(parents=True, exist_ok=True)
        (place.record / "sums-rank0-attempt0.jsonl").write_text(
            json.dumps({"attempt": 0, "step": self.run.train.steps, "time": 0.0}) + "\n"
        )
        if self.killed:
            raise Killed
        driver._last_checkpoint(self.run, place).mkdir(parents=True, exist_ok=True)

    def _export(self, record: Path, logs: list[Path], learning_rate: float, out: Path) -> int:
        for name in ("metrics.parquet", "tokens.parquet"):
            (out / name).write_text(str(record))
        return self.run.train.steps


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    return Launch(tmp_path, monkeypatch)


def test_a_changed_rule_trains_anew(launch: Launch) -> None:
    launch.train()
    first = launch.record()
    assert launch.trained == [launch.folder / "state" / first["inputs_hash"]]
    launch.train(tau=9.9)
    second = launch.record()
    assert second["inputs_hash"] != first["inputs_hash"] and second["rule"]["tau"] == 9.9
    assert launch.trained[1:] == [launch.folder / "state" / second["inputs_hash"]]
    assert str(launch.trained[1]) in (launch.folder / "metrics.parquet").read_text()
    assert (launch.trained[0] / "checkpoints").is_dir(), "the other training is kept"
    launch.train()  # as it was: what was trained counts again
    assert len(launch.trained) == 2 and launch.record()["inputs_hash"] == first["inputs_hash"]


def test_an_unfinished_run_of_another_rule_is_not_taken_up(launch: Launch) -> None:
    launch.killed = True
    with pytest.raises(Killed):
        launch.train()
    launch.killed = False
    launch.train(tau=9.9)
    assert len(set(launch.trained)) == 2 and len(launch.record()["attempts"]) == 1
    launch.train()
    assert launch.trained[2] == launch.trained[0] and len(launch.record()["attempts"]) == 2


def test_every_node_looks_into_the_same_folder(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Path] = []
    monkeypatch.setattr(driver, "_serve", lambda allocation, place, site: served.append(place.state))
    for rank in (1, 0):
        launch.on_node(rank, monkeypatch)
        launch.train()
    assert served == launch.trained


def test_how_a_complete_run_is_trained_again(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    launch.train()
    launch.train()
    note = launch.folder / "run.json"
    assert f"delete {note} and {launch.trained[0]} to train it again" in caplog.text
    note.unlink()
    launch.train()
    assert len(launch.trained) == 1, "from its state, without training"
    note.unlink()
    shutil.rmtree(launch.trained[0])
    launch.train()
    assert len(launch.trained) == 2


def test_the_commit_is_that_of_the_beginning(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    checked_out = ["before"]
    monkeypatch.setattr(provenance, "_git", lambda command, *_: checked_out[0] if command == "rev-parse" else "")
    monkeypatch.setattr(driver, "_merge", lambda *_: checked_out.__setitem__(0, "after"))
    provenance.commit.cache_clear()
    try:
        launch.train()
    finally:
        provenance.commit.cache_clear()
    assert launch.record()["commit"] == "before"


class Listener:
    live = True

    def __init__(self) -> None:
        self.steps: list[int] = []

    def metrics(self, table: pa.Table) -> None:
        self.steps = table["step"].to_pylist()


def test_mlflow_gets_what_no_resume_does_again(launch: Launch, tmp_path: Path) -> None:
    """verl has logged version 3, and would resume from version 2."""
    place, listener = Place(tmp_path, tmp_path, tmp_path), Listener()
    place.log.write_text('{"step": 3, "data": {"actor/grad_norm": 0.25}}\n')
    for step, version in ((1, 0), (2, 1), (3, 2), (4, 3)):
        write(place.record, step, 0, 0, signals(step), version=version)
    driver._follow(listener, launch.run, place)  # type: ignore[arg-type]
    assert listener.steps == []
    place.checkpoints.mkdir()
    for text, steps in (("", []), ("2", [1, 2]), ("5", [1, 2, 3])):
        (place.checkpoints / "latest_checkpointed_iteration.txt").write_text(text)
        driver._follow(listener, launch.run, place)  # type: ignore[arg-type]
        assert listener.steps == steps
