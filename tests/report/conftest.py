"""Synthetic results folders for the report's tests."""

from pathlib import Path

import pytest
from synthetic import RULES, ResultsFolder, write_study


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    """An empty results folder to write runs into."""
    return ResultsFolder(tmp_path)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    """Two seeds of every method of one task, and of the matched-budget variants; do not change it."""
    results = ResultsFolder(tmp_path_factory.mktemp("study"))
    write_study(results, {"dapo_math": 2})
    return results


@pytest.fixture(scope="session")
def three_tasks(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    """Three tasks that differ in seeds and samples, BrowseComp-Plus without a matched budget; do not change it."""
    results = ResultsFolder(tmp_path_factory.mktemp("three_tasks"))
    write_study(results, {"dapo_math": 1, "gsm8k": 2})
    for label in RULES:
        results.write(label, 0, task="browsecomp_plus")
    return results
