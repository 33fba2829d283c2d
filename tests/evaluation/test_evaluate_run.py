import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sums_task import CountingEngine, Sums, sum_problems

from estr.errors import UserError
from estr.evaluation.judge import ExactMatchJudge, Judgement
from estr.evaluation.run import SAMPLES, evaluate
from estr.evaluation.sample import Sample
from estr.scoring import scoring_rule
from estr.tasks.base import Problem

K = 4


def run(folder: Path, engine: Any = None, task: Any = None, problems: Any = None, **changed: Any) -> dict[str, Any]:
    given = {"k": K, "seed": 0, "settings": {"temperature": 1.0}} | changed
    return evaluate(engine or CountingEngine(), task or Sums(), problems or sum_problems(10), folder=folder, **given)


class Limited(CountingEngine):
    """Is interrupted after `limit` problems."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        for done, item in enumerate(super().answer(problems, k, wanted)):
            if done == self.limit:
                raise KeyboardInterrupt
            yield item


class Faulty(CountingEngine):
    """Fails sample 0 of problems 1 and 2, gives no samples of problem 3 and a short list for problem 4."""

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        for position, samples in super().answer(problems, k, wanted):
            index = problems[position].index
            if index == 3:
                continue
            if index in (1, 2):
                samples[0] = Sample("#### 1" if index == 1 else "#### 2", status="failed")
            yield position, samples[:2] if index == 4 else samples


def test_scores_by_hand(tmp_path: Path) -> None:
    result = run(tmp_path)
    # problem p has p % 5 of 4 right
    assert result["per_problem_correct"] == [0, 1, 2, 3, 4] * 2
    assert result["avg@4"] == pytest.approx(0.5)
    assert result["pass@4"] == pytest.approx(0.8)
    assert result["best@4"] == pytest.approx((0 + (1 - 0.75**4) + (1 - 0.5**4) + (1 - 0.25**4) + 1) / 5)
    for name in ("avg@4", "pass@4", "best@4"):
        low, high = result[f"{name}_ci"]
        assert 0 <= low < result[name] < high <= 1
    assert (result["task"], result["engine"], result["judge"]) == ("sums", "counting", None)
    assert result["rule"] == {"name": "gsm8k_strict", "version": scoring_rule("gsm8k_strict").version}
    assert (result["k"], result["n_problems"], result["missing"]) == (4, 10, 0)
    assert result["agent"] == {"turns": 2.5, "tool_calls": 1.5, "tool_errors": 0, "tokens": 45, "completed": 1}
    assert "sets" not in result and "judge_unparsed" not in result
    json.dumps(result, allow_nan=False)


def test_every_problem_has_one_line_with_its_text_and_verdict(tmp_path: Path) -> None:
    run(tmp_path)
    header, *lines = [json.loads(line) for line in (tmp_path / SAMPLES).read_text().splitlines()]
    assert set(header) == {"key", "engine", "task", "k", "settings", "problems_sha256", "checksum"}
    assert sorted(line["index"] for line in lines) == list(range(10))
    [line] = [line for line in lines if line["index"] == 6]
    assert [sample["correct"] for sample in line["samples"]] == [True, False, False, False]
    assert [sample["extracted"] for sample in line["samples"]] == ["6", "1000", "1000", "1000"]
    assert line["samples"][0]["text"] == "so \ud83d\n#### 6"


def test_an_interrupted_evaluation_asks_for_the_rest_and_gives_the_same_result(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    for limit in (0, 3, 9):
        folder = tmp_path / str(limit)
        with pytest.raises(KeyboardInterrupt):
            run(folder, Limited(limit))
        rest = CountingEngine()
        assert run(folder, rest) == whole
        assert rest.asked == list(reversed(range(10 - limit)))
        again = CountingEngine()
        assert run(folder, again) == whole
        assert again.asked == []


def test_torn_at_any_byte_the_result_is_the_same(tmp_path: Path) -> None:
    whole = run(tmp_path, problems=sum_problems(2))
    path = tmp_path / SAMPLES
    content = path.read_bytes()
    for size in range(0, len(content), 37):
        path.write_bytes(content[:size])
        assert run(tmp_path, problems=sum_problems(2)) == whole
    assert not (tmp_path / (SAMPLES + ".old")).exists()


def test_a_journal_whose_first_line_is_damaged_is_put_aside_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run(tmp_path)
    path = tmp_path / SAMPLES
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    engine = CountingEngine()
    assert run(tmp_path, engine) == whole and len(engine.asked) == 10
    assert "has lost its first line" in caplog.text and "of another evaluation" not in caplog.text
    assert (tmp_path / (SAMPLES + ".old")).exists()


HANGS = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from sums_task import CountingEngine, Sums, sum_problems
from estr.evaluation.run import evaluate
class Hanging(CountingEngine):
    def sample(self, index, number, k):
        if index == 3:  # the highest comes first
            time.sleep(3600)
        return super().sample(index, number, k)
evaluate(Hanging(), Sums(), sum_problems(10), k=4, seed=0, settings={{"temperature": 1.0}}, folder=Path({folder!r}))
"""


