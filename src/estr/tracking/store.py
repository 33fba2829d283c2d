"""The tracking store of a reproduction: an MLflow experiment and a parent run for every experiment of the paper."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from estr.errors import UserError
from estr.layout import Layout, existing
from estr.net.address import require_no_password
from estr.provenance import commit, read_json, write_json
from estr.tracking import pages
from estr.tracking.catalogue import REPRODUCTION, Catalogue

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

KIND = {"mlflow.experimentKind": "custom_model_development"}
"""MLflow shows training runs, not conversations with an agent."""


@dataclass(frozen=True)
class Chapter:
    """An MLflow experiment and its parent run."""

    experiment_id: str
    parent_run_id: str


@dataclass(frozen=True)
class Study:
    """Where a reproduction is tracked; `live`: runs log while they train, not only when they are complete."""

    tracking_uri: str
    scale: str
    live: bool
    chapters: dict[str, Chapter]

    @classmethod
    def load(cls, layout: Layout) -> "Study":
        """What `open_study` wrote. Raises `UserError` if it is missing or of another version."""
        path = existing(layout.study, f"estr track open --scale {layout.scale}")
        content = read_json(path)
        try:
            chapters = {name: Chapter(**chapter) for name, chapter in content["chapters"].items()}
            return cls(content["tracking_uri"], content["scale"], content["live"], chapters)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a study ({error!r}); `estr track import` makes it again") from error

    def chapter(self, name: str) -> Chapter:
        return self.chapters.get(name) or self.chapters[REPRODUCTION]

    def client(self) -> "MlflowClient":
        return client_of(self.tracking_uri)


def client_of(uri: str) -> "MlflowClient":
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"):
        os.environ.setdefault(name, "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def default_uri(results: Path) -> str:
    return f"sqlite:///{(results / 'mlflow.db').resolve()}"


def open_study(layout: Layout, catalogue: Catalogue, uri: str | None = None, live: bool = False) -> Study:
    """Open the store, with an experiment `estr-<scale>/<name>` and a parent run of this commit for every experiment.

    What is there is used again, so that any number of processes may open the same store, a fresh one included. Writes
    `study.json`. `uri` None is a SQLite file under results/. Raises `UserError` for a password in it.
    """
    if uri is not None:
        require_no_password(uri)
    layout.results.mkdir(parents=True, exist_ok=True)
    uri = uri or default_uri(layout.results)
    local = uri.startswith("sqlite:")
    chapters = {}
    with _alone(layout.results / "mlflow.lock"):
        client = client_of(uri)
        for name in (REPRODUCTION, *catalogue.experiments):
            title = f"estr-{catalogue.scale}/{name}"
            artifacts = (layout.results / "mlartifacts" / title).resolve().as_uri() if local else None
            experiment_id = _experiment(client, title, artifacts)
            chapters[name] = Chapter(experiment_id, _parent(client, experiment_id, name, catalogue))
        study = Study(uri, catalogue.scale, live, chapters)
        layout.study.parent.mkdir(parents=True, exist_ok=True)
        write_json(layout.study, asdict(study))
    return study


def _experiment(client: "MlflowClient", name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifacts, KIND))
        except MlflowException as error:  # another process was first
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise error
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


def _parent(client: "MlflowClient", experiment_id: str, name: str, catalogue: Catalogue) -> str:
    """The parent run of this commit."""
    found = client.search_runs([experiment_id], f"tags.kind = 'parent' and tags.commit = '{commit()}'", max_results=1)
    if found:
        return str(found[0].info.run_id)
    tags = {"kind": "parent", "scale": catalogue.scale, "commit": commit(), "experiment": name}
    tags |= {"mlflow.runName": pages.parent_name(name, catalogue), pages.NOTE: pages.parent_note(name, catalogue)}
    return str(client.create_run(experiment_id, tags=tags).info.run_id)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time: a fresh SQLite store that two processes set up at once is corrupt."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
