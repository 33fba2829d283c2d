"""Opening the store: by many at once, again, and behind a server."""

import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request

import pytest
from mlflow.tracking import MlflowClient

from estr.errors import UserError
from estr.layout import Layout
from estr.provenance import write_json
from estr.tracking import Catalogue, Study, open_study
from tests.reproduction import BIN, REPOSITORY
from tests.servers import free_port, mlflow_server


@pytest.mark.slow
def test_eight_processes_open_a_fresh_store_at_once(layout: Layout, catalogue: Catalogue) -> None:
    command = [str(BIN / "estr"), "track", "open", "--scale", "smoke", "--results", str(layout.results)]
    processes = [
        subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for _ in range(8)
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    with sqlite3.connect(layout.results / "mlflow.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    study = Study.load(layout)
    client = MlflowClient(study.tracking_uri)
    names = [e.name for e in client.search_experiments() if e.name.startswith("estr-")]
    assert sorted(names) == sorted(f"estr-smoke/{name}" for name in ("reproduction", *catalogue.experiments))
    for chapter in study.chapters.values():
        [parent] = client.search_runs([chapter.experiment_id])
        assert parent.info.run_id == chapter.parent_run_id


def test_opening_again_changes_nothing_and_a_deleted_experiment_comes_back(
    layout: Layout, catalogue: Catalogue
) -> None:
    study = open_study(layout, catalogue, live=True)
    assert Study.load(layout) == study and study.live
    MlflowClient(study.tracking_uri).delete_experiment(study.chapter("matched_budget").experiment_id)
    again = open_study(layout, catalogue, live=True)
    assert again.chapters.keys() == study.chapters.keys()
    experiments = {name: chapter.experiment_id for name, chapter in study.chapters.items()}
    assert {name: chapter.experiment_id for name, chapter in again.chapters.items()} == experiments


@pytest.mark.parametrize("content", [{}, {"tracking_uri": "x"}, {"chapters": {"a": {"b": 1}}}])
def test_a_study_of_another_version_is_refused(layout: Layout, content: dict[str, object]) -> None:
    layout.study.parent.mkdir(parents=True)
    write_json(layout.study, content)
    with pytest.raises(UserError, match="estr track import"):
        Study.load(layout)


def test_views_are_printed_as_links(layout: Layout, catalogue: Catalogue) -> None:
    study = open_study(layout, catalogue)
    command = [str(BIN / "estr"), "track", "views", "--scale", "smoke", "--results", str(layout.results)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    place = study.chapter("main_results").experiment_id
    link = f"http://127.0.0.1:5000/#/experiments/{place}/runs?viewStateShareKey=estr-icepop-gsm8k"
    assert f"Compare ESTR and IcePop on GSM8K\n  {link}\n" in done.stdout


@pytest.mark.slow
def test_a_server_for_a_cluster_answers_to_its_own_names_alone(layout: Layout) -> None:
    layout.results.mkdir()
    port = free_port()
    with mlflow_server(layout.results.parent, port, "127.0.0.2") as address:
        assert MlflowClient(address).get_experiment_by_name("Default") is not None
        search = f"{address}/api/2.0/mlflow/experiments/search?max_results=1"
        for name, allowed in (
            (f"127.0.0.2:{port}", True),
            (f"{socket.gethostname()}:{port}", True),
            ("elsewhere.example", False),
        ):
            request = urllib.request.Request(search, headers={"Host": name})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
            assert (status == 200) is allowed, (name, status)
    assert "asks for no password" in (layout.results.parent / "server.log").read_text()
