import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Body, ChatServer, completion, failure
from fastapi.responses import Response
from sums_task import Sums, sum_problems
from tokenizers import Tokenizer, models, pre_tokenizers

from estr.errors import UserError
from estr.evaluation.endpoint import Retry
from estr.evaluation.openai_engine import PLAIN, OpenAIEngine, SamplingSettings, load_tokenizer, truncation
from estr.evaluation.run import evaluate
from estr.evaluation.sample import Sample

QUICK = Retry(patience_s=0.3, first_delay_s=0.01, longest_delay_s=0.05, tries=3)


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def engine(server: ChatServer, task: Sums, settings: SamplingSettings = PLAIN, **given: Any) -> OpenAIEngine:
    return OpenAIEngine(server.url, "policy", task, settings, **{"tokenizer": words(), "retry": QUICK, **given})


def answers(engine: OpenAIEngine, count: int = 1, k: int = 1) -> list[list[Sample]]:
    found = dict(engine.answer(sum_problems(count), k, range(count)))
    assert sorted(found) == list(range(count))
    return [found[position] for position in range(count)]


def number(body: Body) -> int:
    return int(body["messages"][1]["content"].split()[2])


def raw(expression: str) -> str:
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


def structured(arguments: str, name: str = "calculator", call_id: str | None = "abc") -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if call_id is None else {"id": call_id, **call}


def replies(*turns: dict[str, Any]) -> Callable[[Body], dict[str, Any]]:
    """A policy that says `turns` in order, whatever it is told."""
    return lambda body: turns[min(sum(m["role"] == "assistant" for m in body["messages"]), len(turns) - 1)]


def test_single_turn_answers_and_the_requests_behind_them() -> None:
    settings = SamplingSettings(temperature=0.9, top_p=0.95, max_tokens=50, seed=3)
    with ChatServer(lambda body: completion(f"#### {number(body)}", tokens=number(body))) as server:
        found = answers(engine(server, Sums(), settings), count=5, k=3)
        again = answers(engine(server, Sums(), settings), count=5, k=3)
        assert found == again
        assert [s[0].text for s in found] == [f"#### {index}" for index in range(5)]
        assert [s[0].tokens for s in found] == list(range(5))
        assert found[2][1] == Sample("#### 2", turns=1, tokens=2)
        first, second = server.requests[:15], server.requests[15:]
    assert all("tools" not in body for body in first)
    assert {(b["temperature"], b["top_p"], b["max_tokens"]) for b in first} == {(0.9, 0.95, 50)}
    # the policy itself is sampled, whatever generation defaults the model folder holds
    assert {(b["top_k"], b["min_p"], b["repetition_penalty"]) for b in first} == {(-1, 0.0, 1.0)}
    seeds = sorted(body["seed"] for body in first)
    assert len(set(seeds)) == 15 and seeds == sorted(body["seed"] for body in second)
    assert seeds[0] >= 0 and seeds[-1] < 2**31
    assert first[0]["messages"][0] == {"role": "system", "content": "Add."}


def test_another_seed_asks_with_other_seeds() -> None:
    with ChatServer(lambda body: completion("x")) as server:
        for seed in (0, 1):
            answers(engine(server, Sums(), SamplingSettings(seed=seed)), count=2, k=2)
        seeds = [body["seed"] for body in server.requests]
    assert len(set(seeds)) == 8


def test_a_dialogue_with_hermes_text() -> None:
    script = replies(
        completion(f"Let me see. {raw('2*3')}", tokens=10), completion(raw("1/0"), tokens=4), completion("#### 6")
    )
    with ChatServer(script) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
        *_, last = server.requests
    assert sample == Sample("#### 6", turns=3, tool_calls={"calculator": 2}, tool_errors=1, tokens=19)
    assert last["tools"][0]["function"]["name"] == "calculator"
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert last["messages"][2] == {"role": "assistant", "content": f"Let me see. {raw('2*3')}"}
    assert last["messages"][3]["content"] == "6"
    assert last["messages"][5]["content"].startswith("Error: ")
    assert len(last["messages"][5]["content"].split()) <= 8  # the limit on tool output, in the policy's tokens


