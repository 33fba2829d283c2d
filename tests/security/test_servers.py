"""The servers that we start, as a user starts them: on this machine's own address alone, and inside their folders."""

import http.client
import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner

from estr.cli import main
from estr.layout import Layout
from estr.tracking import Catalogue, open_study
from tests.servers import family, free_port, served

pytestmark = pytest.mark.slow
SECRET = "the content of a file outside"
OUTSIDE = [
    "../../../../secret.txt",
    "..%2f..%2f..%2f..%2fsecret.txt",
    "..%252f..%252f..%252f..%252fsecret.txt",
    "%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret.txt",
    "..%5c..%5c..%5c..%5csecret.txt",
    "....//....//....//....//secret.txt",
    "ABSOLUTE",
    "file://ABSOLUTE",
    "link.txt",
    "inside.txt%00.png",
    "x" * 5000,
]


@dataclass(frozen=True)
class Served:
    port: int
    process: psutil.Process
    folder: Path
    run: str = ""

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body; unlike a browser, the path goes out as it stands."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{self.port}"} | headers).items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body or b"")))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def listens_on(self) -> set[str]:
        listening = [c for p in family(self.process) for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
        assert self.port in {connection.laddr.port for connection in listening}
        return {connection.laddr.ip for connection in listening}


@pytest.fixture(scope="module")
def ui(checkout: Path) -> Iterator[Served]:
    """`estr ui` over a store with one artifact, a link out of the artifacts, and a file beside results/."""
    folder, port = checkout, free_port()
    results = folder / "results"
    study = open_study(Layout(results, "smoke"), Catalogue("smoke", {}, {}))
    [(name, chapter)] = study.chapters.items()
    (folder / "secret.txt").write_text(SECRET)
    (folder / "inside.txt").write_text("an artifact")
    study.client().log_artifact(chapter.parent_run_id, str(folder / "inside.txt"))
    artifacts = results / "mlartifacts" / f"estr-smoke/{name}" / chapter.parent_run_id / "artifacts"
    (artifacts / "link.txt").symlink_to(folder / "secret.txt")
    with served(["ui", "--port", str(port)], f"http://127.0.0.1:{port}/health", folder) as process:
        yield Served(port, process, folder, chapter.parent_run_id)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`estr search serve` over two documents."""
    folder, port = tmp_path_factory.mktemp("retriever"), free_port()
    (folder / "secret.txt").write_text(SECRET)
    corpus = pd.DataFrame({"docid": ["a", "../b"], "text": ["red fox", "blue whale"]})
    corpus.to_parquet(folder / "corpus.parquet")
    command = ["search", "serve", "corpus.parquet", "--port", str(port)]
    with served(command, f"http://127.0.0.1:{port}/health", folder) as process:
        yield Served(port, process, folder)


def test_the_retriever_listens_on_this_machine_alone(retriever: Served) -> None:
    assert all(ipaddress.ip_address(ip).is_loopback for ip in retriever.listens_on())


def test_the_tracking_server_and_its_processes_listen_on_this_machine_alone(ui: Served) -> None:
    assert all(ipaddress.ip_address(ip).is_loopback for ip in ui.listens_on())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_the_retriever_is_not_exposed_by_mistake(retriever: Served, host: str) -> None:
    command = ["search", "serve", str(retriever.folder / "corpus.parquet"), "--host", host]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2 and "add --expose if the network is trusted" in done.output


@pytest.mark.parametrize("path", OUTSIDE)
def test_the_retriever_gives_documents_not_files(retriever: Served, path: str) -> None:
    path = path.replace("ABSOLUTE", str(retriever.folder / "secret.txt"))
    status, body = retriever.ask(f"/documents/{path}")
    assert status in (400, 404) and SECRET.encode() not in body
    assert json.loads(retriever.ask("/documents/..%2Fb")[1])["text"] == "blue whale", "an odd id is still an id"


@pytest.mark.parametrize("path", OUTSIDE)
def test_the_tracking_server_gives_artifacts_of_the_run_alone(ui: Served, path: str) -> None:
    path = path.replace("ABSOLUTE", str(ui.folder / "secret.txt"))
    assert ui.ask(f"/get-artifact?run_uuid={ui.run}&path=inside.txt") == (200, b"an artifact")
    for place in (
        f"/get-artifact?run_uuid={ui.run}&path=",
        f"/ajax-api/2.0/mlflow/artifacts/list?run_id={ui.run}&path=",
        "/api/2.0/mlflow-artifacts/artifacts/",
        "/api/2.0/mlflow-artifacts/artifacts?path=",
        "/ajax-api/2.0/mlflow-artifacts/artifacts/",
        "/model-versions/get-artifact?name=x&version=1&path=",
        "/static-files/",
        "/",
    ):
        status, body = ui.ask(place + path)
        assert SECRET.encode() not in body, place
        assert status >= 300 or json.loads(body).get("files", []) == [], place


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_is_written_through_the_tracking_server_outside_its_folder(ui: Served, path: str) -> None:
    path = path.replace("ABSOLUTE", str(ui.folder / "secret.txt"))
    before = {file for file in ui.folder.iterdir() if file.name != "mlartifacts"}
    for verb in ("PUT", "DELETE"):
        ui.ask(f"/api/2.0/mlflow-artifacts/artifacts/{path}", verb, b"overwritten")
    assert {file for file in ui.folder.iterdir() if file.name != "mlartifacts"} == before
    assert (ui.folder / "secret.txt").read_text() == SECRET
    assert not (ui.folder.parent / "secret.txt").exists()


SEARCH = "/ajax-api/2.0/mlflow/experiments/search?max_results=1"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:PORT", 200),
        ("localhost:PORT", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.evil.example", 403),
        ("192.168.evil.example:PORT", 403),
        ("localhost:PORT.evil.example", 403),
    ],
)
def test_a_name_that_a_foreign_page_made_point_here_is_refused(ui: Served, host: str, status: int) -> None:
    """DNS rebinding: the page's own name resolves to 127.0.0.1, so that the browser lets it read the answer."""
    assert ui.ask(SEARCH, Host=host.replace("PORT", str(ui.port)))[0] == status


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost.evil.example", "null"])
def test_a_foreign_page_changes_nothing(ui: Served, origin: str) -> None:
    body = b'{"name": "from a foreign page"}'
    asked = ui.ask("/ajax-api/2.0/mlflow/experiments/create", "POST", body, Origin=origin)
    assert asked[0] == 403
    assert b"foreign page" not in ui.ask("/ajax-api/2.0/mlflow/experiments/search?max_results=50")[1]
