"""DAPO-Math's laptop counterpart: single-turn sums with a chain of steps.

    prompt      7 + 5 - 3 + 9 - 2 + 6 - 4
    response    = 12 = 9 = 18 = 16 = 22 = 18 Answer: 18

One running total per step, then the answer on DAPO-Math's terms (`Answer: ...`, rule-based reward, right or wrong).
Train and evaluation problems never overlap: a problem belongs to the split that the hash of its text names.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from estr.errors import UserError
from estr.tasks.answers import dapo_answer
from estr.tasks.base import Problem

DRAWS_PER_PROBLEM = 200


@dataclass(frozen=True)
class DapoMathLaptop:
    """Chains of `steps` additions and subtractions of 1..`largest_term` with running totals in 0..`largest_total`.

    A demonstration forgets a term with probability `skip_rate` and is off by one or two with probability
    `slip_rate`, at every step, and carries on from there: the warm start learns the sums together with these
    mistakes, and reinforcement learning has something left to unlearn.
    """

    steps: int = 6
    largest_term: int = 9
    largest_total: int = 20
    skip_rate: float = 0.12
    slip_rate: float = 0.03

    name: str = "dapo_math"
    version: int = 1

    @property
    def response_tokens(self) -> int:
        return 2 * self.steps + 3

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        rng = random.Random(f"{self.name}/{split}/{seed}")
        texts: dict[str, int] = {}
        for _ in range(DRAWS_PER_PROBLEM * count):
            if len(texts) == count:
                break
            text, answer = self._chain(rng)
            if _split_of(text) == split:
                texts.setdefault(text, answer)
        if len(texts) < count:
            raise UserError(
                f"{self.name}: chains of {self.steps} steps give only {len(texts)} of {count} {split} problems"
            )
        return [
            Problem(
                prompt=({"role": "user", "content": text},),
                ground_truth=str(answer),
                data_source="dapo_math_laptop",
                ability="math",
                split=split,
                index=index,
            )
            for index, (text, answer) in enumerate(texts.items())
        ]

    def reward(self, response: str, ground_truth: str) -> float:
        return float(dapo_answer(response) == ground_truth)

    def vocabulary(self) -> Sequence[str]:
        return [str(number) for number in range(self.largest_total + 1)] + ["+", "-", "=", "Answer:"]

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        words = problem.prompt[-1]["content"].split()
        total, written = int(words[0]), []
        for sign, term in zip(words[1::2], words[2::2], strict=True):
            if rng.random() >= self.skip_rate:
                total += int(term) if sign == "+" else -int(term)
            if rng.random() < self.slip_rate:
                total += rng.choice((-2, -1, 1, 2))
            total = min(max(total, 0), self.largest_total)
            written.append(f" = {total}")
        return "".join(written) + f" Answer: {total}"

    def _chain(self, rng: random.Random) -> tuple[str, int]:
        total = rng.randint(1, self.largest_term)
        text = str(total)
        for _ in range(self.steps):
            choices = [t for t in range(-self.largest_term, self.largest_term + 1) if t]
            term = rng.choice([t for t in choices if 0 <= total + t <= self.largest_total])
            total += term
            text += f" {'+' if term > 0 else '-'} {abs(term)}"
        return text, total


def _split_of(text: str) -> str:
    return "eval" if hashlib.sha256(text.encode()).digest()[0] < 26 else "train"
