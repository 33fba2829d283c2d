import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from estr.errors import UserError
from estr.tools.bm25 import BM25Index
from estr.tools.client import HttpSearch
from estr.tools.hermes import ToolCall
from estr.tools.search import GetDocumentTool, SearchTool
from estr.tools.service import ServiceLimits, serve
from estr.tools.toolbox import Toolbox

ODD_IDS = [".", "..", "a/../b", "a b?c=d#e%2Fé", "\\", "+&;", "%2E"]
DOCS = [(f"d{row}", f"word{row % 7} common w{row} é") for row in range(40)] + [(docid, docid) for docid in ODD_IDS]

# the service as a user's process runs it: a small index, limits small enough to reach
SCRIPT = """
import sys, time
from estr.tools.bm25 import BM25Index
from estr.tools.service import ServiceLimits, serve

class Slow(BM25Index):
    def search(self, query, k):
        if query.startswith("sleep"):
            print("searching", flush=True)
            time.sleep(float(query.split()[1]))
        if query.startswith("break"):
            raise ValueError(query)
        return super().search(query, k)

docs = {docs!r}
index = Slow.build(docs, tokenization="whitespace")
serve(index, port=0, limits=ServiceLimits(query_characters=50, batch=3, k=10, body_bytes=2000, workers=2, queue=1))
print("left", flush=True)
"""


