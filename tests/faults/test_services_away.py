"""Retriever and judge, as processes of their own, killed in the middle of an evaluation."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from processes import PATIENCE, Started, start
from tokenizers import Tokenizer, models

from estr.errors import UserError
from estr.evaluation.endpoint import Retry
from estr.evaluation.judge import LlmJudge
from estr.evaluation.openai_engine import OpenAIEngine
from estr.evaluation.run import SAMPLES, evaluate
from estr.tasks.base import Problem
from estr.tasks.search_r1 import SearchR1, search_r1_problem
from estr.tools.client import HttpSearch
from tests.evaluation.chat_server import Body, ChatServer, completion
from tests.servers import free_port

pytestmark = pytest.mark.slow

COUNT, K = 16, 2
PROBLEMS = [
    search_r1_problem(
        {"id": f"q{n}", "question": f"subject{n}", "golden_answers": [f"object{n}"], "data_source": "nq"}, n, "eval"
    )
    for n in range(COUNT)
]
JUDGE = """
import sys, time
from tests.evaluation.chat_server import ChatServer, completion

def judge(body):
    text = body["messages"][0]["content"]
    response = text.split("[response]")[1].split("[end of response]")[0]
    gold = text.split("[reference answer]")[1].split()[0].strip('[]"')
    right = "yes" if gold in response else "no"
    if body["max_tokens"] > 1:
        time.sleep(0.02)
        with open(sys.argv[2], "a") as log:
            log.write("judged\\n")
    return completion(f"extracted_final_answer: x\\nreasoning: x\\ncorrect: {right}\\nconfidence: 50")

with ChatServer(judge, models=("judge",), port=int(sys.argv[1])):
    print("serving", flush=True)
    sys.stdin.read()