def test_a_killed_process_is_resumed_to_the_same_result(tmp_path: Path) -> None:
    script = HANGS.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "killed"))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    path = tmp_path / "killed" / SAMPLES
    deadline = time.monotonic() + 300
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < 4:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    rest = CountingEngine()
    assert run(tmp_path / "killed", rest) == run(tmp_path / "whole")
    assert 0 < len(rest.asked) < 10


@pytest.mark.parametrize(
    "change",
    [
        {"k": 3},
        {"settings": {"temperature": 0.5}},
        {"task": Sums(version=2)},
        {"problems": sum_problems(9)},
        {"problems": sum_problems(10, ("other",))},
    ],
)
def test_another_evaluation_starts_over_and_keeps_the_old_one_aside(
    tmp_path: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path)
    before = (tmp_path / SAMPLES).read_bytes()
    engine = CountingEngine()
    run(tmp_path, engine, **change)
    assert len(engine.asked) == len(change.get("problems", range(10)))
    assert (tmp_path / (SAMPLES + ".old")).read_bytes() == before
    assert "kept as samples.jsonl.old" in caplog.text


def test_another_rule_scores_the_same_answers_again(tmp_path: Path) -> None:
    assert run(tmp_path)["avg@4"] == 0.5
    engine = CountingEngine()
    result = run(tmp_path, engine, Sums(rule=scoring_rule("dapo_math")))
    assert engine.asked == []
    assert (result["rule"]["name"], result["avg@4"]) == ("dapo_math", 0)
    assert run(tmp_path, engine)["avg@4"] == 0.5


def test_missing_samples_count_as_wrong_and_are_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = run(tmp_path, Faulty())
    # problem 1 loses its only right sample, 2 one of two, 3 everything, 4 two of four
    assert result["per_problem_correct"] == [0, 0, 1, 0, 2, 0, 1, 2, 3, 4]
    assert result["missing"] == 1 + 1 + 4 + 2
    assert (result["n_problems"], result["avg@4"]) == (10, 13 / 40)
    assert result["agent"]["completed"] == 1
    assert "8 of 40 samples are missing" in caplog.text
    rest = CountingEngine()
    assert run(tmp_path, rest) == run(tmp_path / "whole")
    assert sorted(rest.asked) == [1, 2, 3, 4]


class Absent(CountingEngine):
    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        yield 0, [Sample("", status="failed")] * k


def test_an_engine_that_delivers_nothing_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sample"):
        run(tmp_path, Absent())
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(Absent(), Sums(), [], k=4, seed=0, folder=tmp_path, settings={})


def test_several_data_sources_have_a_score_each_and_the_headline_is_their_mean(tmp_path: Path) -> None:
    problems = [*sum_problems(4), *sum_problems(10, ("other",))[4:5]]
    result = run(tmp_path, problems=problems)
    sets = result["sets"]
    assert {name: one["n_problems"] for name, one in sets.items()} == {"sums": 4, "other": 1}
    assert sets["sums"]["avg@4"] == (0 + 1 + 2 + 3) / 16
    assert sets["other"]["avg@4"] == 1
    assert result["avg@4"] == pytest.approx((0.375 + 1) / 2)
    assert result["pass@4"] == pytest.approx((0.75 + 1) / 2)
    assert result["per_problem_correct"] == [0, 1, 2, 3, 4]
    assert sets["other"]["per_problem_correct"] == [4]
    low, high = result["avg@4_ci"]
    assert 0.5 <= low < result["avg@4"] < high <= 1  # the second set does not vary


class Confident(CountingEngine):
    """Answers with what BrowseComp-Plus asks for; sample 3 ends in a search, sample 2 states no confidence."""

    def sample(self, index: int, number: int, k: int) -> Sample:
        text = super().sample(index, number, k).text
        answer = f"Exact Answer: {text.split('#### ')[1]}" + (
            "" if number == 2 else f"\nConfidence: {90 - 40 * number}%"
        )
        documents = ("a", "b") if number == 0 else ("x",)
        return Sample(answer, status="turn_limit" if number == 3 else "completed", documents=documents)


