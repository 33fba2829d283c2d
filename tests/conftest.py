import shutil
from pathlib import Path

import pytest

from estr import config

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of configs/ and workflow/, entered; what a test edits there stays there."""
    for name in ("configs", "workflow"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    config._load.cache_clear()
    yield tmp_path
    config._load.cache_clear()