"""


class Policy:
    """Searches for the question, then answers with the last word of what was found; at request `pause` it waits."""

    def __init__(self, pause: int | None = None) -> None:
        self.paused, self.go_on = threading.Event(), threading.Event()
        self._seen, self._pause, self._lock = 0, pause, threading.Lock()
        self.server = ChatServer(self._answer)

    def _answer(self, body: Body) -> dict[str, Any]:
        with self._lock:
            self._seen += 1
            waits = self._pause is not None and self._seen > self._pause
        if waits:
            self.paused.set()
            assert self.go_on.wait(PATIENCE)
        if body["messages"][-1]["role"] == "tool":
            found = body["messages"][-1]["content"].split()[-1]
            return completion(f"<answer> {found} </answer> in sample {body['seed']}")  # no two are the same to a judge
        question = body["messages"][-1]["content"].split()[-1]
        return completion(f'<tool_call>{{"name": "search", "arguments": {{"query": "{question}"}}}}</tool_call>')

    def asked(self) -> set[str]:
        """The questions that it was asked."""
        return {body["messages"][1]["content"].split()[-1] for body in self.server.requests}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.parquet"
    texts = {f"d{n}": f'"Title {n}"\nsubject{n} is object{n if n % 3 else 0}' for n in range(COUNT)}
    pd.DataFrame({"docid": list(texts), "text": list(texts.values())}).to_parquet(path)
    return path


class Retriever:
    def __init__(self, corpus: Path) -> None:
        self._corpus, self._port = corpus, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.process = self.begin()

    def begin(self) -> Started:
        command = ("search", "serve", str(self._corpus), "--port", str(self._port))
        self.process = start(self._corpus.parent, *command, scale="")
        self.process.until(lambda: "serving" in self.process.log.read_text() if self.process.log.exists() else False)
        return self.process

    def kill(self) -> None:
        self.process.send(signal.SIGKILL)
        self.process.wait()


class JudgeServer:
    def __init__(self, folder: Path) -> None:
        self._port, self._log = free_port(), folder / "judged"
        self.url = f"http://127.0.0.1:{self._port}"
        self.begin()

    def begin(self) -> None:
        self._log.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", JUDGE, str(self._port), str(self._log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == b"serving\n"

    def judged(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def run(policy: Policy, search: HttpSearch, folder: Path, judge: LlmJudge | None = None) -> dict[str, Any]:
    task = SearchR1(search)
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with policy.server as server:
        engine = OpenAIEngine(server.url, "policy", task, tokenizer=tokenizer, concurrency=4)
        return evaluate(engine, task, PROBLEMS, k=K, seed=0, folder=folder, settings={}, judge=judge)


class InThread:
    """A call that runs while the test goes on."""

    def __init__(self, call: Callable[[], dict[str, Any]]) -> None:
        self._call, self.error = call, None  # type: tuple[Callable[[], dict[str, Any]], Exception | None]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:
            self.error = error

    def result(self) -> dict[str, Any]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive() and self.error is None, self.error
        return self._result

    def failure(self) -> str:
        self._thread.join(PATIENCE)
        assert isinstance(self.error, UserError), self.error
        return str(self.error)


def finished_questions(folder: Path) -> set[str]:
    lines = [json.loads(line) for line in (folder / SAMPLES).read_text().splitlines()[1:]]
    return {question(PROBLEMS[line["index"]]) for line in lines}


def question(problem: Problem) -> str:
    return problem.prompt[-1]["content"].split()[-1]


@pytest.fixture
def retriever(corpus: Path):
    service = Retriever(corpus)
    yield service
    service.kill()


@pytest.fixture
def judges(tmp_path: Path):
    server = JudgeServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def unbroken(retriever: Retriever, tmp_path: Path) -> dict[str, Any]:
    result = run(Policy(), HttpSearch(retriever.url), tmp_path / "unbroken")
    assert 0 < result[f"avg@{K}"] < 1 and result["agent"]["tool_calls"] == 1 and result["missing"] == 0
    return result


def test_a_retriever_that_is_back_after_seconds_changes_nothing(
    retriever: Retriever, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    policy = Policy(pause=30)
    evaluation = InThread(lambda: run(policy, HttpSearch(retriever.url), tmp_path / "broken"))
    assert policy.paused.wait(PATIENCE)
    retriever.kill()
    policy.go_on.set()
    time.sleep(2)
    retriever.begin()
    assert evaluation.result() == unbroken


def test_a_retriever_that_stays_away_ends_the_evaluation_which_goes_on_later(
    retriever: Retriever, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    policy, folder = Policy(pause=30), tmp_path / "broken"
    evaluation = InThread(lambda: run(policy, HttpSearch(retriever.url, retries=2), folder))
    assert policy.paused.wait(PATIENCE)
    retriever.kill()
    policy.go_on.set()
    assert f"{retriever.url}: the search service cannot be reached" in evaluation.failure()
    known = finished_questions(folder)
    assert 0 < len(known) < COUNT
    retriever.begin()
    again = Policy()
    assert run(again, HttpSearch(retriever.url), folder) == unbroken
    assert again.asked() == {question(problem) for problem in PROBLEMS} - known


def judge_of(judges: JudgeServer, folder: Path, patience_s: float) -> LlmJudge:
    retry = Retry(patience_s=patience_s, first_delay_s=0.1, longest_delay_s=0.5)
    return LlmJudge(judges.url, "judge", folder / "judge.jsonl", concurrency=2, retry=retry)


def when_judged(judges: JudgeServer, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while judges.judged() < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_judge_that_is_back_after_seconds_changes_nothing(
    retriever: Retriever, judges: JudgeServer, tmp_path: Path
) -> None:
    search = HttpSearch(retriever.url)
    whole = run(Policy(), search, tmp_path / "whole", judge_of(judges, tmp_path / "whole", PATIENCE))
    assert 0 < whole[f"avg@{K}"] < 1 and whole["judge_unparsed"] == 0
    judges.kill()
    judges.begin()
    folder = tmp_path / "broken"
    evaluation = InThread(lambda: run(Policy(), search, folder, judge_of(judges, folder, PATIENCE)))
    when_judged(judges, 5)
    judges.kill()
    time.sleep(2)
    judges.begin()
    assert evaluation.result() == whole


def test_a_judge_that_stays_away_ends_the_evaluation_which_goes_on_later(
    retriever: Retriever, judges: JudgeServer, tmp_path: Path
) -> None:
    search = HttpSearch(retriever.url)
    whole = run(Policy(), search, tmp_path / "whole", judge_of(judges, tmp_path / "whole", PATIENCE))
    distinct = len((tmp_path / "whole" / "judge.jsonl").read_bytes().splitlines())
    judges.kill()
    judges.begin()
    folder = tmp_path / "broken"
    evaluation = InThread(lambda: run(Policy(), search, folder, judge_of(judges, folder, 0.5)))
    when_judged(judges, 5)
    judges.kill()
    assert "the judge judge does not answer" in evaluation.failure()
    assert len(finished_questions(folder)) == COUNT
    known = len((folder / "judge.jsonl").read_bytes().splitlines())
    assert 0 < known < distinct
    judges.begin()
    again = Policy()
    assert run(again, search, folder, judge_of(judges, folder, PATIENCE)) == whole
    assert again.asked() == set() and judges.judged() == distinct - known
