"""GSM8K in verl's multi-turn tool form: grade-school word problems, a tool, the answer after `####`.

Prompts are those of verl's `gsm8k_multiturn_w_tool` recipe, the paper's setting. Its tool is an oracle, which tells the
policy whether its answer is right before the final turn: scores with it (the paper's 96 %) are no plain GSM8K scores.
Without the oracle the tool is a calculator, and the system prompt names that instead.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import TOOL_AGENT, Problem
from estr.tools.answer_check import AnswerCheck
from estr.tools.calculator import Calculator
from estr.tools.conversation import Limits
from estr.tools.toolbox import Toolbox

DATA_SOURCE = "openai/gsm8k"
_SYSTEM = (
    "You are a math expert. You are given a question and you need to solve it step by step. "
    "Reasoning step by step before any tool call. {use} "
    "Put your final answer in the format of `#### <answer>`."
)
_USE_ORACLE = (
    "You should use the `calc_gsm8k_reward` tool after step by step solving the question, "
    "before generate final answer at least once and refine your answer if necessary."
)
_USE_CALCULATOR = "You should use the `calculator` tool for arithmetic before you give the final answer."
_SUFFIX = " Let's think step by step and output the final answer after `####`."

_GOLD = re.compile(r"####\s+(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*$")


@dataclass(frozen=True)
class Gsm8k:
    """7,473 training and 1,319 test problems. `oracle` picks the tool; the prompts of the data must name the same."""

    oracle: bool = True

    name: str = field(default="gsm8k", init=False)
    version: int = field(default=1, init=False)

    @property
    def limits(self) -> Limits:
        """The paper's 100 turns."""
        return Limits(turns=100, tool_output_tokens=256)

    @property
    def rule(self) -> ScoringRule:
        """verl's strict rule, the paper's binary exact match."""
        return scoring_rule("gsm8k_strict")

    def toolbox(self, problem: Problem) -> Toolbox:
        return Toolbox([AnswerCheck(problem.ground_truth) if self.oracle else Calculator()])

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)


def gsm8k_problem(row: Mapping[str, Any], index: int, split: str, oracle: bool) -> Problem:
    """A problem from a row of `openai/gsm8k`. Raises `ValueError` if its solution does not end in `#### <number>`."""
    gold = _GOLD.search(row["answer"])
    if gold is None:
        raise ValueError(f"the answer does not end in '#### <number>': {row['answer'][-40:]!r}")
    number = gold[1].replace(",", "")
    system = _SYSTEM.format(use=_USE_ORACLE if oracle else _USE_CALCULATOR)
    return Problem(
        prompt=(
            {"role": "system", "content": system},
            {"role": "user", "content": row["question"] + _SUFFIX},
        ),
        ground_truth=number,
        data_source=DATA_SOURCE,
        ability="math",
        split=split,
        index=index,
        agent=TOOL_AGENT,
        question=row["question"],
        id=f"{split}-{index}",
    )
