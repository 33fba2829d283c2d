"""A small task, its problems, and an engine without a policy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from estr.evaluation.sample import Sample
from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import Problem
from estr.tools.calculator import Calculator
from estr.tools.conversation import Limits
from estr.tools.toolbox import Toolbox


@dataclass(frozen=True)
class Sums:
    """Sums, with a calculator if `tools`."""

    tools: bool = False
    turns: int = 4
    rule: ScoringRule = field(default_factory=lambda: scoring_rule("gsm8k_strict"))
    name: str = "sums"
    version: int = 1

    @property
    def limits(self) -> Limits:
        return Limits(turns=self.turns, tool_output_tokens=8)

    def toolbox(self, problem: Problem) -> Toolbox | None:
        return Toolbox([Calculator()]) if self.tools else None

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)


class CountingEngine:
    """Answers problem p right in sample s iff s < p % (k + 1); it remembers what it was asked."""

    label = "counting"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        for position in sorted(wanted, reverse=True):
            index = problems[position].index
            self.asked.append(index)
            yield position, [self.sample(index, number, k) for number in range(k)]

    def sample(self, index: int, number: int, k: int) -> Sample:
        answer = index if number < index % (k + 1) else 1000
        return Sample(
            f"so \ud83d\n#### {answer}", turns=number + 1, tool_calls={"calculator": number}, tokens=10 * index
        )


def sum_problems(count: int, sources: Sequence[str] = ("sums",)) -> list[Problem]:
    return [
        Problem(
            prompt=({"role": "system", "content": "Add."}, {"role": "user", "content": f"0 + {index} ="}),
            ground_truth=str(index),
            data_source=sources[index % len(sources)],
            ability="math",
            split="eval",
            index=index,
            question=f"0 + {index} =",
        )
        for index in range(count)
    ]
