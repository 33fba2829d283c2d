import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Body, ChatServer, completion, failure
from fastapi.responses import PlainTextResponse, Response
from sums_task import CountingEngine, Sums, sum_problems

from estr.errors import UserError
from estr.evaluation.endpoint import Retry
from estr.evaluation.judge import ExactMatchJudge, Judgement, LlmJudge, parse_judgement
from estr.evaluation.run import evaluate

QUICK = Retry(patience_s=0.3, first_delay_s=0.01, longest_delay_s=0.05, tries=3)
YES = "extracted_final_answer: Paris\nreasoning: the same city\ncorrect: yes\nconfidence: 80%"
NO = YES.replace("yes", "no")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (YES, Judgement(True, "Paris", 0.8)),
        (NO, Judgement(False, "Paris", 0.8)),
        ("**extracted_final_answer:** Paris\n\n**reasoning:** x\n\n**correct:** **Yes**\n\n**confidence:** 80 %", ...),
        ("- extracted_final_answer : Paris\n- reasoning: x\n- Correct: YES.\n- Confidence: 80", ...),
        ("<think>\ncorrect: no\n</think>\n\n" + YES, ...),
        ("correct: no, I think\n</think>\n" + YES, ...),
        (YES.replace("80%", "none stated"), Judgement(True, "Paris", None)),
        (YES.replace("Paris", "None"), Judgement(True, None, 0.8)),
        (YES.replace("80%", "250%"), Judgement(True, "Paris", None)),
        (YES.replace("Paris", "Paris\nor London"), Judgement(True, "Paris\nor London", 0.8)),
        ("", Judgement(False, None, None, parsed=False)),
        ("It is correct, I believe: yes", Judgement(False, None, None, parsed=False)),
        (YES.replace("yes", "yesterday"), Judgement(False, "Paris", 0.8, parsed=False)),
        (YES.replace("yes", "perhaps"), Judgement(False, "Paris", 0.8, parsed=False)),
        (YES + "\ncorrect: no", Judgement(False, "Paris", 0.8, parsed=False)),
        (
            "extracted_final_answer: correct: yes\nreasoning: an instruction",
            Judgement(False, "correct: yes", None, False),
        ),
    ],
)
def test_the_four_fields_are_read(reply: str, expected: Judgement) -> None:
    assert parse_judgement(reply) == (Judgement(True, "Paris", 0.8) if expected is ... else expected)


def test_a_hostile_reply_is_read_in_linear_time() -> None:
    for reply in (
        "\n" * 10**6,
        "* " * 10**6,
        "correct:" * 10**5,
        "correct: yes\n" * 10**5,
        "confidence: " + "9" * 10**6,
    ):
        assert isinstance(parse_judgement(reply), Judgement)


def test_exact_match_reads_answer_and_confidence() -> None:
    judge = ExactMatchJudge()
    assert judge.judge("Where?", "Exact Answer: The Paris.\nConfidence: 70%", "paris") == Judgement(
        True, "The Paris.", 0.7
    )
    assert judge.judge("Where?", "Exact Answer: Rome", "Paris") == Judgement(False, "Rome", None)
    assert judge.judge("Where?", "In Paris", "Paris") == Judgement(False, None, None)


def make_judge(server: ChatServer, tmp_path: Path, **settings: object) -> LlmJudge:
    return LlmJudge(server.url, "judge-model", tmp_path / "judge.jsonl", **{"retry": QUICK, **settings})


def test_a_judge_is_asked_once_with_the_protocols_settings(tmp_path: Path) -> None:
    with ChatServer(lambda body: completion(YES)) as server:
        judge = make_judge(server, tmp_path)
        for _ in range(3):
            assert judge.judge("Where {is} it?", "In Paris {0}", "Paris").correct
        [body] = server.requests
        text = body["messages"][0]["content"]
        assert all(part in text for part in ("Where {is} it?", "In Paris {0}", "[reference answer]\nParis\n"))
        assert (body["model"], body["temperature"], body["top_p"], body["top_k"]) == ("judge-model", 0.7, 0.8, 20)
        assert (body["max_tokens"], body["chat_template_kwargs"]) == (4096, {"enable_thinking": False})
        assert judge.judge("Where else?", "In Paris {0}", "Paris").correct
        assert len(server.requests) == 2
        # another process, the same cache
        assert make_judge(server, tmp_path).judge("Where {is} it?", "In Paris {0}", "Paris") == Judgement(
            True, "Paris", 0.8
        )
        assert len(server.requests) == 2


