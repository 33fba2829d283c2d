import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estr.errors import UserError
from estr.scoring import scoring_rule
from estr.tasks.base import Problem
from estr.tasks.benchmarks import BENCHMARKS, benchmark
from estr.tasks.browsecomp_plus import BrowseCompPlus, browsecomp_problem
from estr.tasks.dapo_math import PREFIX, SUFFIX, DapoMath, aime_problem, dapo_problem
from estr.tasks.gsm8k import Gsm8k, gsm8k_problem
from estr.tasks.retrieval import cut_characters, open_retriever
from estr.tasks.search_r1 import SearchR1, search_r1_problem
from estr.tools.bm25 import BM25Index
from estr.tools.hermes import ToolCall

DOCUMENTS = [(str(i), f"The bridge of Ulm{i} is {i} feet long. " + "It is old. " * 400) for i in range(8)]


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("Two.\n#### 2", "2"),
        ("#### 1,234,567", "1234567"),
        ("It falls.\n#### -3\n", "-3"),
        ("#### 2.50", "2.50"),
        ("#### 3 is wrong\n#### 4", "4"),
    ],
)
def test_gsm8k_gold(solution: str, gold: str) -> None:
    row = {"question": "How many?", "answer": solution}
    assert gsm8k_problem(row, 0, split="train", oracle=True).ground_truth == gold


@pytest.mark.parametrize("solution", ["", "7", "#### ", "####7", "#### 7.", "#### 7 apples", "#### $7", "#### 1.2.3"])
def test_gsm8k_gold_is_a_number(solution: str) -> None:
    with pytest.raises(ValueError, match="does not end in '#### <number>'"):
        gsm8k_problem({"question": "How many?", "answer": solution}, 0, split="train", oracle=True)


def test_gsm8k_prompts_name_the_tool_that_is_offered() -> None:
    for oracle in (True, False):
        problem = gsm8k_problem({"question": "How many?", "answer": "#### 2"}, 3, split="eval", oracle=oracle)
        [schema] = Gsm8k(oracle).toolbox(problem).schemas
        assert f"`{schema['function']['name']}`" in problem.prompt[0]["content"]
        assert (problem.id, problem.agent, problem.data_source) == ("eval-3", "tool_agent", "openai/gsm8k")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("7", "7"),
        ("007", "7"),
        (0, "0"),
        (999, "999"),
        ("\\boxed{016}", "16"),
        ("So \\boxed{2}? No, \\boxed{ 33 }.", "33"),
    ],
)
def test_aime_gold(answer: str | int, gold: str) -> None:
    for row in ({"problem": "Find $n$.", "answer": answer}, {"problem": "Find $n$.", "solution": str(answer)}):
        problem = aime_problem(row, 4, name="aime25", start=30)
        assert problem.ground_truth == gold
        assert (problem.data_source, problem.id, problem.index) == ("aime25", "aime25-4", 34)
        assert problem.prompt == ({"role": "user", "content": f"{PREFIX}Find $n$.{SUFFIX}"},)


@pytest.mark.parametrize("answer", ["", "1000", "-1", "3.0", "x", "\\boxed{1000}", "\\boxed{x}", "7 or \\boxed", "١٢"])
def test_aime_gold_is_an_integer_of_three_digits(answer: str) -> None:
    with pytest.raises(ValueError, match="no integer from 0 to 999"):
        aime_problem({"problem": "Find $n$.", "answer": answer}, 0, name="aime24", start=0)


@pytest.mark.parametrize(
    ("response", "extracted", "correct"),
    [
        ("Answer: 16", "16", True),
        ("Answer: 016", "016", True),
        ("Answer: $16$", "$16$", True),
        ("Answer: \\boxed{16}", "\\boxed{16}", True),
        ("**Answer:** 16", "16", True),
        ("Answer: 12\nAnswer: 16", "16", True),
        ("\\boxed{16}", "16", True),
        ("\\boxed{12}, no: \\boxed{16}", "16", True),
        ("\\boxed{16}\nAnswer: 12", "12", False),  # the line comes first
        ("Answer: 12, no: \\boxed{16}", "12, no: \\boxed{16}", True),  # of a line with a box, the box
        ("Answer: 160", "160", False),
        ("16", None, False),
        ("", None, False),
        ("Answer:", None, False),
        ("Answer: **", None, False),
    ],
)
def test_aime_answers(response: str, extracted: str | None, correct: bool) -> None:
    verdict = scoring_rule("aime_answer_or_box").score(response, "16")
    assert (verdict.extracted, verdict.correct) == (extracted, correct)