def test_a_dialogue_with_structured_calls() -> None:
    calls = [structured('{"expression": "2*3"}', call_id="a"), structured('{"expression": "4+4"}', call_id="b")]
    script = replies(completion("Both.", tool_calls=calls, finish="tool_calls"), completion("#### 8"))
    with ChatServer(script) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
        last = server.requests[-1]
    assert sample == Sample("#### 8", turns=2, tool_calls={"calculator": 2}, tokens=10)
    assert last["messages"][2] == {"role": "assistant", "content": "Both.", "tool_calls": calls}
    assert last["messages"][3:] == [
        {"role": "tool", "tool_call_id": "a", "content": "6"},
        {"role": "tool", "tool_call_id": "b", "content": "8"},
    ]


@pytest.mark.parametrize(
    "call",
    [
        structured("{broken"),
        structured("[1]"),
        structured('{"expression": NaN}'),
        structured("[" * 10_000),
        {"id": "abc", "function": {"name": None, "arguments": "{}"}},
        {"id": "abc", "function": {"name": "calculator"}},
        {"id": "abc"},
    ],
)
def test_a_malformed_structured_call_gets_an_error_and_goes_back_as_text(call: dict[str, Any]) -> None:
    script = replies(completion(None, tool_calls=[call]), completion("#### 1"))
    with ChatServer(script) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
        last = server.requests[-1]
    assert (sample.turns, sample.tool_errors, sample.status) == (2, 1, "completed")
    assert set(last["messages"][2]) == {"role", "content"}
    assert "<tool_call>" in last["messages"][2]["content"]
    assert last["messages"][3]["content"].startswith("Error: ")


def test_structured_calls_without_ids_and_of_unknown_tools() -> None:
    calls = [structured('{"expression": "1+1"}', call_id=None), structured("{}", name="unknown", call_id=None)]
    with ChatServer(replies(completion("", tool_calls=calls), completion("#### 2"))) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
        last = server.requests[-1]
    assert (sample.tool_calls, sample.tool_errors) == ({"calculator": 1}, 1)
    assert len({message["tool_call_id"] for message in last["messages"][3:]}) == 2


def test_more_calls_than_are_run_are_not_sent_back() -> None:
    calls = [structured(json.dumps({"expression": str(n)}), call_id=str(n)) for n in range(30)]
    with ChatServer(replies(completion("", tool_calls=calls), completion("#### 2"))) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
        last = server.requests[-1]
    sent = [call["id"] for call in last["messages"][2]["tool_calls"]]
    assert sent == [message["tool_call_id"] for message in last["messages"][3:]]
    assert (sample.tool_calls["calculator"], sample.status) == (len(sent) - 1, "completed")


def test_the_turn_limit() -> None:
    with ChatServer(lambda body: completion(raw("1+1"), tokens=3)) as server:
        [[sample]] = answers(engine(server, Sums(tools=True, turns=3)))
        assert len(server.requests) == 3
    assert sample == Sample(raw("1+1"), turns=3, tool_calls={"calculator": 2}, tokens=9, status="turn_limit")


def test_the_token_limits() -> None:
    settings = SamplingSettings(max_tokens=10, dialogue_tokens=25)
    with ChatServer(lambda body: completion(raw("1+1"), tokens=body["max_tokens"])) as server:
        [[sample]] = answers(engine(server, Sums(tools=True, turns=9), settings))
        assert [body["max_tokens"] for body in server.requests] == [10, 10, 5]
    assert (sample.tokens, sample.status, sample.turns) == (25, "token_limit", 3)
    with ChatServer(lambda body: completion("#### 7 and", tokens=10, finish="length")) as server:
        [[sample]] = answers(engine(server, Sums(), settings))
    assert sample == Sample("#### 7 and", turns=1, tokens=10, status="token_limit")


def test_a_server_that_does_not_count_tokens() -> None:
    with ChatServer(lambda body: completion("one two three", tokens=None)) as server:
        [[sample]] = answers(engine(server, Sums()))
        assert sample.tokens == 4  # and the one that closes the turn
        with pytest.raises(UserError, match="does not count tokens"):
            answers(engine(server, Sums(), tokenizer=None))


def test_tool_output_needs_a_tokenizer() -> None:
    with ChatServer(replies(completion(raw("1+1")), completion("#### 2"))) as server:
        with pytest.raises(UserError, match="name the model's folder"):
            answers(engine(server, Sums(tools=True), tokenizer=None))
        assert answers(engine(server, Sums(), tokenizer=None))[0][0].status == "completed"


