import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from estr.config import files

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`snakemake all` at scale smoke in a fresh folder; a test that changes it puts back what it found."""
    from tests.reproduction import snakemake  # the environments of verl and SGLang have a `tests` of their own

    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "workflow"):
        shutil.copytree(REPOSITORY / name, folder / name)
    shutil.copyfile(REPOSITORY / "environment.yml", folder / "environment.yml")
    snakemake(folder, "all")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with copies of configs/ and workflow/, entered; what a test edits there stays there."""
    for name in ("configs", "workflow"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    yield from _without_caches(tmp_path)


def _without_caches(folder: Path) -> Iterator[Path]:
    names = ("scale", "any_scale", "sizes", "task", "method", "experiment", "site")
    loaders = [getattr(files, f"load_{name}") for name in names]
    for loader in loaders:
        loader.cache_clear()
    yield folder
    for loader in loaders:
        loader.cache_clear()
