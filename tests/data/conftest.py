from collections.abc import Iterator
from pathlib import Path

import invented
import pytest


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the invented data sets, as they would have been downloaded. Not to be changed."""
    folder = tmp_path_factory.mktemp("published")
    invented.write_all(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of `datasets` of its own, and the Hub out of reach."""
    import datasets
    import huggingface_hub

    folder = tmp_path_factory.mktemp("huggingface")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield folder
    datasets.enable_progress_bars()
