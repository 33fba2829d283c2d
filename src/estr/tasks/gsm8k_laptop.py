"""GSM8K's laptop counterpart: worded problems, solved over several turns with a calculator.

    user        Ann has 7 apples . She buys 5 more . She gives 3 away . How many apples has Ann ?
    assistant   <tool_call> {"name": "calculator", "arguments": {"expression": " 7 + 5 "}} </tool_call>
    tool        12
    assistant   <tool_call> {"name": "calculator", "arguments": {"expression": " 12 - 3 "}} </tool_call>
    tool        9
    assistant   #### 9

The calculator, the call format and the reward are those of the real benchmark; the oracle tool of its published setup,
which checks an answer against the reference, is not offered.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import TOOL_AGENT, Message, Problem
from estr.tasks.laptop import call_and_output, draw_distinct
from estr.tools.calculator import Calculator
from estr.tools.conversation import Limits
from estr.tools.toolbox import Toolbox

PEOPLE = {"Ann": "She", "Bea": "She", "Eve": "She", "Joe": "He", "Max": "He", "Tom": "He"}
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens")
SENTENCES = {
    "+": ("buys {} more", "finds {}", "gets {} from a friend"),
    "-": ("gives {} away", "loses {}", "sells {}"),
    "*": ("then has {} times as many", "makes it {} times as many"),
}
CALL, CLOSE = '<tool_call> {"name": "calculator", "arguments": {"expression": "', '"}} </tool_call>'
CALL_TOKENS, OUTPUT_TOKENS, FINAL_TOKENS = 6, 6, 3


@dataclass(frozen=True)
class Gsm8kLaptop:
    """Stories of `steps` sentences with numbers up to `largest_number` and results in 0..`largest_total`.

    A demonstration passes over a sentence with probability `skip_rate` and calculates with the wrong sign with
    probability `slip_rate`, and carries on from there.
    """

    steps: int = 3
    largest_number: int = 9
    largest_total: int = 60
    skip_rate: float = 0.2
    slip_rate: float = 0.05

    name: str = field(default="gsm8k", init=False)
    version: int = field(default=1, init=False)

    @property
    def rule(self) -> ScoringRule:
        return scoring_rule("gsm8k_strict")

    @property
    def limits(self) -> Limits:
        return Limits(turns=self.steps + 3, tool_output_tokens=8)

    @cached_property
    def _toolbox(self) -> Toolbox:
        return Toolbox([Calculator()])

    def toolbox(self, problem: Problem) -> Toolbox:
        return self._toolbox

    @property
    def response_tokens(self) -> int:
        return self.steps * (CALL_TOKENS + OUTPUT_TOKENS) + FINAL_TOKENS

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        return [
            Problem(
                prompt=({"role": "user", "content": text},),
                ground_truth=answer,
                data_source="gsm8k_laptop",
                ability="math",
                split=split,
                index=index,
                agent=TOOL_AGENT,
                question=text,
            )
            for index, (text, answer) in enumerate(draw_distinct(self.name, self._story, split, count, seed))
        ]

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)

    def vocabulary(self) -> Sequence[str]:
        told = [sentence.format("") for sentences in SENTENCES.values() for sentence in sentences]
        words = " ".join([*told, *PEOPLE, *PEOPLE.values(), *THINGS, "has . How many ?"]).split()
        numbers = [str(number) for number in range(-self.largest_number, self.largest_total + 1)]
        return [*dict.fromkeys(words), *numbers, *SENTENCES, CALL, CLOSE, "####"]

    def demonstration(self, problem: Problem, rng: random.Random) -> list[Message]:
        total, steps = _read(problem.question)
        messages: list[Message] = []
        for operator, number in steps:
            if rng.random() < self.skip_rate:
                continue
            if rng.random() < self.slip_rate:
                operator = "-" if operator == "+" else "+"
            result = _calculate(total, operator, number)
            if not 0 <= result <= self.largest_total:
                continue
            messages += call_and_output(self._toolbox, f"{CALL} {total} {operator} {number} {CLOSE}")
            total = result
        return [*messages, {"role": "assistant", "content": f"#### {total}"}]

    def _story(self, rng: random.Random) -> tuple[str, str]:
        person, thing = rng.choice(list(PEOPLE)), rng.choice(THINGS)
        total = rng.randint(1, self.largest_number)
        text = f"{person} has {total} {thing} ."
        for _ in range(self.steps):
            steps = [
                (operator, number)
                for operator in SENTENCES
                for number in range(2 if operator == "*" else 1, self.largest_number + 1)
                if 0 <= _calculate(total, operator, number) <= self.largest_total
            ]
            wanted = rng.choice(sorted({operator for operator, _ in steps}))
            operator, number = rng.choice([step for step in steps if step[0] == wanted])
            text += f" {PEOPLE[person]} {rng.choice(SENTENCES[operator]).format(number)} ."
            total = _calculate(total, operator, number)
        return f"{text} How many {thing} has {person} ?", str(total)


_OPERATORS = {sentence.format("").split()[0]: sign for sign, sentences in SENTENCES.items() for sentence in sentences}


def _calculate(total: int, operator: str, number: int) -> int:
    return {"+": total + number, "-": total - number, "*": total * number}[operator]


def _read(story: str) -> tuple[int, list[tuple[str, int]]]:
    """The start of a story and its steps: `7, [("+", 5), ("-", 3)]`."""
    first, *sentences = story.split(" . ")[:-1]
    steps = [(_OPERATORS[s.split()[1]], next(int(w) for w in s.split() if w.isdigit())) for s in sentences]
    return int(first.split()[2]), steps
