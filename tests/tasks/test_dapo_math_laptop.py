import random
from itertools import pairwise

import pytest

from estr.errors import UserError
from estr.tasks import laptop_counterpart
from estr.tasks.base import Problem
from estr.tasks.dapo_math_laptop import DapoMathLaptop

CLEAN = DapoMathLaptop(skip_rate=0.0, slip_rate=0.0)


def said(task: DapoMathLaptop, problem: Problem, rng: random.Random) -> str:
    [message] = task.demonstration(problem, rng)
    assert message["role"] == "assistant"
    return message["content"]


def value(text: str) -> int:
    words = text.split()
    signed = zip(words[1::2], words[2::2], strict=True)
    return int(words[0]) + sum(int(term) * (1 if sign == "+" else -1) for sign, term in signed)


def test_problems_are_sums_within_bounds_reproducible_and_disjoint_by_split() -> None:
    train, evaluation = CLEAN.problems("train", 400, 0), CLEAN.problems("eval", 100, 0)
    assert train == CLEAN.problems("train", 400, 0)
    assert train != CLEAN.problems("train", 400, 1)
    texts = [problem.prompt[-1]["content"] for problem in train + evaluation]
    assert len(set(texts)) == 500
    for problem in train + evaluation:
        text = problem.prompt[-1]["content"]
        assert int(problem.ground_truth) == value(text)
        assert len(text.split()) == 2 * CLEAN.steps + 1
    other_seed = {problem.prompt[-1]["content"] for problem in CLEAN.problems("train", 2000, 9)}
    assert other_seed.isdisjoint(problem.prompt[-1]["content"] for problem in evaluation)


def test_clean_demonstration_solves_the_problem_in_the_known_words() -> None:
    words = set(CLEAN.vocabulary())
    for problem in CLEAN.problems("train", 200, 0):
        response = said(CLEAN, problem, random.Random(0))
        assert CLEAN.reward(response, problem.ground_truth) == 1.0
        assert set(response.split()) | set(problem.prompt[-1]["content"].split()) <= words
        assert len(response.split()) + 1 == CLEAN.response_tokens
        totals = [int(word) for word in response.split() if word.isdigit()]
        first = problem.prompt[-1]["content"].split()
        assert totals[0] == value(" ".join(first[:3]))


def test_mistakes_come_at_their_rates() -> None:
    skipping = DapoMathLaptop(skip_rate=0.3, slip_rate=0.0)
    problems, rng = skipping.problems("train", 600, 0), random.Random(0)
    skipped = steps = 0
    for problem in problems:
        first = int(problem.prompt[-1]["content"].split()[0])
        totals = [first, *(int(w) for w in said(skipping, problem, rng).split() if w.isdigit())][:-1]
        skipped += sum(a == b for a, b in pairwise(totals))
        steps += skipping.steps
    assert skipped / steps == pytest.approx(0.3, abs=0.03)
    noisy = DapoMathLaptop(skip_rate=0.12, slip_rate=0.03)
    rewards = [noisy.reward(said(noisy, p, rng), p.ground_truth) for p in noisy.problems("train", 2000, 0)]
    assert 0.3 < sum(rewards) / len(rewards) < 0.6


def test_reward_is_exact() -> None:
    assert CLEAN.reward(" Answer: 12", "12") == 1.0
    for wrong in (" Answer: 12 1", " Answer: 1", " 12", " Answer: 12.0"):
        assert CLEAN.reward(wrong, "12") == 0.0


def test_unknown_task() -> None:
    with pytest.raises(UserError, match="'chess' has no laptop counterpart"):
        laptop_counterpart("chess", {})
