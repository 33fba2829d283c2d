"""Complete runs with their evaluations, tables, figures and the report, put into the store; what it has stays."""

import csv
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from tqdm import tqdm

from estr.config import ClusterRun, Run, RunConfig
from estr.layout import Layout
from estr.provenance import file_digest, read_json, write_json
from estr.tracking import pages
from estr.tracking.catalogue import REPRODUCTION, Catalogue
from estr.tracking.runs import DIGEST, RunTracker, flatten, log_data_set, metric_name, milliseconds, points_of, set_tags
from estr.tracking.store import Study
from estr.tracking.views import VIEWS, link_of, view_tags

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun

CLAIMS = "claims"
EVALUATION_DIGEST = "evaluation_sha256"


@dataclass(frozen=True)
class _Evaluation:
    """An `evaluation.json`: its digest, when it was written (MLflow's milliseconds), and its finite scores."""

    path: Path
    digest: str
    written: int
    scores: "list[Metric]"

    @classmethod
    def read(cls, path: Path) -> "_Evaluation":
        from mlflow.entities import Metric

        content, written = read_json(path), milliseconds(path.stat().st_mtime)
        parts = {key: value for key, value in content.items() if key not in ("warm_start", "settings", "machine")}
        scores = [
            Metric(metric_name(f"eval/{key}"), value, written, int(content["steps"]))
            for key, value in flatten(parts)
            if isinstance(value, float) and math.isfinite(value)
        ]
        return cls(path, file_digest(path), written, scores)


class Book:
    """The store with what it already has."""

    def __init__(self, study: Study, layout: Layout, catalogue: Catalogue) -> None:
        self.study, self.layout, self.catalogue = study, layout, catalogue
        self.client = study.client()
        self._known: dict[tuple[str, ...], MlflowRun] = {}
        token: str | None = None
        while True:
            ids = [chapter.experiment_id for chapter in study.chapters.values()]
            page = self.client.search_runs(ids, "tags.kind != 'parent'", max_results=1000, page_token=token)
            for run in page:
                self._known[self._key(run)] = run
            token = page.token
            if not token:
                break

    @staticmethod
    def _key(run: "MlflowRun") -> tuple[str, ...]:
        tags = run.data.tags
        if tags["kind"] == "evaluation":
            return tags["mlflow.parentRunId"], tags[EVALUATION_DIGEST]
        return run.info.experiment_id, tags.get("run_id", ""), tags.get(DIGEST) or run.info.run_id

    def enter(self, folder: Path) -> tuple[str, dict[str, str]]:
        """A complete run's id, and its MLflow experiment and run, made from its files as far as the store lacks it."""
        record = read_json(folder / "run.json")
        kind = ClusterRun if record["config"]["engine"] == "verl" else RunConfig
        config: Run = kind.model_validate(record["config"])
        digest = file_digest(folder / "metrics.parquet")
        home = self.study.chapter(self.catalogue.home(config.run_id))
        known = self._known.get((home.experiment_id, config.run_id, digest))
        if known and _is_finished(known):
            run_id = known.info.run_id
            set_tags(self.client, run_id, pages.run_tags(config, self.catalogue) | self._below(home.parent_run_id))
        else:
            run_id = self._log(config, record, folder, digest, known.info.run_id if known else None)
        evaluation = _Evaluation.read(folder / "evaluation.json")
        self._evaluation(config, run_id, home.experiment_id, evaluation)
        for name in self.catalogue.shared(config.run_id):
            self._share(config, name, (home.experiment_id, run_id), digest, folder, evaluation)
        return config.run_id, {"experiment_id": home.experiment_id, "run_id": run_id}

    def _log(self, config: Run, record: dict[str, Any], folder: Path, digest: str, known: str | None) -> str:
        """Log a complete run in full; one that followed its training, or an import that was cut off, is continued."""
        followed = record.get("mlflow_run_id")
        if known is None and followed is not None and self._has(followed):
            known = followed
        tags = {DIGEST: digest, "commit": record["commit"], "slurm_job": ", ".join(record.get("slurm_jobs", []))}
        began = _began(pq.read_table(folder / "metrics.parquet").slice(0, 1).to_pylist()[0])
        tracker = RunTracker(self.study, self.layout, self.catalogue, config, known, tags, began)
        tracker.log_settings(record["rule"])
        tracker.finish(folder)
        return tracker.run_id

    def _has(self, run_id: str) -> bool:
        return any(run.info.run_id == run_id for run in self._known.values())

    def _evaluation(self, config: Run, run_id: str, experiment_id: str, evaluation: "_Evaluation") -> None:
        """The evaluation as a run below the training run, whose scores the training run has too, for its columns."""
        known = self._known.get((run_id, evaluation.digest))
        if known and _is_finished(known):
            return
        tags = pages.run_tags(config, self.catalogue) | self._below(run_id)
        tags |= {"kind": "evaluation", EVALUATION_DIGEST: evaluation.digest}
        tags["mlflow.runName"] = f"evaluation of {pages.run_name(config)}"
        when = evaluation.written
        child = (known or self.client.create_run(experiment_id, when, tags)).info.run_id
        log_data_set(self.client, child, self.layout.data(config.task) / "eval.parquet", config)
        for where in (child, run_id):
            self.client.log_batch(where, metrics=evaluation.scores)
            self.client.log_artifact(where, str(evaluation.path))
        self.client.set_terminated(child, end_time=when)

    def _share(
        self,
        config: Run,
        name: str,
        full: tuple[str, str],
        digest: str,
        folder: Path,
        evaluation: "_Evaluation",
    ) -> None:
        """An entry in another experiment that needs the run: its last values, its scores, and a link."""
        chapter = self.study.chapter(name)
        known = self._known.get((chapter.experiment_id, config.run_id, digest))
        tags = pages.run_tags(config, self.catalogue) | self._below(chapter.parent_run_id)
        tags |= {DIGEST: digest, "logged_in_full": full[1], "mlflow.runName": pages.run_name(config)}
        tags[pages.NOTE] = pages.shared_note(pages.run_note(config, self.catalogue, self.layout), *full)
        if known:
            set_tags(self.client, known.info.run_id, tags)
            if _is_finished(known) and known.data.tags.get(EVALUATION_DIGEST) == evaluation.digest:
                return
        last = pq.read_table(folder / "metrics.parquet").to_pylist()[-1]
        when = milliseconds(last["wall_time"])
        run_id = (known or self.client.create_run(chapter.experiment_id, when, tags)).info.run_id
        self.client.log_batch(run_id, metrics=[*points_of(last), *evaluation.scores])
        self.client.set_tag(run_id, EVALUATION_DIGEST, evaluation.digest)
        self.client.set_terminated(run_id, end_time=when)

    @staticmethod
    def _below(run_id: str) -> dict[str, str]:
        return {"mlflow.parentRunId": run_id}


