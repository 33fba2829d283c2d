"""The MLflow run of one training run."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from estr.config import Run
from estr.layout import Layout
from estr.machine_load import read_load
from estr.provenance import file_digest
from estr.tracking import pages
from estr.tracking.catalogue import Catalogue
from estr.tracking.store import Study

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

BATCH = 1000
"""The most metrics that MLflow takes at once."""
LARGEST_POLICY = 1_000_000_000
"""Bytes; a larger policy stays where it is, and a tag says where."""
DIGEST = "metrics_sha256"
"""Tag by which a complete run is known again: that of its metrics.parquet."""


class RunTracker:
    """The run below its experiment's parent; opening it again continues the same MLflow run.

    `run_id` is that of MLflow, None for a new one, or for one that was created but never told its id; `tags` are added
    to those of `pages.run_tags`; `started` is the training's begin in unix seconds, None for now.
    """

    def __init__(
        self,
        study: Study,
        layout: Layout,
        catalogue: Catalogue,
        config: Run,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        started: float | None = None,
    ) -> None:
        self._client, self._layout, self.config = study.client(), layout, config
        chapter = study.chapter(catalogue.home(config.run_id))
        self.experiment_id = chapter.experiment_id
        tags = {
            **pages.run_tags(config, catalogue),
            **(tags or {}),
            "mlflow.runName": pages.run_name(config),
            "mlflow.parentRunId": chapter.parent_run_id,
            pages.NOTE: pages.run_note(config, catalogue, layout),
        }
        tags = {name: value for name, value in tags.items() if value}
        run_id = run_id or self._left_behind()
        if run_id is None:
            begin = None if started is None else milliseconds(started)
            self.run_id = str(self._client.create_run(self.experiment_id, begin, tags).info.run_id)
        else:
            self.run_id = run_id
            set_tags(self._client, run_id, tags)
            self._client.update_run(run_id, status="RUNNING")

    def _left_behind(self) -> str | None:
        """An empty run of this configuration, whose process ended before it could note the id."""
        search = f"tags.kind = 'run' and tags.run_id = '{self.config.run_id}' and attributes.status = 'RUNNING'"
        found = self._client.search_runs([self.experiment_id], f"{search} and tags.config_hash = '{self.config.hash}'")
        return next((str(run.info.run_id) for run in found if not run.data.metrics), None)

    def log_settings(self, rule: Mapping[str, Any]) -> None:
        """Parameters and data set; repeated, it adds what is missing."""
        from mlflow.entities import Param

        content = self.config.model_dump(exclude={"thresholds", "rule"}) | {"rule": dict(rule)}
        self._client.log_batch(self.run_id, params=[Param(key, str(value)) for key, value in flatten(content)])
        log_data_set(self._client, self.run_id, self._layout.data(self.config.task) / "train.parquet", self.config)

    def sync_metrics(self, table: pa.Table) -> None:
        """Log the rows of `metrics.parquet` that MLflow does not have yet, as far as they are finite."""
        logged = self._client.get_run(self.run_id).data.metrics.get("step", 0)
        rows = [row for row in table.to_pylist() if row["step"] > logged]
        log_points(self._client, self.run_id, [point for row in rows for point in points_of(row)])

    def finish(self, folder: Path) -> None:
        """Log what is still missing of a complete run, its files, its policy as a model version, and its end."""
        metrics = pq.read_table(folder / "metrics.parquet")
        self._client.set_tag(self.run_id, DIGEST, file_digest(folder / "metrics.parquet"))
        self.sync_metrics(metrics)
        self._log_load(self._layout.load(self.config))
        for name in ("run.json", "metrics.parquet", "tokens.parquet"):
            self._client.log_artifact(self.run_id, str(folder / name))
        policy = folder / "policy"
        if sum(file.stat().st_size for file in policy.iterdir()) <= LARGEST_POLICY:
            self._client.log_artifacts(self.run_id, str(policy), "policy")
            self._register()
        else:
            self._client.set_tag(self.run_id, "policy_folder", str(policy))
        self.end("FINISHED", metrics["wall_time"][-1].as_py())

    def _log_load(self, path: Path) -> None:
        """The machine's load, where MLflow shows system metrics; its step is the number of the sample."""
        from mlflow.entities import Metric

        logged = self._client.get_run(self.run_id).data.metrics.get("system/samples", 0)
        points = [
            Metric(f"system/{key}", float(value), milliseconds(sample["time"]), number)
            for number, sample in enumerate(read_load(path), 1)
            if number > logged
            for key, value in (sample | {"samples": number}).items()
            if key != "time"
        ]
        log_points(self._client, self.run_id, points)

    def end(self, status: str, ended: float | None = None) -> None:
        """`ended` in unix seconds, None for now."""
        self._client.set_terminated(self.run_id, status, None if ended is None else milliseconds(ended))

    def _register(self) -> None:
        """The policy as the newest version of its model, and the seed's alias on it."""
        from mlflow.exceptions import MlflowException

        name = pages.policy_name(self.config)
        known = list(self._client.search_model_versions(f"run_id = '{self.run_id}'"))
        if not known:
            try:
                self._client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = f"{self._client.get_run(self.run_id).info.artifact_uri}/policy"
            tags = {"run_id": self.config.run_id, "config_hash": self.config.hash}
            known = [self._client.create_model_version(name, source, self.run_id, tags)]
        self._client.set_registered_model_alias(name, f"seed{self.config.seed}", known[0].version)


def points_of(row: Mapping[str, Any]) -> "list[Metric]":
    """The finite values of a row of `metrics.parquet`; `step` last, by which a logged row is known."""
    from mlflow.entities import Metric

    stamp, step = milliseconds(row["wall_time"]), int(row["step"])
    return [
        Metric(metric_name(key), float(value), stamp, step)
        for key, value in sorted(row.items(), key=lambda item: item[0] == "step")
        if key != "wall_time" and value is not None and math.isfinite(value)
    ]


def log_points(client: "MlflowClient", run_id: str, points: "list[Metric]") -> None:
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])


def log_data_set(client: "MlflowClient", run_id: str, path: Path, config: Run) -> None:
    """A data set as the MLflow run's input, known by its hash, unless it has one or the file is not here."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    known = client.get_run(run_id).inputs
    if not path.is_file() or (known and known.dataset_inputs):
        return
    context = {"train": "training", "eval": "evaluation"}[path.stem]
    rows = pq.read_metadata(path).num_rows
    data = Dataset(
        name=f"{config.task} {path.stem} ({config.scale})",
        digest=file_digest(path)[:8],
        source_type="local",
        source=f'{{"uri": "{path}"}}',
        profile=f'{{"num_rows": {rows}}}',
    )
    client.log_inputs(run_id, [DatasetInput(data, [InputTag("mlflow.data.context", context)])])


def set_tags(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def milliseconds(seconds: float) -> int:
    """MLflow's unit of time."""
    return int(seconds * 1000)


def metric_name(name: str) -> str:
    """MLflow allows letters, digits and `_-. :/`: `avg@4` becomes `avg_at_4`."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def flatten(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in content.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return pairs
