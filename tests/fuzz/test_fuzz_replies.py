"""What judges, servers and killed processes leave: a reading or a refusal, never a traceback."""

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fuzzing import VALUES, accepted_or_refused, cases, mutated, pieces, refused
from hypothesis import given
from hypothesis import strategies as st

from estr.evaluation.endpoint import ChatEndpoint, Reply, RequestRefused, Retry, ServerUnavailable
from estr.evaluation.journal import Journal
from estr.evaluation.judge import FIELDS, LlmJudge, parse_judgement
from estr.evaluation.openai_engine import OpenAIEngine
from estr.evaluation.run import SAMPLES, evaluate
from estr.evaluation.sample import STATUSES
from estr.net.replies import LARGEST
from estr.provenance import unseal
from estr.tools.client import HttpSearch
from tests.evaluation.chat_server import completion
from tests.evaluation.sums_task import CountingEngine, Sums, sum_problems

QUICK = Retry(patience_s=0.0, first_delay_s=0.0, longest_delay_s=0.0, tries=1)


class RawServer(ThreadingHTTPServer):
    """Answers every request with `status`, `headers` and `body`, whatever these are."""

    status: int = 200
    headers: dict[str, str]
    body: bytes

    def say(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.body, self.status = body, status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Handler(BaseHTTPRequestHandler):
    server: RawServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.server.status)
        for name, value in {
            "content-length": str(len(self.server.body)),
            "connection": "close",
            **self.server.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True  # nobody waits for the rest of a body that is shorter than announced
        with contextlib.suppress(OSError):
            self.wfile.write(self.server.body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with RawServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def endpoint(server: RawServer) -> ChatEndpoint:
    return ChatEndpoint(url(server), "policy", key_variable="NO_KEY", timeout_s=30, retry=QUICK)


@pytest.fixture(scope="module")
def search(server: RawServer) -> HttpSearch:
    return HttpSearch(url(server), retries=0, check=False)


@pytest.fixture(scope="module")
def engine(server: RawServer) -> OpenAIEngine:
    made = OpenAIEngine(url(server), "policy", Sums(tools=True), tokenizer=None, concurrency=1, retry=QUICK)
    made._truncate = lambda text, tokens: text[:tokens]  # type: ignore[method-assign]
    made._endpoint._accepted = {}
    return made


def url(server: RawServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def ask(endpoint: ChatEndpoint) -> Reply | Exception:
    """The reply, or why there is none."""
    endpoint._hopeless, endpoint._accepted = None, {}
    try:
        reply = endpoint.complete([{"role": "user", "content": "?"}], {})
    except (ServerUnavailable, RequestRefused) as error:
        assert len(str(error).splitlines()) <= 1 and len(str(error)) < 1_000
        return error
    reply.content.encode()
    assert reply.tokens is None or reply.tokens >= 0
    json.dumps(reply.message, allow_nan=False)
    return reply


STRUCTURED = {"id": "a", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
COMPLETION = completion("#### 1", tool_calls=[STRUCTURED, STRUCTURED], reasoning_content="hm")


@cases(3)
@given(st.data())
def test_any_completion(server: RawServer, endpoint: ChatEndpoint, data: st.DataObject) -> None:
    server.say(json.dumps(data.draw(mutated(COMPLETION))).encode())
    accepted_or_refused(lambda: ask(endpoint))


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.sampled_from(
            ["text/html", "application/json; charset=base64", "x; charset=undefined", "zip"]
        ),
        "retry_after": st.sampled_from(["nan", "inf", "-1", "0", "1e999", "Fri, 1 Jan"]),
        "content_encoding": st.sampled_from(["gzip", "identity", "br", "x"]),
        "content_length": st.sampled_from(["0", "3", "x", "-1"]),
    },
)
BODIES = st.binary(max_size=50) | st.sampled_from(
    [b"<html>no</html>", b"[" * 100_000, b"9" * 5_000, b'{"a": NaN}', b"\xff\xfe"]
)


@cases(3)
@given(BODIES, st.sampled_from([200, 204, 301, 400, 401, 404, 418, 422, 429, 500, 503]), HEADERS)
def test_any_answer(
    server: RawServer, endpoint: ChatEndpoint, body: bytes, status: int, headers: dict[str, str]
) -> None:
    server.say(body, status, **(headers | ({"retry_after": "nan"} if "retry_after" in headers else {})))
    accepted_or_refused(lambda: ask(endpoint), url(server))
    accepted_or_refused(endpoint.models, url(server))


@cases(2)
@given(VALUES | st.fixed_dictionaries({"data": VALUES | st.lists(st.fixed_dictionaries({"id": VALUES}))}))
def test_any_list_of_models(server: RawServer, endpoint: ChatEndpoint, content: Any) -> None:
    server.say(json.dumps(content).encode())
    accepted_or_refused(endpoint.models, url(server))


@pytest.mark.parametrize("what", ["long", "bomb", "endless error"])
def test_huge_answers_are_not_read_to_their_end(
    server: RawServer, endpoint: ChatEndpoint, search: HttpSearch, what: str
) -> None:
    if what == "bomb":
        server.say(gzip.compress(b"[" * (LARGEST * 10)), content_encoding="gzip")
    else:
        server.say(b" " * (LARGEST + 1), 200 if what == "long" else 500)
    found = ask(endpoint)
    assert isinstance(found, ServerUnavailable)
    assert "more than 16 MiB" in str(found)
    refused(search.health, url(server), "more than 16 MiB")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [(b"1e999", None), (b"-5", None), (b"true", None), (b'"7"', None), (b"9007199254740993", None), (b"7", 7)],
)
def test_a_count_of_tokens_is_a_count(
    server: RawServer, endpoint: ChatEndpoint, body: bytes, tokens: int | None
) -> None:
    server.say(json.dumps(completion("x", tokens=12345)).encode().replace(b"12345", body))
    found = ask(endpoint)
    assert isinstance(found, ServerUnavailable) if b"e999" in body else isinstance(found, Reply)
    assert not isinstance(found, Reply) or found.tokens == tokens


@pytest.mark.parametrize(
    "arguments", ['{"expression": 1e999}', {"expression": 1.5, "x": [1]}, "[" * 50_000, '{"a":' * 900 + "1" + "}" * 900]
)
def test_a_structured_call_that_no_json_can_hold(server: RawServer, engine: OpenAIEngine, arguments: Any) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
    server.say(json.dumps(completion(None, tool_calls=[call])).encode())
    assert dialogue(engine).tool_errors == 3


@cases(2)
@given(st.data())
def test_any_structured_calls(server: RawServer, engine: OpenAIEngine, data: st.DataObject) -> None:
    server.say(json.dumps(completion("x", tool_calls=data.draw(mutated([STRUCTURED])))).encode())
    assert dialogue(engine).status in STATUSES


def dialogue(engine: OpenAIEngine) -> Any:
    [(_, [sample])] = engine.answer(sum_problems(1), 1, [0])
    return sample


HITS = {"hits": [{"docid": "a", "score": 1.5, "text": "text"}], "text": "a", "documents": 3, "detail": "d"}


@cases(3)
@given(st.data())
def test_any_answer_of_a_search_service(server: RawServer, search: HttpSearch, data: st.DataObject) -> None:
    content = json.dumps(data.draw(mutated(HITS))).encode() if data.draw(st.booleans()) else data.draw(BODIES)
    server.say(content, data.draw(st.sampled_from([200, 200, 200, 404, 422])))
    found = accepted_or_refused(lambda: search.search("x", 3), url(server))
    if isinstance(found, list):
        for hit in found:
            (hit.docid + hit.text).encode()
    accepted_or_refused(search.health, url(server))
    try:
        accepted_or_refused(lambda: search.get("../x"), url(server))
    except KeyError:
        assert server.status == 404


REPLIES = pieces(
    *[f"{field}:" for field in FIELDS],
    "yes",
    "no",
    "None",
    "80%",
    "\n",
    "**",
    "- ",
    "</think>",
    "Yes.",
    "> ",
    "101%",
    "1e9",
)


@cases(20)
@given(REPLIES)
def test_any_judge_s_reply(text: str) -> None:
    judgement = parse_judgement(text)
    assert judgement == parse_judgement(text)
    assert judgement.parsed or not judgement.correct
    assert judgement.confidence is None or 0 <= judgement.confidence <= 1
    assert judgement.extracted is None or judgement.extracted in text
    said = "extracted_final_answer: 4\nreasoning: equal\ncorrect: yes\nconfidence: 50%"
    assert parse_judgement(f"{text}</think>{said}").correct


@pytest.mark.parametrize(
    "part", [" ", "\n", "\n ", "correct:", "correct: yes\n", "*", "#>-", "confidence: 9", "</think>", "\r"]
)
def test_a_long_reply_of_a_judge(part: str) -> None:
    for size in (10**5, 10**6):
        parse_judgement(part * (size // len(part)))
        parse_judgement("correct: " + part * (size // len(part)) + "yes")


@cases(5)
@given(st.lists(st.binary(max_size=20) | VALUES.map(lambda value: json.dumps(value).encode()), max_size=4))
def test_any_journal(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(b"\n".join(lines))
    found = accepted_or_refused(lambda: Journal(path), str(path), *([] if not lines else [""]))
    if isinstance(found, Journal):
        found.append({"next": 1})
        found.close()
        assert Journal(path).lines == [*found.lines, {"next": 1}]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder of a finished evaluation, and the lines of its journal without their seals."""
    folder = tmp_path_factory.mktemp("samples")
    score(folder)
    return folder, [unseal(json.loads(line)) for line in (folder / SAMPLES).read_text().splitlines()]


def score(folder: Path) -> dict[str, Any]:
    return evaluate(CountingEngine(), Sums(), sum_problems(4), k=2, seed=0, folder=folder, settings={})


@cases(4)
@given(st.data())
def test_any_line_of_an_evaluation(samples: tuple[Path, list[Any]], data: st.DataObject) -> None:
    folder, lines = samples
    number = data.draw(st.integers(1, len(lines) - 1))
    changed = [*lines[:number], data.draw(mutated(lines[number])), *lines[number + 1 :]]
    (folder / SAMPLES).write_text("".join(json.dumps(line) + "\n" for line in changed))
    found = accepted_or_refused(lambda: score(folder))
    if isinstance(found, dict):
        json.dumps(found, allow_nan=False)
    else:
        assert f"{SAMPLES}: line {number + 1} is damaged" in str(found)


@cases(0.5)
@given(st.data())
def test_any_line_of_a_judge_s_cache(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "judge.jsonl"
    line = data.draw(mutated({"key": "0" * 64, "reply": "correct: yes"}))
    path.write_text(json.dumps(line) + "\n")
    accepted_or_refused(lambda: LlmJudge("http://127.0.0.1:9", "judge", path), str(path))


@cases(0.5)
@given(
    pieces("http", "https", "://", "127.0.0.1", "[", "]", ":", "/", "v1", "@", "?", "#", "99999", "x", " ", "\0", "é")
)
def test_any_address(address: str) -> None:
    accepted_or_refused(lambda: ChatEndpoint(address, "m", key_variable="NO_KEY", timeout_s=1, retry=QUICK))
    accepted_or_refused(lambda: HttpSearch(address, retries=0, check=False))


def test_a_record_of_too_many_samples_is_left_out(
    samples: tuple[Path, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    folder, lines = samples
    lines = [dict(line) for line in lines]
    lines[1]["samples"] = lines[1]["samples"] * 2
    (folder / SAMPLES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    accepted_or_refused(lambda: score(folder))
    assert "more than 2 samples" in caplog.text


@pytest.mark.parametrize("header", ["nan", "-1", "inf", "x", ""])
def test_a_wait_that_is_no_time(server: RawServer, header: str) -> None:
    server.say(b"{}", 503, retry_after=header)
    endpoint = ChatEndpoint(url(server), "m", key_variable="NO_KEY", timeout_s=5, retry=QUICK)
    refused(endpoint.models, url(server), "503")


@pytest.mark.parametrize("address", ["http://[", "http://", "https://x:99999", "ftp://x", "", "\x1e"])
def test_addresses_of_no_search_service(address: str) -> None:
    refused(lambda: HttpSearch(address, retries=0, check=False), "no address of a server")