def test_aime_accepts_whatever_verl_accepts() -> None:

    for text in ("16", "$16$", "16 dollars", "n = 16", "\\text{16}", "1 6", "{,}16", "**16**", "16.0"):
        response = f"Answer: {text}"
        if scoring_rule("dapo_math").score(response, "16").correct:
            assert scoring_rule("aime_answer_or_box").score(response, "16").correct, text


def test_dapo_math_trains_on_the_line_alone() -> None:
    task = DapoMath()
    assert task.reward("Answer: 16", "16") == 1.0
    assert task.reward("\\boxed{16}", "16") == 0.0
    assert task.limits.turns == 1


def test_a_dapo_prompt_of_another_form_is_kept() -> None:
    row: dict[str, Any] = {
        "prompt": [{"role": "user", "content": "Just solve it."}],
        "reward_model": {"ground_truth": "34"},
        "extra_info": {"index": "some-id"},
    }
    problem = dapo_problem(row, 5)
    assert (problem.prompt[0]["content"], problem.question) == ("Just solve it.", "Just solve it.")
    assert (problem.id, problem.index, problem.agent) == ("some-id", 5, "single_turn_agent")
    assert DapoMath().toolbox(problem) is None


@pytest.mark.parametrize(
    "cells",
    [
        {"prompt": []},
        {"prompt": [{"role": "system", "content": "x"}]},
        {"prompt": [{"role": "user", "content": None}]},
        {"reward_model": {"ground_truth": None}},
        {"reward_model": {"ground_truth": " "}},
    ],
)
def test_a_dapo_row_that_is_no_problem(cells: dict[str, Any]) -> None:
    row = {
        "prompt": [{"role": "user", "content": "Solve it."}],
        "reward_model": {"ground_truth": "34"},
        "extra_info": {"index": "some-id"},
    }
    with pytest.raises(ValueError, match=r"not one user message|ground_truth is empty"):
        dapo_problem(row | cells, 0)


def browsecomp(get_document: bool) -> Problem:
    row = {"query_id": 17, "query": "Which {bridge}?", "answer": "Ulm3", "evidence": ["3"]}
    return browsecomp_problem(row, 0, split="eval", get_document=get_document)


def test_browsecomp_plus() -> None:
    index = BM25Index.build(DOCUMENTS)
    for get_document, names in ((False, ["search"]), (True, ["search", "get_document"])):
        problem = browsecomp(get_document)
        task = BrowseCompPlus(index, get_document=get_document)
        toolbox = task.toolbox(problem)
        assert [schema["function"]["name"] for schema in toolbox.schemas] == names
        content = problem.prompt[0]["content"]
        assert ("get_document" in content) is get_document
        assert "Question: Which {bridge}?\n" in content
        assert content.endswith("Confidence: {your confidence score between 0% and 100% for your answer}")
        found = toolbox.run(ToolCall("search", {"query": "bridge Ulm3"}))
        assert (found.documents[0], len(found.documents)) == ("3", 5)
        assert max(map(len, found.content.split("\n\n"))) <= len("docid: 0\n") + 4 * 512
        assert 4 * task.limits.tool_output_tokens > len(found.content)
    response = "Explanation: [3]\nExact Answer: ulm3.\nConfidence: 90%"
    assert BrowseCompPlus().reward(response, "Ulm3") == 1.0
    assert BrowseCompPlus().reward("Ulm3", "Ulm3") == 0.0


def test_search_r1() -> None:
    row = {"id": "test_4", "question": "how long?", "golden_answers": ["4 feet", "four feet"], "data_source": "nq"}
    problem = search_r1_problem(row, 4, split="eval")
    assert (problem.id, problem.data_source, problem.agent) == ("test_4", "searchR1_nq", "tool_agent")
    assert problem.prompt[1]["content"].endswith("For example, <answer> Beijing </answer>. Question: how long?")
    task = SearchR1(BM25Index.build(DOCUMENTS))
    assert len(task.toolbox(problem).run(ToolCall("search", {"query": "bridge"})).documents) == 3
    assert task.reward("<answer>Four feet</answer>", problem.ground_truth) == 1.0
    assert task.reward("<answer>Five feet</answer>", problem.ground_truth) == 0.0
    with pytest.raises(ValueError, match="golden_answers is empty"):
        search_r1_problem(row | {"golden_answers": ["", " "]}, 4, split="eval")