@contextlib.contextmanager
def service() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(docs=DOCS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving http://127.0.0.1:"), line + (process.stderr.read() if process.stderr else "")
        yield line.split()[1], process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with service() as (url, _):
        yield url


@pytest.fixture
def web(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
        yield client


def stop(process: subprocess.Popen[str], signal_number: int = signal.SIGTERM) -> tuple[str, str]:
    process.send_signal(signal_number)
    return process.communicate(timeout=120)


def test_health(web: httpx.Client) -> None:
    assert web.get("/health").json() == {"status": "ok", "backend": "bm25", "documents": len(DOCS)}


def test_search_r1_interface(web: httpx.Client) -> None:
    body = {"queries": ["w3", "w4", "nothing"], "topk": 2, "return_scores": True}
    result = web.post("/retrieve", json=body).json()["result"]
    assert [[hit["document"] for hit in hits] for hits in result] == [
        [{"id": "d3", "contents": DOCS[3][1]}],
        [{"id": "d4", "contents": DOCS[4][1]}],
        [],
    ]
    assert result[0][0]["score"] > 0
    without = web.post("/retrieve", json={"queries": ["common"]}).json()["result"]
    assert without == [[{"id": f"d{row}", "contents": DOCS[row][1]} for row in range(3)]]  # Search-R1's three


def test_search_and_document(web: httpx.Client) -> None:
    hits = web.post("/search", json={"query": "w5"}).json()["hits"]
    assert [(hit["docid"], hit["text"]) for hit in hits] == [("d5", DOCS[5][1])]
    assert web.get("/documents/d5").json() == {"docid": "d5", "text": DOCS[5][1]}
    assert web.get("/documents/d99").status_code == 404
    assert len(web.post("/search", json={"query": "common"}).json()["hits"]) == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("/search", {"query": "x" * 51}, 422, "a query is longer than 50 characters"),
        ("/search", {"query": "x", "k": 11}, 422, "the number of hits must be 1 to 10"),
        ("/search", {"query": "x", "k": 0}, 422, "the number of hits must be 1 to 10"),
        ("/search", {"query": "x", "k": 10**30}, 422, "the number of hits must be 1 to 10"),
        ("/search", {"query": 5}, 422, "body.query: Input should be a valid string"),
        ("/search", {}, 422, "body.query: Field required"),
        ("/search", [], 422, "body"),
        ("/retrieve", {"queries": ["x"] * 4}, 422, "more than 3 queries in one request"),
        ("/retrieve", {"queries": ["x", "y" * 51]}, 422, "a query is longer than 50 characters"),
        ("/retrieve", {"queries": "x"}, 422, "body.queries: Input should be a valid list"),
        ("/retrieve", {"queries": ["x"], "topk": 11}, 422, "the number of hits must be 1 to 10"),
        ("/search", {"query": "x" * 3000}, 413, "the request is longer than 2000 bytes"),
        ("/nowhere", {}, 404, "Not Found"),
    ],
)
def test_requests_beyond_the_limits_get_a_reason(
    web: httpx.Client, path: str, body: object, status: int, detail: str
) -> None:
    response = web.post(path, json=body)
    assert response.status_code == status
    assert response.json()["detail"].startswith(detail)
    assert "xxxx" not in response.text
    assert "yyyy" not in response.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"not json", 422),
        (b"[" * 1900, 400),
        (b"\xff\xfe", 422),
        (b'{"query": "\\ud800"}', 422),
        (b'{"query": "x", "k": NaN}', 422),
        (b'{"query": "\\u0000"}', 200),
    ],
)
def test_hostile_bodies_get_an_answer(web: httpx.Client, content: bytes, status: int) -> None:
    response = web.post("/search", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert web.get("/health").status_code == 200


def test_a_body_of_unannounced_length_is_bounded_too(web: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"query": "'
        for _ in range(100):
            yield b"x" * 100

    response = web.post("/search", content=endless(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json() == {"detail": "the request is longer than 2000 bytes"}


def test_many_clients_at_once_get_their_own_answers(url: str) -> None:
    local = BM25Index.build(DOCS, tokenization="whitespace")

    def ask(number: int) -> None:
        # more threads than the queue holds: a 503 is tried again
        remote = HttpSearch(url, retries=40)
        for row in range(number, number + 25):
            assert remote.search(f"w{row % 40} word1", 4) == local.search(f"w{row % 40} word1", 4)
        remote.close()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(ask, number) for number in range(8)]:
            done.result()


def test_a_full_queue_is_refused_and_health_still_answers(web: httpx.Client) -> None:
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(web.post("/search", json={"query": "sleep 1"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert web.get("/health").status_code == 200
    for thread in threads:
        thread.join()
    # two threads search and one request waits
    assert sorted(statuses)[:3] == [200, 200, 200]
    assert 503 in statuses
    assert set(statuses) == {200, 503}


def test_the_client_is_a_backend_for_the_tools(url: str) -> None:
    with contextlib.closing(HttpSearch(url)) as remote:
        assert remote.health() == len(DOCS)
        search = SearchTool(remote, lambda text, limit: text, k=1)
        box = Toolbox([search, GetDocumentTool(remote)])
        assert box.run(ToolCall("search", {"query": "w5"})).content == f"docid: d5\n{DOCS[5][1]}"
        assert box.run(ToolCall("get_document", {"docid": "d5"})).content == DOCS[5][1]
        for missing in ("nothing", "", "/", "../health", "?", "\0"):
            assert box.run(ToolCall("get_document", {"docid": missing})).error


@pytest.mark.parametrize("docid", ODD_IDS)
def test_a_docid_of_any_characters_is_found(url: str, docid: str) -> None:
    with contextlib.closing(HttpSearch(url)) as remote:
        assert remote.get(docid) == docid


def test_a_request_that_the_service_refuses_names_it(url: str) -> None:
    with contextlib.closing(HttpSearch(url)) as remote:
        with pytest.raises(UserError, match=rf"{url}: the search service refused a request \(status 422, a query is"):
            remote.search("x" * 51, 5)
        with pytest.raises(UserError, match="the number of hits must be 1 to 10"):
            remote.search("x", 11)


def test_sigterm_finishes_what_is_under_way_and_frees_the_port() -> None:
    with service() as (url, process):
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{url}/search", json={"query": "sleep 0.5"}, timeout=120, trust_env=False)
            )
        )
        asking.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "searching\n"
        out, err = stop(process)
        asking.join()
        assert process.returncode == 0
        assert out == "left\n"
        assert err == ""
        assert answers[0].status_code == 200
        port = int(url.rsplit(":", 1)[1])
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        socket.create_server(("127.0.0.1", port)).close()  # at once free for the next service


def test_no_query_is_logged() -> None:
    with service() as (url, process):
        with httpx.Client(base_url=url, trust_env=False) as web:
            assert web.post("/search", json={"query": "secretword"}).status_code == 200
            assert web.post("/search", json={"query": "secretword" * 9}).status_code == 422
            broken = web.post("/search", json={"query": "break secretword"})
            assert broken.status_code == 500
            assert broken.json() == {"detail": "the index failed"}
            assert web.get("/documents/secretword").status_code == 404
        out, err = stop(process, signal.SIGINT)
    assert process.returncode == 0
    assert "secretword" not in out + err
    assert "the index failed: ValueError" in err


def test_an_address_that_others_can_reach_must_be_asked_for() -> None:
    index = BM25Index.build(DOCS)
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org"):
        with pytest.raises(UserError, match=f"--host {host}: other machines could reach"):
            serve(index, host=host, port=0)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {port}"):
            serve(BM25Index.build(DOCS), port=port)


def test_the_limits_let_through_whatever_a_tool_may_send() -> None:
    from estr.tools.search import MAX_QUERY

    assert ServiceLimits().query_characters >= MAX_QUERY
    assert ServiceLimits().body_bytes >= ServiceLimits().batch * MAX_QUERY * 4
