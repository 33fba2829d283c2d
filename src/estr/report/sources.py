"""What the folders handed to a table or figure hold: runs, throughput measurements, samples, searches."""

from collections.abc import Sequence
from pathlib import Path

MARKS = {"run": "run.json", "throughput": "throughput.json", "sample": "sample.json", "frontier": "frontier.json"}
"""The file by which a folder of each kind is known."""


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of training runs; whatever is of no other kind counts, so that a missing run.json is reported."""
    others = {*throughput_folders(folders), *sample_folders(folders), *frontier_folders(folders)}
    return [folder for folder in folders if folder not in others]


def throughput_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of throughput measurements of the concurrent engine."""
    return [folder for folder in folders if (folder / MARKS["throughput"]).exists()]


def sample_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of token samples of a real language model."""
    return [folder for folder in folders if (folder / MARKS["sample"]).exists()]


def frontier_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of searches for the stability frontier."""
    return [folder for folder in folders if (folder / MARKS["frontier"]).exists()]
