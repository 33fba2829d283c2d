"""Where everything lies under `results/<scale>/`."""

from dataclasses import dataclass
from pathlib import Path

from estr.config import Run
from estr.errors import UserError

PAPER = "paper"
"""The scale of the published benchmarks."""

WARM_START_NOTE = "warm_start.json"
"""Lists the files of a warm start with their checksums."""


@dataclass(frozen=True)
class Layout:
    """Paths of one scale; `existing` adds the command that makes what is missing."""

    results: Path
    scale: str

    @property
    def root(self) -> Path:
        return self.results / self.scale

    @property
    def study(self) -> Path:
        return self.root / "mlflow" / "study.json"

    @property
    def tracked_runs(self) -> Path:
        return self.root / "mlflow" / "runs.json"

    def data(self, task: str) -> Path:
        return self.root / "data" / task

    def warm_start(self, task: str) -> Path:
        return self.root / "warm_start" / task

    def calibration(self, task: str) -> Path:
        return self.root / "calibration" / f"{task}.json"

    def throughput(self, config: Run) -> Path:
        return self.root / "throughput" / config.task / config.label / f"seed{config.seed}"

    def sample(self, name: str) -> Path:
        return self.root / "samples" / name

    def frontier(self, config: Run, axis: str) -> Path:
        return self.root / "frontier" / config.task / config.label / axis

    def load(self, config: Run) -> Path:
        return self.run(config) / "system.jsonl"

    def run(self, config: Run) -> Path:
        return self.root / "runs" / config.task / config.label / f"seed{config.seed}"


def existing(path: Path, made_by: str) -> Path:
    """`path` if it is there; otherwise a `UserError` that says which command makes it."""
    if not path.exists():
        raise UserError(f"{path} is missing: `{made_by}` makes it")
    return path
