"""Synthetic results folders for the report's tests."""

from pathlib import Path

import pytest
from synthetic import MATCHED_LABELS, RULES, ResultsFolder


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    """An empty results folder to write runs into."""
    return ResultsFolder(tmp_path)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    """Two seeds of every method, and of the matched-budget variants; do not change it."""
    results = ResultsFolder(tmp_path_factory.mktemp("study"))
    for label in [*RULES, *MATCHED_LABELS]:
        for seed in (0, 1):
            results.write(label, seed)
    results.write_calibration()
    return results
