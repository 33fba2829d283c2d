"""A training followed by MLflow while it runs. The results are on disk: what MLflow does not take now it gets later."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from estr.algorithm.rules import KeepRule
from estr.config import Run
from estr.layout import Layout
from estr.provenance import commit, read_json, write_json
from estr.tracking.catalogue import load_catalogue
from estr.tracking.runs import RunTracker
from estr.tracking.store import Study

PAUSE = 60.0
"""Seconds for which a store that failed is left alone."""
SHORT_OF_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow itself would hold up the training for minutes."""
logger = logging.getLogger(__name__)


class Follower:
    """Follows the run `config` if the study of `layout` is live, and does nothing otherwise.

    A note in `state`, the folder of the run's checkpoints, remembers the MLflow run, so that a resumed training
    continues it. No failure of MLflow ends a training: it is logged, and the next metrics bring what is missing.
    """

    def __init__(self, layout: Layout, config: Run, rule: KeepRule, state: Path) -> None:
        self.layout, self.config, self.rule, self.note = layout, config, rule, state / "mlflow_run.json"
        study = Study.load(layout) if layout.study.exists() else None
        self._study = study if study is not None and study.live else None
        self._tracker: RunTracker | None = None
        self._again = 0.0
        if self._study is not None:
            for name, value in SHORT_OF_PATIENCE.items():
                os.environ.setdefault(name, value)

    @property
    def live(self) -> bool:
        return self._study is not None

    @property
    def run_id(self) -> str | None:
        """Of MLflow, once it has one."""
        return read_json(self.note)["run_id"] if self.note.exists() else None

    def metrics(self, table: pa.Table) -> None:
        """Log the rows of `metrics.parquet` that MLflow lacks."""
        if time.monotonic() >= self._again:
            self._attempt(lambda tracker: tracker.sync_metrics(table))

    def end(self, status: str) -> None:
        """The training ended early, as `KILLED` or `FAILED`."""
        self._attempt(lambda tracker: tracker.end(status))

    def finish(self, folder: Path) -> None:
        """Log what is still missing of the complete run."""
        self._attempt(lambda tracker: tracker.finish(folder))

    def _attempt(self, action: Callable[[RunTracker], None]) -> None:
        if self._study is None:
            return
        try:
            action(self._open(self._study))
        except Exception as error:  # whatever the store, the network and their libraries raise
            self._again = time.monotonic() + PAUSE
            text = str(error).partition("\n")[0]
            logger.warning("MLflow did not take this (%s: %s); `estr track import` adds it", type(error).__name__, text)

    def _open(self, study: Study) -> RunTracker:
        if self._tracker is None:
            catalogue, known = load_catalogue(self.layout.scale), self.run_id
            tags = {"commit": commit(), "slurm_job": os.environ.get("SLURM_JOB_ID", "")}
            tracker = RunTracker(study, self.layout, catalogue, self.config, known, tags)
            if known is None:
                write_json(self.note, {"run_id": tracker.run_id})
            tracker.log_settings({"name": self.rule.name} | asdict(self.rule))
            self._tracker = tracker
        return self._tracker
