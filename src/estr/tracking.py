"""MLflow: one parent run per reproduction, one child per training run, everything that the pipeline makes inside.

`open_study` creates store, experiment and parent before any job starts (concurrent first use would corrupt a fresh
database); jobs find them in `study.json`. The files under `results/` stay the record; MLflow is a view of it.
"""

import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from estr.config import ClusterRun, RunConfig
from estr.config import Run as AnyRun
from estr.provenance import commit, file_digest, read_json, write_json

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

BATCH = 1000
LARGEST_POLICY = 1_000_000_000
"""Bytes; a larger policy stays where it is, and a tag says where."""
DIGEST = "metrics_sha256"
"""Tag by which a complete run is known again: that of its metrics.parquet."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """Where a reproduction is tracked; `live`: runs log while they train, not only when they are complete."""

    tracking_uri: str
    experiment_id: str
    parent_run_id: str
    live: bool = False

    @classmethod
    def load(cls, path: Path) -> "Study":
        return cls(**read_json(path))

    def client(self) -> "MlflowClient":
        return _client(self.tracking_uri)


def _client(uri: str) -> "MlflowClient":
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def default_uri(results: Path) -> str:
    return f"sqlite:///{(results / 'mlflow.db').resolve()}"


def open_study(scale: str, results: Path, uri: str | None, path: Path, live: bool = False) -> Study:
    """Create experiment `estr-<scale>` and the parent run, and write `study.json`."""
    results.mkdir(parents=True, exist_ok=True)
    client = _client(uri or default_uri(results))
    name = f"estr-{scale}"
    experiment = client.get_experiment_by_name(name)
    local = uri is None or uri.startswith("sqlite:")
    artifacts = (results / "mlartifacts" / name).resolve().as_uri() if local else None
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name, artifacts)
    tags = {"mlflow.runName": f"reproduction {scale} {commit()}", "scale": scale, "commit": commit()}
    parent = client.create_run(experiment_id, tags=tags)
    study = Study(uri or default_uri(results), experiment_id, parent.info.run_id, live)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(study))
    return study


class RunTracker:
    """The child run of one training run; opening it again continues the same MLflow run."""

    def __init__(self, study: Study, config: AnyRun, run_id: str | None) -> None:
        self._client = study.client()
        self.run_id = run_id or self._create(study, config).info.run_id
        self._client.update_run(self.run_id, status="RUNNING")

    def _create(self, study: Study, config: AnyRun) -> "Run":
        tags = {
            "mlflow.runName": f"{config.task} {config.label} seed {config.seed}",
            "mlflow.parentRunId": study.parent_run_id,
            "scale": config.scale,
            "task": config.task,
            "method": config.method,
            "label": config.label,
            "seed": str(config.seed),
            "commit": commit(),
            "config_hash": config.hash,
            "run_id": config.run_id,
        }
        return self._client.create_run(study.experiment_id, tags=tags)

    def log_params(self, config: AnyRun, rule: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        content = config.model_dump(exclude={"thresholds", "rule"}) | {"rule": dict(rule)}
        params = [Param(key, str(value)) for key, value in _flatten(content)]
        self._client.log_batch(self.run_id, params=params)

    def sync_metrics(self, table: pa.Table) -> None:
        """Log the rows of `metrics.parquet` that MLflow does not have yet, as far as they are finite."""
        logged = self._client.get_run(self.run_id).data.metrics.get("step", 0)
        self._log_rows([row for row in table.to_pylist() if row["step"] > logged])

    def _log_rows(self, rows: list[dict[str, float]]) -> None:
        from mlflow.entities import Metric

        points = [
            Metric(metric_name(key), float(value), int(row["wall_time"] * 1000), int(row["step"]))
            for row in rows
            for key, value in sorted(row.items(), key=lambda item: item[0] == "step")
            if key != "wall_time" and math.isfinite(value)
        ]
        for start in range(0, len(points), BATCH):
            self._client.log_batch(self.run_id, metrics=points[start : start + BATCH])

    def finish(self, folder: Path) -> None:
        """Log what is still missing of a complete run, its files, and its end."""
        self._client.set_tag(self.run_id, DIGEST, file_digest(folder / "metrics.parquet"))
        self.sync_metrics(pq.read_table(folder / "metrics.parquet"))
        for name in ("run.json", "metrics.parquet", "tokens.parquet"):
            self._client.log_artifact(self.run_id, str(folder / name))
        policy = folder / "policy"
        if sum(file.stat().st_size for file in policy.iterdir()) <= LARGEST_POLICY:
            self._client.log_artifacts(self.run_id, str(policy), "policy")
        else:
            self._client.set_tag(self.run_id, "policy_folder", str(policy))
        self.end("FINISHED")

    def end(self, status: str) -> None:
        self._client.set_terminated(self.run_id, status=status)


def import_runs(study: Study, runs: Sequence[Path], out: Path) -> None:
    """Put complete runs with their evaluations into the store, those it has already excepted, and write where they are.

    `out` gets tracking_uri, experiment_id, and the MLflow run id of every run id.
    """
    client = study.client()
    found = {}
    for folder in tqdm(runs, desc="MLflow", unit="run", disable=None):
        found[read_json(folder / "run.json")["run_id"]] = child = _child(study, client, folder)
        log_evaluation(client, child, folder / "evaluation.json")
    write_json(out, {"tracking_uri": study.tracking_uri, "experiment_id": study.experiment_id, "runs": found})


def publish(study: Study, tables: Sequence[Path], figures: Sequence[Path], report: Path) -> None:
    """Put tables, figures and report into the parent run."""
    client = study.client()
    for into, paths in (("tables", tables), ("figures", figures)):
        for path in paths:
            for sibling in sorted(path.parent.glob(f"{path.stem}.*")):
                client.log_artifact(study.parent_run_id, str(sibling), into)
    client.log_artifact(study.parent_run_id, str(report))
    client.set_terminated(study.parent_run_id, status="FINISHED")


def _child(study: Study, client: "MlflowClient", folder: Path) -> str:
    """The MLflow run of a complete run; made from its files if the store does not have it."""
    record, digest = read_json(folder / "run.json"), file_digest(folder / "metrics.parquet")
    wanted = f"tags.run_id = '{record['run_id']}' and tags.{DIGEST} = '{digest}'"
    found = client.search_runs([study.experiment_id], wanted, max_results=1)
    if found and found[0].info.status == "FINISHED":
        client.set_tag(found[0].info.run_id, "mlflow.parentRunId", study.parent_run_id)
        return str(found[0].info.run_id)
    kind = ClusterRun if record["config"]["engine"] == "verl" else RunConfig
    config = kind.model_validate(record["config"])
    tracker = RunTracker(study, config, found[0].info.run_id if found else None)
    for tag, value in ((DIGEST, digest), ("commit", record["commit"])):
        client.set_tag(tracker.run_id, tag, value)
    tracker.log_params(config, record["rule"])
    tracker.finish(folder)
    return tracker.run_id


def log_evaluation(client: "MlflowClient", run_id: str, path: Path) -> None:
    from mlflow.entities import Metric

    content = read_json(path)
    stamp = int(path.stat().st_mtime * 1000)
    parts = {key: value for key, value in content.items() if key not in ("warm_start", "settings", "machine")}
    values = {metric_name(f"eval/{key}"): value for key, value in _flatten(parts) if isinstance(value, float)}
    known = client.get_run(run_id).data.metrics
    new = {name: value for name, value in values.items() if known.get(name) != value}
    client.log_batch(run_id, metrics=[Metric(name, v, stamp, int(content["steps"])) for name, v in new.items()])
    client.log_artifact(run_id, str(path))


def metric_name(name: str) -> str:
    """MLflow allows letters, digits and `_-. :/`: `avg@4` becomes `avg_at_4`."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _flatten(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in content.items():
        pairs += _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return pairs