def browsed_problems() -> list[Problem]:
    return [
        Problem((p.prompt[1],), p.ground_truth, "bcp", "search", "eval", p.index, evidence=("a", "c") * (p.index > 0))
        for p in sum_problems(5)
    ]


def test_judged_by_exact_match_with_recall_and_calibration(tmp_path: Path) -> None:
    result = run(tmp_path, Confident(), problems=browsed_problems(), judge=ExactMatchJudge())
    assert result["judge"] == "exact match (offline, no judge model)"
    # a dialogue that did not end has no answer: problem 4 loses its fourth sample
    assert result["per_problem_correct"] == [0, 1, 2, 3, 3]
    agent = result["agent"]
    assert agent["completed"] == 0.75
    assert agent["recall"] == pytest.approx(0.25 * 0.5)  # problem 0 has no evidence
    # 5 answers at 90 %, 4 of them right; 5 at 50 %, 3 of them right
    assert agent["calibration_error"] == pytest.approx(0.5 * abs(0.8 - 0.9) + 0.5 * abs(0.6 - 0.5))
    assert (agent["confidence_unstated"], result["judge_unparsed"]) == (5, 0)
    assert sum(inside["samples"] for inside in agent["calibration_bins"]) == 10


class Moody:
    """Agrees with everything, but is away once it has judged `patience` answers."""

    label = "moody"
    concurrency = 2

    def __init__(self, patience: int) -> None:
        self.patience, self.seen = patience, []  # type: tuple[int, list[str]]

    def judge(self, question: str, response: str, gold: str) -> Judgement:
        if len(self.seen) >= self.patience:
            raise UserError("the judge is away")
        self.seen.append(question)
        return Judgement(True, gold, None, parsed=gold != "3")


def test_a_judge_that_is_away_loses_no_answer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="away"):
        run(tmp_path, judge=Moody(13))
    engine, back = CountingEngine(), Moody(1000)
    result = run(tmp_path, engine, judge=back)
    assert engine.asked == []
    assert 40 - 13 <= len(back.seen) < 40
    assert back.seen[0].startswith("0 + ")
    assert (result["avg@4"], result["judge_unparsed"]) == (1, 4)


def test_another_judge_judges_the_same_answers(tmp_path: Path) -> None:
    problems = browsed_problems()
    first = run(tmp_path, Confident(), problems=problems, judge=ExactMatchJudge())
    engine = Confident()
    assert run(tmp_path, engine, problems=problems, judge=Moody(1000))["avg@4"] == 0.75
    assert run(tmp_path, engine, problems=problems, judge=ExactMatchJudge()) == first
    assert engine.asked == []


def test_a_damaged_record_is_reported_and_its_problem_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run(tmp_path)
    path = tmp_path / SAMPLES
    lines = path.read_text().splitlines()
    unsealed = without_checksum(lines[1]).strip()  # of an older version, it may be damaged too
    for damage, said in (
        (lines[1].replace('"index": 9', '"index": 8'), "line 2 is damaged"),
        (lines[1].replace("completed", "complete"), "line 2 is damaged"),
        (unsealed.replace('"index": 9', '"index": 8'), "not problem 8"),
        (unsealed.replace("completed", "odd"), "none of completed"),
        ('{"index": 77}', "what is no record of this evaluation is left out"),
    ):
        path.write_text("\n".join([lines[0], damage, *lines[2:]]) + "\n")
        caplog.clear()
        engine = CountingEngine()
        assert run(tmp_path, engine) == whole
        assert engine.asked == [9] and said in caplog.text


def without_checksum(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != "checksum"}) + "\n"


def test_the_records_of_an_older_version_count(tmp_path: Path) -> None:
    whole = run(tmp_path)
    path = tmp_path / SAMPLES
    path.write_text("".join(map(without_checksum, path.read_text().splitlines())))
    engine = CountingEngine()
    assert run(tmp_path, engine) == whole and engine.asked == []


def test_samples_survive_the_round_trip() -> None:
    sample = Sample("x\0\ud800", 3, {"search": 2}, 1, 99, "token_limit", ("d1", "d2"))
    assert Sample.from_json(json.loads(json.dumps(sample.to_json()))) == sample
    with pytest.raises(ValueError, match="status"):
        Sample("", status="fine")


def test_nothing_is_warned_about_in_a_normal_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_scoring_answers_that_are_there_needs_no_torch() -> None:
    code = (
        "import sys, estr.cli, estr.evaluate_run; from estr.config import resolve; "
        "resolve('smoke', 'gsm8k', 'estr', 0, check_thresholds=False); "
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
