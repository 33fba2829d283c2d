"""From invented copies of the published sets to problems, and to a scripted policy's score on them."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import invented
import pyarrow.parquet as pq
import pytest
from invented import CANARY, SMALL

from estr.data.benchmarks import prepare_benchmark
from estr.data.browsecomp import CANARY_VARIABLE, held_out
from estr.data.checks import CORPUS, PROBLEMS, content_hash
from estr.data.published import SOURCES
from estr.data.read import read_problems
from estr.errors import UserError
from estr.evaluation.run import evaluate
from estr.evaluation.sample import Sample
from estr.evaluation.standalone import choose_judge
from estr.tasks import prepared_task
from estr.tasks.base import Problem, Task
from estr.tasks.benchmarks import benchmark
from estr.tasks.dapo_math import PREFIX
from estr.tasks.retrieval import cut_characters, open_retriever
from estr.tools.conversation import Conversation
from estr.tools.hermes import ToolCall, render_tool_call

NAMES = tuple(SMALL)


@pytest.fixture
def copies(published: Path, tmp_path: Path) -> Path:
    """The invented copies, to be changed."""
    return Path(shutil.copytree(published, tmp_path / "copies"))


def prepare(name: str, folder: Path, source: Path, **options: Any) -> dict[str, Any]:
    prepare_benchmark(name, folder, source, **({"canary": CANARY, "sources": SMALL[name]} | options))
    note: dict[str, Any] = json.loads((folder / "data.json").read_text())
    return note


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written(published: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "made" / name
    note = prepare(name, folder, published, corpus=name in ("browsecomp_plus", "search_r1"))
    files = {"train.parquet", "eval.parquet", "data.json"} | ({"corpus.parquet"} if "corpus" in note["sets"] else set())
    assert {path.name for path in folder.iterdir()} == files
    assert (note["task"], note["version"]) == (name, 1)
    for split in ("train", "eval"):
        table = pq.read_table(folder / f"{split}.parquet")
        assert table.schema.equals(PROBLEMS)
        assert note["sets"][split]["rows"] == len(table) == sum(note["sets"][split]["parts"].values())
        assert note["sets"][split]["sha256"] == content_hash(table)
        for source in note["sets"][split]["sources"]:
            assert source["licence"] == f"https://huggingface.co/datasets/{source['id']}"
        problems = read_problems(folder / f"{split}.parquet")
        assert [problem.index for problem in problems] == list(range(len(problems)))
        assert {problem.split for problem in problems} == {split}
        assert all(problem.question and problem.id and problem.ground_truth for problem in problems)
    train, evaluation = (read_problems(folder / f"{split}.parquet") for split in ("train", "eval"))
    assert {p.question for p in train}.isdisjoint(p.question for p in evaluation)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_copy_gives_the_same_content(published: Path, tmp_path: Path, name: str) -> None:
    first, second = (prepare(name, tmp_path / run, published) for run in ("first", "second"))
    assert first == second
    again = prepare(name, tmp_path / "second", published)  # over what is there
    assert again == first


def test_gsm8k(published: Path, tmp_path: Path) -> None:
    note = prepare("gsm8k", tmp_path / "out", published)
    train = read_problems(tmp_path / "out/train.parquet")
    evaluation = read_problems(tmp_path / "out/eval.parquet")
    assert (len(train), len(evaluation)) == (24, 21)
    assert evaluation[0].ground_truth == "1200"  # published as 1,200
    assert [message["role"] for message in train[0].prompt] == ["system", "user"]
    assert train[0].prompt[1]["content"] == (
        "A train of the harbour line carries 2 crates of 7 lemons. How many lemons? "
        "Let's think step by step and output the final answer after `####`."
    )
    assert note["tools"] == ["calc_gsm8k_reward"]
    assert "not plain GSM8K" in note["oracle_note"]
    plain = prepare("gsm8k", tmp_path / "plain", published, oracle=False)
    assert plain["tools"] == ["calculator"]
    assert "oracle_note" not in plain
    assert plain["sets"]["train"]["sha256"] != note["sets"]["train"]["sha256"]


def test_dapo_math_takes_each_record_once(published: Path, tmp_path: Path) -> None:
    note = prepare("dapo_math", tmp_path / "out", published)
    train = read_problems(tmp_path / "out/train.parquet")
    assert [problem.id for problem in train] == [
        invented.dapo_record(i)["extra_info"]["index"] for i in range(invented.RECORDS)
    ]
    assert train[3].prompt == ({"role": "user", "content": invented.dapo_record(3)["prompt"][0]["content"]},)
    assert (train[3].question, train[3].ground_truth) == ("What is $3 - 14$?", "-11")
    assert note["sets"]["train"]["sources"][0]["rows"] == 2_200
    assert note["sets"]["train"]["repeated_questions"] == 1  # the last record asks what the first one asks
    assert note["sets"]["eval"]["parts"] == {"aime24": 20, "aime25": 20, "aime26": 20}
    evaluation = read_problems(tmp_path / "out/eval.parquet")
    assert {p.ground_truth for p in evaluation if p.index % 20 == 2} == {"9"}  # \boxed{009}, "9" and 9
    assert evaluation[0].prompt[0]["content"].startswith(PREFIX)


def test_browsecomp_plus(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY_VARIABLE, f"{CANARY}\n")
    note = prepare("browsecomp_plus", tmp_path / "out", published, canary=None)
    sets = {split: read_problems(tmp_path / f"out/{split}.parquet") for split in ("train", "eval")}
    assert {split: len(problems) for split, problems in sets.items()} == {"train": 27, "eval": 3}
    plain = {row["query_id"]: row for row in invented.browsecomp_plain()}
    for problem in sets["train"] + sets["eval"]:
        row = plain.pop(problem.id)
        assert (problem.question, problem.ground_truth) == (row["query"], row["answer"])
        assert problem.evidence == tuple(document["docid"] for document in row["evidence_docs"])
        assert row["query"] in problem.prompt[0]["content"]
        assert "Exact Answer: {your succinct, final answer}" in problem.prompt[0]["content"]
    assert not plain
    corpus = pq.read_table(tmp_path / "out/corpus.parquet")
    assert corpus.schema.equals(CORPUS)
    assert corpus.to_pylist() == invented.browsecomp_documents()
    assert note["sets"]["corpus"]["rows"] == 45
    assert "not public" in note["split_note"]
    assert "do not publish" in note["warning"]
    assert CANARY not in json.dumps(note)


def test_search_r1(published: Path, tmp_path: Path) -> None:
    note = prepare("search_r1", tmp_path / "out", published, corpus=True)
    assert note["sets"]["train"]["parts"] == {"searchR1_nq": 20, "searchR1_hotpotqa": 25}
    assert note["sets"]["eval"]["parts"] == {f"searchR1_{name}": n for name, n in invented.SEARCH_EVAL.items()}
    assert note["sets"]["eval"]["questions_with_several_answers"] == 1
    first = read_problems(tmp_path / "out/eval.parquet")[0]
    assert json.loads(first.ground_truth) == ["Founder nq 0", "nq 0 the Elder"]
    assert first.prompt[1]["content"].endswith("Question: who founded the test town of Nqby 0?")
    corpus = pq.read_table(tmp_path / "out/corpus.parquet").to_pylist()
    assert corpus[7] == {"docid": "7", "text": invented.wikipedia()[7]["contents"], "url": ""}
    assert "corpus" not in prepare("search_r1", tmp_path / "without", published)["sets"]


def test_what_the_published_sets_are_said_to_hold() -> None:
    assert SOURCES["dapo_math"]["train"].rows == 100 * 17_917 == 100 * (SOURCES["dapo_math"]["train"].distinct or 0)
    assert SOURCES["search_r1"]["train"].rows == 169_615
    assert SOURCES["search_r1"]["eval"].rows == 51_713


def test_the_split_of_browsecomp_plus() -> None:
    ids = [str(number) for number in range(1, 831)]
    evaluation = held_out(ids)
    assert len(evaluation) == 83
    assert evaluation < set(ids)
    assert held_out(ids[::-1]) == evaluation
    # pinned: the split is part of every result
    assert sorted(map(int, evaluation))[:5] == [2, 30, 84, 102, 126]


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def changed(index: int, **cells: Any) -> Change:
    return lambda rows: [row | cells if i == index else row for i, row in enumerate(rows)]


ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k/train": invented.gsm8k("train"),
    "gsm8k/eval": invented.gsm8k("eval"),
    "dapo_math/train": invented.dapo(),
    "dapo_math/aime25": invented.aime("aime25"),
    "dapo_math/aime26": invented.aime("aime26"),
    "browsecomp_plus/questions": invented.browsecomp_questions(),
    "browsecomp_plus/corpus": invented.browsecomp_documents(),
    "search_r1/train": invented.search_r1("train", invented.SEARCH_TRAIN),
    "search_r1/eval": invented.search_r1("test", invented.SEARCH_EVAL),
    "search_r1/corpus": invented.wikipedia(),
}


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("gsm8k/train", lambda rows: rows[1:], "23 rows, where the published set has 24"),
        ("gsm8k/train", changed(5, answer="It carries many.\n#### many"), "row 5: the answer does not end in '#### <n"),
        (
            "gsm8k/train",
            changed(5, answer="Seven.\n#### 7 lemons"),
            "row 5: the answer does not end in '#### <number>'",
        ),
        ("gsm8k/eval", changed(5, question=""), "row 5: question is empty"),
        ("gsm8k/train", changed(5, **invented.gsm8k("train")[2]), "1 of 24 rows repeat the question .* rows 2 and 5"),
        (
            "gsm8k/train",
            changed(4, question=invented.gsm8k("eval")[3]["question"].upper() + " "),
            "1 of 24 training questions are in the evaluation set too .the first is row 4",
        ),
        ("dapo_math/train", lambda rows: rows[:-100], "2,100 rows, where the published set has 2,200"),
        (
            "dapo_math/train",
            changed(2_000, reward_model={"ground_truth": "0", "style": "-"}),
            "row 2000: not the prompt or ground truth of earlier copies of record 00000000-0000-4000-8000-000000000020",
        ),
        ("dapo_math/train", changed(7, extra_info={"index": "another"}), "23 distinct records, where .* has 22"),
        ("dapo_math/train", changed(7, extra_info={"index": None}), "row 7: extra_info.index is empty"),
        (
            "dapo_math/train",
            lambda rows: [row | {"reward_model": {"ground_truth": " ", "style": "-"}} for row in rows],
            "row 0: reward_model.ground_truth is empty",
        ),
        (
            "dapo_math/train",
            lambda rows: [row | {"prompt": row["prompt"] * 2} for row in rows],
            "row 0: the prompt is not one user message",
        ),
        ("dapo_math/aime25", changed(3, answer="4.5"), "row 3: the answer is no integer from 0 to 999: '4.5'"),
        ("dapo_math/aime26", changed(3, answer=1000), "row 3: the answer is no integer from 0 to 999: '1000'"),
        ("dapo_math/aime26", changed(3, answer=-1), "row 3: the answer is no integer from 0 to 999: '-1'"),
        (
            "browsecomp_plus/questions",
            changed(6, query="no base64"),
            "row 6: query of query 706: not base64",
        ),
        (
            "browsecomp_plus/questions",
            changed(6, answer=invented.encrypted("river", "another canary")),
            "row 6: answer of query 706: not UTF-8 once decrypted",
        ),
        ("browsecomp_plus/questions", changed(6, evidence_docs=[]), "row 6: query 706: .* evidence is empty"),
        ("browsecomp_plus/questions", changed(6, query_id="707"), "rows 6 and 7 have the same id '707'"),
        ("browsecomp_plus/corpus", changed(6, docid="5007"), "a docid occurs twice"),
        ("browsecomp_plus/corpus", changed(6, docid="none"), "1 evidence documents .* for example '5006'"),
        ("browsecomp_plus/corpus", lambda rows: rows[:-1], "44 rows, where the published set has 45"),
        ("search_r1/train", changed(3, golden_answers=[]), "row 3: golden_answers is empty"),
        ("search_r1/train", changed(3, id="train_4"), "rows 3 and 4 have the same id .*train_4"),
        (
            "search_r1/train",
            changed(3, data_source="squad"),
            "19 rows of 'searchR1_nq', where .* has 20",
        ),
        (
            "search_r1/eval",
            lambda rows: [{"question": row["question"]} for row in rows],
            "parquet: no column 'id'",
        ),
    ],
)
def test_what_is_not_the_published_set(copies: Path, tmp_path: Path, part: str, change: Change, message: str) -> None:
    file = invented.write(copies, part, change(ROWS[part]))
    name = part.split("/")[0]
    with pytest.raises(UserError, match=message) as caught:
        prepare(name, tmp_path / "out", copies)
    assert file.name in str(caught.value) or "/".join(file.parts[-3:-1]) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_failed_preparation_leaves_the_earlier_one(copies: Path, tmp_path: Path) -> None:
    first = prepare("browsecomp_plus", tmp_path / "out", copies)
    invented.write(copies, "browsecomp_plus/corpus", invented.browsecomp_documents()[1:])
    with pytest.raises(UserError, match="44 rows"):
        prepare("browsecomp_plus", tmp_path / "out", copies)
    assert json.loads((tmp_path / "out/data.json").read_text()) == first
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "train.parquet",
        "eval.parquet",
        "corpus.parquet",
        "data.json",
    }


def test_a_few_training_questions_of_the_evaluation_set_are_left_out(copies: Path, tmp_path: Path) -> None:
    """The published sets of Search-R1 share ten questions."""
    parts = {"nq": 1_100, "hotpotqa": 25}
    rows = invented.search_r1("train", parts)
    rows[10]["question"] = invented.search_r1("test", invented.SEARCH_EVAL)[1]["question"].title()
    invented.write(copies, "search_r1/train", rows)
    larger = SMALL["search_r1"] | {"train": replace(SMALL["search_r1"]["train"], rows=1_125, parts=parts)}
    note = prepare("search_r1", tmp_path / "out", copies, sources=larger)
    assert note["sets"]["train"]["left_out_as_in_eval"] == 1
    assert note["sets"]["train"]["rows"] == 1_124
    assert "nq/train_10" not in {problem.id for problem in read_problems(tmp_path / "out/train.parquet")}
    assert 10 not in {problem.index for problem in read_problems(tmp_path / "out/train.parquet")}


def test_a_question_of_dapo_math_with_two_answers(copies: Path, tmp_path: Path) -> None:
    last = invented.dapo_record(invented.RECORDS - 1)["extra_info"]["index"]
    rows = [
        row | {"reward_model": {"ground_truth": "0", "style": "-"}} if row["extra_info"]["index"] == last else row
        for row in invented.dapo()
    ]
    invented.write(copies, "dapo_math/train", rows)
    with pytest.raises(UserError, match="1 of 22 rows ask a question that another row answers differently"):
        prepare("dapo_math", tmp_path / "out", copies)


def test_the_canary(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CANARY_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"set ESTR_BROWSECOMP_PLUS_CANARY .*decrypt_dataset.py"):
        prepare("browsecomp_plus", tmp_path / "out", published, canary=None)
    with pytest.raises(UserError, match=r"row 0: query of query 700: .*the canary is another one") as caught:
        prepare("browsecomp_plus", tmp_path / "out", published, canary="a wrong one")
    assert "a wrong one" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_plain_text_only_where_git_does_not_look(published: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("/results/\n")
    with pytest.raises(UserError, match="git does not ignore this folder"):
        prepare("browsecomp_plus", tmp_path / "out/data", published)
    assert not (tmp_path / "out").exists()
    prepare("browsecomp_plus", tmp_path / "results/paper/data/browsecomp_plus", published)
    prepare("gsm8k", tmp_path / "out/data", published)  # no secret


def test_unknown_benchmarks_and_needless_corpora(published: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no benchmark 'chess'; the benchmarks are dapo_math, gsm8k"):
        prepare_benchmark("chess", tmp_path, published)
    with pytest.raises(UserError, match="gsm8k has no corpus"):
        prepare("gsm8k", tmp_path, published, corpus=True)


def dialogue(task: Task, problem: Problem, turns: list[str]) -> tuple[Conversation, list[str]]:
    """What a policy that writes `turns` ends with, and the tool messages that it saw."""
    conversation = Conversation(task.toolbox(problem), task.limits, lambda text, tokens: text[: 4 * tokens])
    seen: list[str] = []
    for turn in turns:
        messages = conversation.reply(turn)
        if messages is None:
            break
        seen += messages
    return conversation, seen


def call(name: str, **arguments: str) -> str:
    return render_tool_call(ToolCall(name, arguments))


def gsm8k_turns(problem: Problem, answer: str) -> list[str]:
    tool = "calc_gsm8k_reward" if "calc_gsm8k_reward" in problem.prompt[0]["content"] else "calculator"
    argument = {"answer": answer} if tool == "calc_gsm8k_reward" else {"expression": f"{answer} * 1"}
    return [f"Let me see.\n{call(tool, **argument)}", f"So it is\n#### {answer}"]


def browsecomp_turns(problem: Problem, answer: str) -> list[str]:
    final = f"Explanation: it says so [5000].\nExact Answer: {answer}\nConfidence: 80%"
    return [call("search", query=problem.question), final]


def search_r1_turns(problem: Problem, answer: str) -> list[str]:
    return [call("search", query=problem.question), f"I found it. <answer> {answer} </answer>"]


def dapo_turns(problem: Problem, answer: str) -> list[str]:
    return [f"Thus \\boxed{{999}} is wrong.\nAnswer: {answer}"]


SCRIPTS: list[tuple[str, Callable[[Problem, str], list[str]], dict[str, Any]]] = [
    ("gsm8k", gsm8k_turns, {"oracle": True}),
    ("dapo_math", dapo_turns, {}),
    ("browsecomp_plus", browsecomp_turns, {}),
    ("search_r1", search_r1_turns, {"corpus": True}),
]


@pytest.mark.parametrize(("name", "turns", "options"), [*SCRIPTS, ("gsm8k", gsm8k_turns, {"oracle": False})])
def test_a_scripted_policy_scores_what_it_deserves(
    published: Path,
    tmp_path: Path,
    name: str,
    turns: Callable[[Problem, str], list[str]],
    options: dict[str, Any],
) -> None:
    prepare(name, tmp_path / "out", published, **options)
    needs_search = name in ("browsecomp_plus", "search_r1")
    task = benchmark(name, tmp_path / "out", search_backend=open_retriever(tmp_path / "out") if needs_search else None)
    problems = read_problems(tmp_path / "out/train.parquet")
    expected: Counter[str] = Counter()
    scored: Counter[str] = Counter()
    for number, problem in enumerate(problems):
        gold = json.loads(problem.ground_truth)[1] if name == "search_r1" else problem.ground_truth
        kind = ("right", "wrong", "malformed", "unanswered")[number % 4]
        script = turns(problem, "998877" if kind == "wrong" else gold)
        if kind == "malformed":  # the call is broken, and the answer after it is right all the same
            script = ['<tool_call>{"name": ' if len(script) > 1 else "", script[-1]][-len(script) :]
        if kind == "unanswered":
            script = [*script[:-1], "I do not know."]
        conversation, messages = dialogue(task, problem, script)
        assert conversation.status == "completed"
        assert conversation.turns == len(script)
        assert conversation.tool_errors == (kind == "malformed" and len(script) > 1)
        assert len(messages) == len(script) - 1
        correct = task.rule.score(conversation.final, problem.ground_truth).correct
        assert task.reward(conversation.final, problem.ground_truth) == float(correct)
        expected[kind] += kind in ("right", "malformed")
        scored[kind] += correct
        if needs_search and kind != "malformed":
            # the corpus knows only towns of nq; the lighthouse's own document is the best hit
            assert conversation.documents
            if name == "browsecomp_plus":
                assert problem.evidence[0] in conversation.documents
                assert len(conversation.documents) == 5
    assert scored == expected
    assert 0 < sum(scored.values()) < len(problems)


class Scripted:
    """An engine whose policy answers the first sample of every problem rightly, the second wrongly, the third not."""

    label = "scripted"

    def __init__(self, task: Task, turns: Callable[[Problem, str], list[str]]) -> None:
        self.task, self.turns = task, turns

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        for position, problem in ((position, problems[position]) for position in wanted):
            gold = json.loads(problem.ground_truth)[0] if self.task.name == "search_r1" else problem.ground_truth
            scripts = [self.turns(problem, gold), self.turns(problem, "998877"), ["I do not know."]]
            samples = []
            for script in scripts[: k - 1]:
                done, _ = dialogue(self.task, problem, script)
                calls = dict(done.tool_calls)
                samples.append(Sample(done.final, done.turns, calls, done.tool_errors, 9, done.status, done.documents))
            yield position, [*samples, Sample("", status="failed")]


@pytest.mark.parametrize(("name", "turns", "options"), SCRIPTS)
def test_from_the_published_rows_to_an_evaluation(
    published: Path,
    tmp_path: Path,
    name: str,
    turns: Callable[[Problem, str], list[str]],
    options: dict[str, Any],
) -> None:
    prepare(name, tmp_path / "out", published, **options)
    task = prepared_task(name, tmp_path / "out", None, cut_characters)
    problems = read_problems(tmp_path / "out/eval.parquet")
    judge = choose_judge(task, None, None, tmp_path)
    given = {"k": 4, "seed": 0, "folder": tmp_path, "settings": {}, "judge": judge}
    scores = evaluate(Scripted(task, turns), task, problems, **given)
    assert (scores["n_problems"], scores["missing"]) == (len(problems), len(problems))
    assert scores["per_problem_correct"] == [1] * len(problems)
    assert (scores["avg@4"], scores["pass@4"]) == (0.25, 1.0)
    assert scores["best@4"] == pytest.approx(1 - 0.75**4)
    assert scores["agent"]["turns"] == pytest.approx(1.0 if name == "dapo_math" else 5 / 3)
    assert sorted(scores.get("sets", [])) == sorted({p.data_source for p in problems} if len(SETS[name]) > 1 else [])
    assert ("exact match" in scores["judge"]) if name == "browsecomp_plus" else scores["judge"] is None
    if name == "browsecomp_plus":
        assert 0 < scores["agent"]["recall"] < 1
        assert scores["agent"]["calibration_error"] > 0
    assert evaluate(Scripted(task, turns), task, problems, **given) == scores


SETS = {"gsm8k": [1], "browsecomp_plus": [1], "dapo_math": [1, 2, 3], "search_r1": list(range(7))}


def test_the_oracle_tells_and_the_calculator_does_not(published: Path, tmp_path: Path) -> None:
    for oracle in (True, False):
        prepare("gsm8k", tmp_path / str(oracle), published, oracle=oracle)
        problem = read_problems(tmp_path / f"{oracle}/eval.parquet")[0]
        task = benchmark("gsm8k", tmp_path / str(oracle))
        _, messages = dialogue(task, problem, gsm8k_turns(problem, "1200"))
        assert messages == (["Current parsed answer='1200' reward=1.0"] if oracle else ["1200"])


def test_aime_by_answer_line_or_box(published: Path, tmp_path: Path) -> None:
    prepare("dapo_math", tmp_path / "out", published)
    task = benchmark("dapo_math", tmp_path / "out")
    problems = read_problems(tmp_path / "out/eval.parquet")
    styles = ("Answer: {}", "so \\boxed{{{}}}", "**Answer: {}**", "the answer is {}")
    correct = Counter(
        problem.data_source
        for problem in problems
        if task.rule.score(styles[problem.index % 4].format(problem.ground_truth), problem.ground_truth).correct
    )
    assert correct == {"aime24": 15, "aime25": 15, "aime26": 15}  # every fourth states no answer that can be read


def test_get_document_is_offered_if_the_prompts_name_it(published: Path, tmp_path: Path) -> None:
    for wanted in (True, False):
        folder = tmp_path / str(wanted)
        prepare("browsecomp_plus", folder, published, get_document=wanted)
        problem = read_problems(folder / "eval.parquet")[0]
        task = benchmark("browsecomp_plus", folder, search_backend=open_retriever(folder))
        turns = [call("get_document", docid=problem.evidence[0]), "Exact Answer: none"]
        conversation, messages = dialogue(task, problem, turns)
        assert ("get_document" in problem.prompt[0]["content"]) is wanted
        assert conversation.tool_errors == (not wanted)
        assert conversation.documents == ((problem.evidence[0],) if wanted else ())
        assert ("lighthouse" in messages[0]) is wanted
