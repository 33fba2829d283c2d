"""The laptop counterparts of the agentic benchmarks: their problems, demonstrations, tools and rewards."""

import random
import re
from fractions import Fraction
from itertools import pairwise

import pytest

from estr.embedded.tokenizer import ChatTokenizer
from estr.errors import UserError
from estr.scoring import parse_confidence
from estr.tasks.base import Message, Problem, TrainableFromScratch
from estr.tasks.browsecomp_plus_laptop import BrowseCompPlusLaptop
from estr.tasks.gsm8k_laptop import Gsm8kLaptop
from estr.tools.conversation import Conversation

GSM8K = Gsm8kLaptop(skip_rate=0.0, slip_rate=0.0)
BROWSECOMP = BrowseCompPlusLaptop(skip_rate=0.0, slip_rate=0.0)
TASKS = pytest.mark.parametrize("task", [GSM8K, BROWSECOMP], ids=lambda task: task.name)


def follow(task: TrainableFromScratch, problem: Problem, messages: list[Message]) -> Conversation:
    """Say the assistant's part of a dialogue and check that the tools say theirs."""
    conversation = Conversation(task.toolbox(problem), task.limits, lambda text, tokens: text)
    expected = [message["content"] for message in messages if message["role"] == "tool"]
    outputs = []
    for message in messages:
        if message["role"] == "assistant":
            outputs += conversation.reply(message["content"]) or []
    assert outputs == expected
    return conversation


@TASKS
def test_problems_are_reproducible_and_disjoint_by_split(task: TrainableFromScratch) -> None:
    train, evaluation = task.problems("train", 300, 0), task.problems("eval", 60, 0)
    assert train == task.problems("train", 300, 0) != task.problems("train", 300, 1)
    questions = [problem.question for problem in train + evaluation]
    assert len(set(questions)) == 360
    assert {p.question for p in task.problems("train", 1500, 9)}.isdisjoint(p.question for p in evaluation)
    assert all(problem.agent == "tool_agent" for problem in train)


@TASKS
def test_a_demonstration_without_mistakes_is_a_correct_dialogue_in_the_known_words(task: TrainableFromScratch) -> None:
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    for problem in task.problems("train", 150, 0):
        messages = task.demonstration(problem, random.Random(0))
        conversation = follow(task, problem, messages)
        assert conversation.status == "completed" and conversation.tool_errors == 0
        assert task.reward(conversation.final, problem.ground_truth) == 1.0
        assert "<unk>" not in tokenizer.decode(tokenizer.encode_dialogue(messages)[0])
        tokenizer.encode(tokenizer.render(problem.prompt))


def test_the_gold_of_a_story_is_what_its_sentences_say() -> None:
    signs = {
        "buys": "+",
        "finds": "+",
        "gets": "+",
        "gives": "-",
        "loses": "-",
        "sells": "-",
        "then": "*",
        "makes": "*",
    }
    for problem in GSM8K.problems("train", 300, 0):
        first, *sentences = re.split(r" \. ", problem.question)[:-1]
        total = Fraction(first.split()[2])
        for sentence in sentences:
            [number] = re.findall(r"\d+", sentence)
            match signs[sentence.split()[1]]:
                case "+":
                    total += int(number)
                case "-":
                    total -= int(number)
                case "*":
                    total *= int(number)
        assert problem.ground_truth == str(total)
        assert 0 <= total <= GSM8K.largest_total and len(sentences) == GSM8K.steps


def test_corpus_has_one_fact_per_person_and_relation_and_every_person_is_found_once() -> None:
    assert len(BROWSECOMP.corpus) == BROWSECOMP.people * BROWSECOMP.relations == 3200
    assert len({(fact.subject, fact.relation) for fact in BROWSECOMP.corpus}) == 3200
    assert len({(fact.relation, fact.object) for fact in BROWSECOMP.corpus}) == 3200
    assert all(fact.subject != fact.object for fact in BROWSECOMP.corpus)
    assert len({docid for docid, _ in BROWSECOMP.documents()}) == 3200


def test_a_question_of_several_hops_is_answered_by_its_evidence() -> None:
    facts = {fact.docid: fact for fact in BROWSECOMP.corpus}
    hops = set()
    for problem in BROWSECOMP.problems("train", 300, 0):
        chain = [facts[docid] for docid in problem.evidence]
        hops.add(len(chain))
        for before, after in pairwise(chain):
            assert after.subject == before.object
        relations = [fact.relation for fact in reversed(chain)]
        asked = "".join(f"the {relation} of " for relation in relations)
        assert problem.question == f"Who is {asked}{chain[0].subject} ?"
        assert problem.ground_truth == chain[-1].object
    assert hops == {2, 3, 4}


def test_searches_find_the_evidence_and_confidence_is_stated() -> None:
    for problem in BROWSECOMP.problems("train", 100, 0):
        messages = BROWSECOMP.demonstration(problem, random.Random(0))
        conversation = follow(BROWSECOMP, problem, messages)
        assert set(problem.evidence) <= set(conversation.documents)
        assert parse_confidence(conversation.final) == pytest.approx(0.9 - 0.1 * len(problem.evidence))


def test_a_question_that_the_policy_gives_up_on_is_wrong() -> None:
    [problem] = BROWSECOMP.problems("train", 1, 0)
    person = problem.question.split()[-2]
    for wrong in ("", "Exact Answer:", f"Exact Answer: {person}", problem.ground_truth):
        assert BROWSECOMP.reward(wrong, problem.ground_truth) == 0.0


@TASKS
def test_a_malformed_call_is_answered_with_an_error_and_the_dialogue_goes_on(task: TrainableFromScratch) -> None:
    [problem] = task.problems("train", 1, 0)
    conversation = Conversation(task.toolbox(problem), task.limits, lambda text, tokens: text)
    [message] = conversation.reply('<tool_call> {"name": ') or []
    assert message.startswith("Error") and conversation.tool_errors == 1 and conversation.status == "running"
    for _ in range(task.limits.turns - 1):
        conversation.reply("<tool_call> </tool_call>")
    assert conversation.status == "turn_limit"


@pytest.mark.parametrize("task_class", [Gsm8kLaptop, BrowseCompPlusLaptop])
def test_mistakes_leave_about_two_fifths_of_the_demonstrations_right(task_class: type[TrainableFromScratch]) -> None:
    task = task_class()
    rng = random.Random(0)
    rewards = []
    for problem in task.problems("train", 600, 0):
        final = task.demonstration(problem, rng)[-1]["content"]
        rewards.append(task.reward(final, problem.ground_truth))
    assert 0.3 < sum(rewards) / len(rewards) < 0.6


def test_sizes_that_give_too_few_questions() -> None:
    tiny = BrowseCompPlusLaptop(people=4, relations=1, fewest_hops=1, most_hops=1)
    with pytest.raises(UserError, match=r"browsecomp_plus: its sizes give only \d of 50 train problems"):
        tiny.problems("train", 50, 0)
