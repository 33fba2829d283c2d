"""`run.json` of the embedded engine: which code trained, and what to delete for another training."""

from pathlib import Path

import pytest

from estr import provenance, stages
from estr.config import RunConfig, resolve
from estr.layout import Layout
from estr.provenance import write_json
from estr.run_record import is_complete


def test_the_commit_is_that_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked_out, recorded = ["before"], []

    def train(layout: Layout, config: RunConfig, key: str, folder: Path) -> None:
        checked_out[0] = "after"
        recorded.append(provenance.commit())

    monkeypatch.setattr(provenance, "_git", lambda command, *_: checked_out[0] if command == "rev-parse" else "")
    monkeypatch.setattr(stages, "inputs_hash", lambda *_: "abc")
    monkeypatch.setattr(stages, "_train", train)
    provenance.commit.cache_clear()
    try:
        stages.train(Layout(tmp_path, "smoke"), resolve("smoke", "dapo_math", "async", 0))
    finally:
        provenance.commit.cache_clear()
    assert recorded == ["before"]


def test_a_run_without_state_is_trained_again_once_its_record_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_json(tmp_path / "run.json", {"inputs_hash": "abc", "run_id": "a run", "files": {}})
    assert is_complete(tmp_path, "abc")
    assert f"delete {tmp_path / 'run.json'} to train it again" in caplog.text
