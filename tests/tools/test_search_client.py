"""The client against servers that misbehave; the real service is in test_search_service."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from estr.errors import UserError
from estr.tools import client
from estr.tools.client import HttpSearch

HITS = {"hits": [{"docid": "a", "score": 1.5, "text": "text"}]}


class Scripted(ThreadingHTTPServer):
    """Answers each request with the next (status, body) of its script; None cuts the connection."""

    script: list[tuple[int, bytes] | None]
    asked: int = 0


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked += 1
        step = self.server.script.pop(0)
        if step is None:
            self.connection.close()
            return
        status, body = step
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)
    server = Scripted(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def connect(server: Scripted, retries: int = 3) -> HttpSearch:
    return HttpSearch(f"http://127.0.0.1:{server.server_port}/", timeout=5, retries=retries, check=False)


def answer(body: object, status: int = 200) -> tuple[int, bytes]:
    return status, json.dumps(body).encode()


def test_failures_that_pass_are_tried_again(server: Scripted) -> None:
    server.script = [None, answer({"detail": "busy"}, 503), (500, b"oops"), answer(HITS)]
    (hit,) = connect(server).search("q", 1)
    assert (hit.docid, hit.score, hit.text) == ("a", 1.5, "text")
    assert server.asked == 4


def test_failures_that_stay_end_in_an_error_that_names_the_url(server: Scripted) -> None:
    server.script = [answer({"detail": "busy"}, 503)] * 3
    with pytest.raises(UserError, match=rf"http://127.0.0.1:{server.server_port}: .* status 503 \(busy\)"):
        connect(server, retries=2).search("q", 1)
    assert server.asked == 3


def test_a_refusal_is_not_tried_again(server: Scripted) -> None:
    server.script = [answer({"detail": "too long"}, 422)]
    with pytest.raises(UserError, match=r"refused a request \(status 422, too long\)"):
        connect(server).search("q", 1)
    assert server.asked == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"result": []}', b"\xff"])
def test_another_service_at_the_url_is_recognised(server: Scripted, body: bytes) -> None:
    server.script = [(200, body)]
    with pytest.raises(UserError, match="not a search service of estr"):
        connect(server).search("q", 1)


def test_a_redirect_is_not_followed(server: Scripted) -> None:
    server.script = [(302, b"")]
    with pytest.raises(UserError, match="status 302"):
        connect(server).search("q", 1)


def test_an_unknown_document_is_a_key_error(server: Scripted) -> None:
    server.script = [answer({"detail": "none"}, 404)]
    with pytest.raises(KeyError):
        connect(server).get("d")


def test_the_pauses_double_up_to_a_bound(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.1)
    monkeypatch.setattr("time.sleep", pauses.append)
    server.script = [(500, b"")] * 9
    with pytest.raises(UserError):
        connect(server, retries=8).search("q", 1)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_no_service_at_the_url() -> None:
    with pytest.raises(UserError, match=r"http://127.0.0.1:9: .* cannot be reached .*`estr search serve`"):
        HttpSearch("http://127.0.0.1:9", retries=0)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://localhost", "http"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="no address of a server"):
        HttpSearch(url)


def test_proxies_of_the_environment_are_not_used(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    server.script = [answer({"documents": 3})]
    assert connect(server, retries=0).health() == 3