def test_concurrency_is_bounded_and_used() -> None:
    def slow(body: Body) -> dict[str, Any]:
        time.sleep(0.02)
        return completion("x")

    with ChatServer(slow) as server:
        answers(engine(server, Sums(), concurrency=4), count=10, k=2)
        assert 1 < server.busiest <= 4


def test_a_server_that_restarts_is_waited_for() -> None:
    """It goes away in the middle of the evaluation and comes back at the same address a moment later."""
    served = threading.Event()

    def script(body: Body) -> dict[str, Any]:
        if number(body) == 3:
            served.set()
        return completion(f"#### {number(body)}")

    patient = Retry(patience_s=60, first_delay_s=0.05, longest_delay_s=0.2)
    with ChatServer(script) as first:
        given = engine(first, Sums(), concurrency=1, retry=patient)
        running = given.answer(sum_problems(8), 1, range(8))
        found = [next(running) for _ in range(4)]
        assert served.is_set()
    back: list[ChatServer] = []

    def return_later() -> None:
        time.sleep(0.5)
        back.append(ChatServer(script, port=first.port).__enter__())

    thread = threading.Thread(target=return_later)
    thread.start()
    found += running
    thread.join()
    back[0].__exit__()
    assert [(at, samples[0].text) for at, samples in found] == [(n, f"#### {n}") for n in range(8)]
    assert len(first.requests) + len(back[0].requests) == 8


def test_a_sample_that_keeps_failing_is_failed_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def script(body: Body) -> Response | dict[str, Any]:
        if body["max_tokens"] > 1 and number(body) in (1, 5):
            return failure(500, "out of memory") if number(body) == 1 else failure(503, "busy")
        return completion(f"#### {number(body)}")

    with ChatServer(script) as server:
        given = {"k": 2, "seed": 0, "folder": tmp_path, "settings": {}}
        result = evaluate(engine(server, Sums()), Sums(), sum_problems(8), **given)
    assert result["per_problem_correct"] == [2, 0, 2, 2, 2, 0, 2, 2]
    assert (result["missing"], result["avg@2"], result["agent"]["completed"]) == (4, 0.75, 1)
    assert "out of memory" in caplog.text and "sums 5: no answer of the server (503" in caplog.text


def test_a_server_that_is_gone_for_good_stops_the_evaluation(tmp_path: Path) -> None:
    def script(body: Body) -> Response | dict[str, Any]:
        return completion(f"#### {number(body)}") if number(body) < 5 else failure(503)

    given = {"k": 1, "seed": 0, "folder": tmp_path, "settings": {}}
    with ChatServer(script) as server, pytest.raises(UserError, match=r"8 dialogues failed in a row.*saved"):
        evaluate(engine(server, Sums(), concurrency=1), Sums(), sum_problems(30), **given)
    asked = len(server.requests)
    with ChatServer(lambda body: completion(f"#### {number(body)}")) as server:
        result = evaluate(engine(server, Sums(), concurrency=1), Sums(), sum_problems(30), **given)
        assert (result["avg@1"], len(server.requests)) == (1, 25)
    assert asked > 5 + 8


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    with ChatServer(lambda body: completion("x")) as server:
        pass
    with pytest.raises(UserError, match=rf"127.0.0.1:{server.port}/v1: the server does not answer \(no connection"):
        answers(engine(server, Sums(), concurrency=16), count=50)


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "ESTR_SERVER_API_KEY"), (403, "ESTR_SERVER_API_KEY"), (404, "model")]
)
def test_a_server_that_will_take_no_request_stops_at_once(status: int, hint: str) -> None:
    with ChatServer(lambda body: failure(status, "no such thing")) as server:
        with pytest.raises(UserError, match=rf"{status}.*no such thing.*{hint}"):
            answers(engine(server, Sums()), count=20)
        assert len(server.bodies) == 1


def test_an_address_that_swallows_connections_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estr.evaluation.endpoint._CONNECT_S", 0.2)
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        given = OpenAIEngine(f"http://127.0.0.1:{full.getsockname()[1]}", "policy", Sums(), retry=QUICK)
        with pytest.raises(UserError, match=r"does not answer \(no connection in time\)"):
            answers(given)


def test_a_server_that_refuses_even_a_plain_request_is_named() -> None:
    message = r"refuses a plain request to 'policy' .*no chat template"
    with ChatServer(lambda body: failure(400, "no chat template")) as server, pytest.raises(UserError, match=message):
        answers(engine(server, Sums()), count=20)