@pytest.mark.parametrize("task", [BrowseCompPlus(), SearchR1()])
def test_a_search_task_without_retriever_can_score_but_not_search(task: BrowseCompPlus | SearchR1) -> None:
    assert task.reward("", "Ulm3") == 0.0
    with pytest.raises(UserError, match=f"{task.name} needs a retriever"):
        task.toolbox(browsecomp(False))


def test_a_retriever_from_corpus_index_or_folder(tmp_path: Path) -> None:
    columns = {"docid": [i for i, _ in DOCUMENTS], "text": [text for _, text in DOCUMENTS], "url": [""] * 8}
    pq.write_table(pa.table(columns), tmp_path / "corpus.parquet", row_group_size=3)
    BM25Index.build(DOCUMENTS[:5]).save(tmp_path / "elsewhere")
    for where, known in (
        (tmp_path, "7"),
        (tmp_path / "corpus.parquet", "7"),
        (str(tmp_path / "elsewhere"), "4"),
    ):
        assert open_retriever(where).get(known) == dict(DOCUMENTS)[known]
    BM25Index.build(DOCUMENTS[:2]).save(tmp_path / "index")  # a saved index comes first
    assert len(open_retriever(tmp_path).search("bridge", 5)) == 2


def test_what_is_no_retriever(tmp_path: Path) -> None:
    (tmp_path / "corpus.parquet").write_text("nonsense")
    for where in (tmp_path, tmp_path / "corpus.parquet", tmp_path / "nowhere.parquet"):
        with pytest.raises(UserError, match="not a prepared corpus"):
            open_retriever(where)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no search index"):
        open_retriever(tmp_path / "empty")


def test_cut_characters() -> None:
    assert cut_characters("abcdefghij", 2) == "abcdefgh"
    assert cut_characters("abc", 2) == "abc"


def note(folder: Path, **content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "data.json").write_text(json.dumps(content))
    return folder


def test_a_benchmark_is_opened_as_its_data_was_prepared(tmp_path: Path) -> None:
    oracle = note(tmp_path / "oracle", task="gsm8k", version=1, tools=["calc_gsm8k_reward"])
    plain = note(tmp_path / "plain", task="gsm8k", version=1, tools=["calculator"])
    assert benchmark("gsm8k", oracle) == Gsm8k(oracle=True) == benchmark("gsm8k", oracle, oracle=True)
    assert benchmark("gsm8k", plain) == Gsm8k(oracle=False)
    with pytest.raises(UserError, match="prepared with the oracle tool"):
        benchmark("gsm8k", oracle, oracle=False)
    with pytest.raises(UserError, match="prepared without the oracle tool"):
        benchmark("gsm8k", plain, oracle=True)
    index = BM25Index.build(DOCUMENTS)
    search = note(tmp_path / "search", task="browsecomp_plus", version=1, tools=["search", "get_document"])
    assert benchmark("browsecomp_plus", search, search_backend=index) == BrowseCompPlus(index, get_document=True)
    search = note(tmp_path / "search", task="search_r1", version=1, tools=["search"])
    assert benchmark("search_r1", search, search_backend=index) == SearchR1(index)
    assert benchmark("dapo_math", note(tmp_path / "math", task="dapo_math", version=1, tools=[])) == DapoMath()


def test_data_that_is_not_that_of_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no benchmark 'chess'; the benchmarks are dapo_math, gsm8k, browsecomp_plus"):
        benchmark("chess", tmp_path)
    with pytest.raises(UserError, match=r"data.json: no prepared data .*estr data prepare gsm8k --scale paper"):
        benchmark("gsm8k", tmp_path)
    for content in ({"task": "dapo_math", "version": 1}, {"task": "gsm8k", "version": 0}):
        with pytest.raises(UserError, match=r"wanted is gsm8k version 1"):
            benchmark("gsm8k", note(tmp_path / "other", **content, tools=[]))
    with pytest.raises(UserError, match="not the note of a prepared benchmark"):
        benchmark("gsm8k", note(tmp_path / "laptop", task="gsm8k", version=1))


def test_every_benchmark_has_its_name_a_rule_and_limits() -> None:
    for name, make in BENCHMARKS.items():
        task = make()
        assert task.name == name
        assert task.version >= 1
        assert task.rule.name
        assert task.limits.turns >= 1