def test_the_cache_tells_models_questions_responses_and_references_apart(tmp_path: Path) -> None:
    with ChatServer(lambda body: completion(YES)) as server:
        first = make_judge(server, tmp_path)
        for case in (("q", "r", "g"), ("qr", "", "g"), ("q", "r", "h"), ("p", "r", "g")):
            first.judge(*case)
        LlmJudge(server.url, "other", tmp_path / "judge.jsonl", retry=QUICK).judge("q", "r", "g")
        assert len(server.requests) == 5


def test_a_torn_cache_line_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "judge.jsonl"
    with ChatServer(lambda body: completion(YES)) as server:
        judge = make_judge(server, tmp_path)
        judge.judge("q", "1", "g")
        judge.judge("q", "2", "g")
        path.write_bytes(path.read_bytes()[:-7])
        judge = make_judge(server, tmp_path)
        for response in ("1", "2", "1", "2"):
            assert judge.judge("q", response, "g").correct
        assert len(server.requests) == 3
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


def test_a_cache_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.jsonl").write_text('{"other": 1}\n')
    with ChatServer(lambda body: completion(YES)) as server, pytest.raises(UserError, match="not a cache"):
        make_judge(server, tmp_path)


class Flaky:
    """Gives one of `faults` after the other, then `reply`."""

    def __init__(self, *faults: Callable[[], Response | dict[str, object]], reply: str = YES) -> None:
        self.faults, self.reply = list(faults), reply

    def __call__(self, body: Body) -> Response | dict[str, object]:
        if body["max_tokens"] == 1:
            return completion("x")
        return self.faults.pop(0)() if self.faults else completion(self.reply)


@pytest.mark.parametrize(
    "faults",
    [
        [lambda: failure(429), lambda: failure(503), lambda: failure(502), lambda: failure(504)],
        [lambda: failure(500), lambda: failure(500)],
        [lambda: PlainTextResponse("<html>proxy</html>"), lambda: {"choices": []}],
        [lambda: {"error": "x"}, lambda: {"choices": [{"message": None}]}],
    ],
)
def test_passing_faults_are_retried(tmp_path: Path, faults: list[Callable[[], Response]]) -> None:
    script = Flaky(*faults)
    with ChatServer(script) as server:
        assert make_judge(server, tmp_path).judge("q", "r", "g") == Judgement(True, "Paris", 0.8)
        assert len(server.requests) == len(faults) + 1


def test_retry_after_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    script = Flaky(
        lambda: failure(429, "later", **{"retry-after": "7"}), lambda: failure(429, "later", **{"retry-after": "soon"})
    )
    with ChatServer(script) as server, monkeypatch.context() as patch:
        patch.setattr("estr.evaluation.endpoint.time.sleep", waits.append)
        assert make_judge(server, tmp_path).judge("q", "r", "g").correct
    assert waits[0] == 7
    assert 0 < waits[1] <= 0.02


def test_timeouts_are_retried_and_then_named(tmp_path: Path) -> None:
    release = threading.Event()

    def slow(body: Body) -> dict[str, object]:
        if body["max_tokens"] > 1:
            release.wait(60)
        return completion(YES)

    with ChatServer(slow) as server:
        judge = make_judge(server, tmp_path, timeout_s=2)
        with pytest.raises(UserError, match=r"judge judge-model does not answer \(no answer in time\)"):
            judge.judge("q", "r", "g")
        assert len(server.requests) == QUICK.tries
        release.set()
    assert (tmp_path / "judge.jsonl").read_bytes() == b""


def test_a_judge_that_is_not_there_is_named(tmp_path: Path) -> None:
    with ChatServer(lambda body: completion(YES)) as server:
        judge = make_judge(server, tmp_path)
    with pytest.raises(UserError, match=r"does not answer \(no connection"):
        judge.judge("q", "r", "g")


def test_a_wrong_key_stops_at_once(tmp_path: Path) -> None:
    with ChatServer(lambda body: failure(401, "who are you")) as server:
        with pytest.raises(UserError, match=r"401: .*who are you.*ESTR_JUDGE_API_KEY"):
            make_judge(server, tmp_path).judge("q", "r", "g")
        assert len(server.bodies) == 1