def test_fields_that_the_server_does_not_know_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def strict(body: Body) -> Response | dict[str, Any]:
        unknown = set(body) - {"model", "messages", "temperature", "top_p", "max_tokens", "seed", "tools"}
        return failure(422, f"unexpected {unknown}") if unknown else completion("#### 0")

    with ChatServer(strict) as server:
        assert answers(engine(server, Sums()), k=3)[0][0].text == "#### 0"
        assert all("seed" in body for body in server.requests)
    assert "does not take top_k, min_p, repetition_penalty in a request" in caplog.text


def test_a_dialogue_that_outgrows_the_context_is_at_its_token_limit() -> None:
    def script(body: Body) -> Response | dict[str, Any]:
        return failure(400, "context length") if len(body["messages"]) > 3 else completion(raw("1+1"))

    with ChatServer(script) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
    assert sample == Sample(raw("1+1"), 1, {"calculator": 1}, tokens=5, status="token_limit")


def test_a_problem_that_the_server_refuses_is_a_failed_sample() -> None:
    def script(body: Body) -> Response | dict[str, Any]:
        return failure(400, "too long") if body["max_tokens"] > 1 and number(body) == 1 else completion("#### 0")

    with ChatServer(script) as server:
        found = answers(engine(server, Sums()), count=3)
    assert [samples[0].status for samples in found] == ["completed", "failed", "completed"]


def test_timeouts(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def script(body: Body) -> dict[str, Any]:
        if body["max_tokens"] > 1 and number(body) == 1:
            release.wait(60)
        return completion("#### 0")

    with ChatServer(script) as server:
        found = answers(engine(server, Sums(), timeout_s=2), count=3)
        release.set()
    assert [samples[0].status for samples in found] == ["completed", "failed", "completed"]
    assert "no answer in time" in caplog.text


def test_odd_text_survives_the_dialogue() -> None:
    """Half a surrogate pair (a token limit leaves such), NUL, and content given in parts."""
    odd = "\ud83d \0 \u202e " + raw("1+1")
    script = replies(completion([{"type": "text", "text": odd}]), completion("#### \ud800"))  # type: ignore[arg-type]

    def escaped(body: Body) -> Response:
        return Response(json.dumps(script(body)), media_type="application/json")

    with ChatServer(escaped) as server:
        [[sample]] = answers(engine(server, Sums(tools=True)))
        assert server.requests[-1]["messages"][2]["content"] == odd.replace("\ud83d", "?")
    assert (sample.text, sample.turns) == ("#### ?", 2)


def test_the_key_is_in_no_file_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = "canary-server-88c1"
    monkeypatch.setenv("ESTR_SERVER_API_KEY", key)
    for name in ("", "openai", "httpx", "httpx2", "httpcore", "httpcore2"):
        caplog.set_level(logging.DEBUG, logger=name)
    count = iter(range(100))

    def script(body: Body) -> Response | dict[str, Any]:
        return failure(500, f"at {key}") if body["max_tokens"] > 1 and next(count) % 2 else completion("#### 0")

    with ChatServer(script) as server:
        given = {"k": 1, "seed": 0, "folder": tmp_path, "settings": {}}
        evaluate(engine(server, Sums(), concurrency=1), Sums(), sum_problems(4), **given)
        assert server.keys == {f"Bearer {key}"}
    assert "at ***" in caplog.text
    assert not any(key in repr(record.__dict__) for record in caplog.records)
    assert not any(key in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_an_interrupted_evaluation_does_not_wait_for_the_server() -> None:
    release = threading.Event()
    waited: list[bool] = []

    def script(body: Body) -> dict[str, Any]:
        if body["max_tokens"] > 1 and number(body) > 0:
            waited.append(release.wait(60))
        return completion("x")

    with ChatServer(script) as server:
        running = engine(server, Sums(), concurrency=3).answer(sum_problems(20), 1, range(20))
        next(running)
        running.close()
        assert waited == []  # the server still owes its answers
        release.set()
        time.sleep(0.3)
        assert len(server.requests) <= 1 + 3 + 1


def test_truncation_keeps_the_text_as_it_is() -> None:
    cut = truncation(words())
    text = "  a  b\n\tc d"
    assert [cut(text, n) for n in (0, 1, 2, 3, 4, 99)] == ["", "  a", "  a  b", "  a  b\n\tc", text, text]


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: not a readable tokenizer"):
        load_tokenizer(tmp_path)
