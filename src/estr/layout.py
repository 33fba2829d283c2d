"""Where everything lies under `results/<scale>/`."""

import re
from dataclasses import dataclass
from pathlib import Path

from estr.config import Run
from estr.errors import UserError

PAPER = "paper"
"""The scale of the published benchmarks."""

WARM_START_NOTE = "warm_start.json"
"""Lists the files of a warm start with their checksums."""


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*")
_LONGEST_NAME = 200  # bytes of 255 that file systems allow; some files add an ending


@dataclass(frozen=True)
class Layout:
    """Paths of one scale; `existing` adds the command that makes what is missing.

    Names become folders, so each property and method raises `UserError` for one that would lead out of `results`.
    """

    results: Path
    scale: str

    @property
    def root(self) -> Path:
        return self.results / _plain(self.scale)

    @property
    def study(self) -> Path:
        return self.root / "mlflow" / "study.json"

    @property
    def tracked_runs(self) -> Path:
        return self.root / "mlflow" / "runs.json"

    def data(self, task: str) -> Path:
        return self.root / "data" / _plain(task)

    def warm_start(self, task: str) -> Path:
        return self.root / "warm_start" / _plain(task)

    def calibration(self, task: str) -> Path:
        return self.root / "calibration" / f"{_plain(task)}.json"

    def throughput(self, config: Run) -> Path:
        return self.root / "throughput" / _folder(config)

    def sample(self, name: str) -> Path:
        return self.root / "samples" / _plain(name)

    def frontier(self, config: Run, axis: str) -> Path:
        return self.root / "frontier" / _plain(config.task) / _plain(config.label) / axis

    def load(self, config: Run) -> Path:
        return self.run(config) / "system.jsonl"

    def run(self, config: Run) -> Path:
        return self.root / "runs" / _folder(config)


def _folder(config: Run) -> Path:
    return Path(_plain(config.task), _plain(config.label), f"seed{config.seed}")


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:30]}..."
        raise UserError(f"{shown!r} is no name for a folder of results: use letters, digits and _ . = + -")
    return name


def existing(path: Path, made_by: str) -> Path:
    """`path` if it is there; otherwise a `UserError` that says which command makes it."""
    if not path.exists():
        raise UserError(f"{path} is missing: `{made_by}` makes it")
    return path