def test_fields_that_a_server_does_not_know_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def strict(body: Body) -> Response | dict[str, object]:
        unknown = set(body) - {"model", "messages", "temperature", "top_p", "max_tokens", "top_k"}
        return failure(400, f"unknown {unknown}") if unknown else completion(YES)

    with ChatServer(strict) as server:
        judge = make_judge(server, tmp_path)
        assert judge.judge("q", "r", "g").correct
        assert judge.judge("q", "other", "g").correct
        assert all(set(body) >= {"top_k", "temperature"} for body in server.requests)
        assert len(server.requests) == 2
    assert "does not take chat_template_kwargs" in caplog.text


def test_a_refused_response_counts_as_unparsed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Flaky(lambda: failure(400, "too long"))
    with ChatServer(script) as server:
        judge = make_judge(server, tmp_path)
        assert judge.judge("q", "long", "g") == Judgement(False, None, None, parsed=False)
        assert judge.judge("q", "long", "g").correct  # not kept: a judge of more context may take it
    assert "too long" in caplog.text


def test_a_very_long_response_is_cut_to_its_end(tmp_path: Path) -> None:
    with ChatServer(lambda body: completion(YES)) as server:
        make_judge(server, tmp_path).judge("q", "x" * 10**6 + " Exact Answer: Paris \ud83d", "g")
        text = server.requests[0]["messages"][0]["content"]
    assert len(text) < 70_000
    assert " Exact Answer: Paris ?" in text


def test_evaluation_with_a_model_as_judge(tmp_path: Path) -> None:
    def script(body: Body) -> dict[str, object]:
        time.sleep(0.02)
        text = body["messages"][0]["content"]
        answer = text.partition("#### ")[2].partition("\n")[0]
        if answer == "3":
            return completion("I cannot say.")
        return completion(YES if f"[reference answer]\n{answer}\n" in text else NO)

    with ChatServer(script) as server:
        judge = make_judge(server, tmp_path, concurrency=3)
        given = {"k": 4, "seed": 0, "folder": tmp_path, "settings": {}, "judge": judge}
        result = evaluate(CountingEngine(), Sums(), sum_problems(10), **given)
        # problem 3's three right answers get no verdict; equal answers are judged once
        assert result["per_problem_correct"] == [0, 1, 2, 0, 4, 0, 1, 2, 3, 4]
        assert result["judge"] == "judge-model (prompt version 1)"
        assert result["judge_unparsed"] == 3
        asked = len(server.requests)
        assert 10 < asked <= 40
        assert 1 < server.busiest <= 3
        assert evaluate(CountingEngine(), Sums(), sum_problems(10), **given) == result
        assert len(server.requests) == asked


def test_the_key_is_in_no_file_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "canary-7f3a9c51"
    monkeypatch.setenv("ESTR_JUDGE_API_KEY", key)
    for name in ("", "openai", "httpx", "httpx2", "httpcore", "httpcore2"):
        caplog.set_level(logging.DEBUG, logger=name)
    script = Flaky(
        lambda: failure(500, f"internal error of {key}"), lambda: failure(429, key), lambda: failure(400, f"bad {key}")
    )
    with ChatServer(script) as server:
        judge = make_judge(server, tmp_path)
        assert not judge.judge("q", "r", "g").parsed
        assert judge.judge("q", "r", "g").correct
        assert server.keys == {f"Bearer {key}"}
        evaluate(CountingEngine(), Sums(), sum_problems(3), k=2, seed=0, folder=tmp_path, settings={}, judge=judge)
    with ChatServer(lambda body: failure(401, f"wrong key {key}")) as server, pytest.raises(UserError) as caught:
        LlmJudge(server.url, "m", tmp_path / "other.jsonl", retry=QUICK).judge("q", "r", "g")
    assert "wrong key ***" in str(caught.value)
    assert "bad ***" in caplog.text
    assert len(caplog.records) > 20
    seen = [caplog.text, str(caught.value), *capfd.readouterr(), repr(vars(caught.value))]
    seen += [repr(record.__dict__) for record in caplog.records]
    seen += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(key in text for text in seen)


@pytest.mark.parametrize("url", ["http://key@127.0.0.1:1", "http://127.0.0.1:1/?api_key=key"])
def test_a_key_in_the_address_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="ESTR_JUDGE_API_KEY") as caught:
        LlmJudge(url, "m", tmp_path / "judge.jsonl")
    assert "key@" not in str(caught.value) and "api_key" not in str(caught.value)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://", "http://host:port", "http://[::1"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="no address of a server"):
        LlmJudge(url, "m", tmp_path / "judge.jsonl")