def import_runs(study: Study, layout: Layout, catalogue: Catalogue, runs: Sequence[Path], out: Path) -> None:
    """Put complete runs with their evaluations into the store, those it has already excepted, and write where they are.

    `out` gets tracking_uri, and by run id the MLflow experiment and run.
    """
    book = Book(study, layout, catalogue)
    gc.freeze()  # the libraries: looking through them for garbage, batch by batch, would take a fifth of the time
    found = dict(book.enter(folder) for folder in tqdm(runs, desc="MLflow", unit="run", disable=None))
    write_json(out, {"tracking_uri": study.tracking_uri, "runs": found})


def publish(
    study: Study,
    catalogue: Catalogue,
    tables: Sequence[Path],
    figures: Sequence[Path],
    report: Path | None,
) -> None:
    """Put tables and figures into the parent runs of their experiments, with links from each table's rows to its runs,
    and the report and the claims scoreboard into that of the reproduction.
    """
    client = study.client()
    owners = {name: key for key, experiment in catalogue.experiments.items() for name in experiment.artifacts}
    verdicts = {row["id"]: row["verdict"] for path in tables if path.stem == CLAIMS for row in _rows(path)}
    rows: dict[str, dict[str, list[tuple[str, str]]]] = {}
    with tqdm(total=len(tables) + len(figures), desc="publish", unit="artifact", disable=None) as bar:
        for kind, paths in (("tables", tables), ("figures", figures)):
            for path in paths:
                name = owners.get(path.stem, REPRODUCTION)
                for sibling in sorted(path.parent.glob(f"{path.stem}.*")):
                    client.log_artifact(study.chapter(name).parent_run_id, str(sibling), kind)
                if kind == "tables":
                    rows.setdefault(name, {})[path.stem] = _linked_rows(path, study.chapter(name).experiment_id)
                bar.update()
    if report is not None:
        client.log_artifact(study.chapters[REPRODUCTION].parent_run_id, str(report))
    for name, chapter in study.chapters.items():
        links = _chapters(study, catalogue) if name == REPRODUCTION else _views(study, name)
        note = pages.parent_note(name, catalogue, rows.get(name), verdicts, links)
        client.set_tag(chapter.parent_run_id, pages.NOTE, note)
        client.set_experiment_tag(chapter.experiment_id, pages.NOTE, note)
        for key, value in view_tags(name).items():
            client.set_experiment_tag(chapter.experiment_id, key, value)
        client.set_terminated(chapter.parent_run_id)


def _is_finished(run: "MlflowRun") -> bool:
    return bool(run.info.status == "FINISHED")


def _began(first: dict[str, float]) -> float:
    """When the training's first step began, in unix seconds, as far as its row says how long it took."""
    took = [first.get(name) or math.nan for name in ("time_generate", "time_train")]
    return first["wall_time"] - sum(seconds for seconds in took if math.isfinite(seconds))


def _chapters(study: Study, catalogue: Catalogue) -> list[tuple[str, str]]:
    return [
        (experiment.title, pages.run_link(study.chapters[name].experiment_id, study.chapters[name].parent_run_id))
        for name, experiment in catalogue.experiments.items()
    ]


def _views(study: Study, name: str) -> list[tuple[str, str]]:
    return [(view.title, link_of(study, view)) for view in VIEWS if view.experiment == name]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _linked_rows(path: Path, experiment_id: str) -> list[tuple[str, str]]:
    """Each row of a table that was made from runs: its name, and the link to them."""
    linked = {}
    for row in _rows(path):
        for task, label in dict.fromkeys(tuple(run_id.split("/")[1:3]) for run_id in row.get("run_ids", "").split()):
            search = f"tags.kind = 'run' and tags.task = '{task}' and tags.label = '{label}'"
            linked[pages.row_name(task, label, row)] = pages.search_link(experiment_id, search)
    return list(linked.items())
