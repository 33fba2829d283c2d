"""DAPO-Math's laptop counterpart: single-turn sums with a chain of steps.

    prompt      7 + 5 - 3 + 9 - 2 + 6 - 4
    response    = 12 = 9 = 18 = 16 = 22 = 18 Answer: 18

One running total per step, then the answer on DAPO-Math's terms (`Answer: ...`, rule-based reward, right or wrong).
Train and evaluation problems never overlap: a problem belongs to the split that the hash of its text names.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import Message, Problem
from estr.tasks.laptop import draw_distinct
from estr.tools.conversation import Limits


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

    name: str = field(default="dapo_math", init=False)
    version: int = field(default=2, init=False)
    limits: Limits = field(default=Limits(turns=1, tool_output_tokens=0), init=False)

    @property
    def rule(self) -> ScoringRule:
        return scoring_rule("dapo_math")

    def toolbox(self, problem: Problem) -> None:
        """None: a single turn without tools."""

    @property
    def response_tokens(self) -> int:
        return 2 * self.steps + 3

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        return [
            Problem(
                prompt=({"role": "user", "content": text},),
                ground_truth=answer,
                data_source="dapo_math_laptop",
                ability="math",
                split=split,
                index=index,
                question=text,
            )
            for index, (text, answer) in enumerate(draw_distinct(self.name, self._chain, split, count, seed))
        ]

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)

    def vocabulary(self) -> Sequence[str]:
        return [str(number) for number in range(self.largest_total + 1)] + ["+", "-", "=", "Answer:"]

    def demonstration(self, problem: Problem, rng: random.Random) -> list[Message]:
        words = problem.prompt[-1]["content"].split()
        total, written = int(words[0]), []
        for sign, term in zip(words[1::2], words[2::2], strict=True):
            if rng.random() >= self.skip_rate:
                total += int(term) if sign == "+" else -int(term)
            if rng.random() < self.slip_rate:
                total += rng.choice((-2, -1, 1, 2))
            total = min(max(total, 0), self.largest_total)
            written.append(f"= {total}")
        return [{"role": "assistant", "content": " ".join([*written, f"Answer: {total}"])}]

    def _chain(self, rng: random.Random) -> tuple[str, str]:
        total = rng.randint(1, self.largest_term)
        text = str(total)
        for _ in range(self.steps):
            choices = [t for t in range(-self.largest_term, self.largest_term + 1) if t]
            term = rng.choice([t for t in choices if 0 <= total + t <= self.largest_total])
            total += term
            text += f" {'+' if term > 0 else '-'} {abs(term)}"
        return text, str(total)
