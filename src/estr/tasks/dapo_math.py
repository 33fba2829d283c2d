"""DAPO-Math-17k for training, AIME 2024, 2025 and 2026 for evaluation: single-turn, one prompt form for both.

DAPO-Math's rows come with their prompts, which ask for a last line `Answer: ...`; the AIME problems are put into the
same words, since that is what the policy is trained on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import Problem
from estr.tools.conversation import Limits
from estr.tools.toolbox import Toolbox

DATA_SOURCE = "math_dapo"
AIME = ("aime24", "aime25", "aime26")
PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'

_AIME_ANSWER = re.compile(r"([0-9]{1,3})|.*\\boxed\{\s*([0-9]{1,3})\s*\}[^{}]*", re.DOTALL)


@dataclass(frozen=True)
class DapoMath:
    """17,917 training problems with verl's `Answer:` reward; the evaluation is over three times 30 AIME problems."""

    name: str = field(default="dapo_math", init=False)
    version: int = field(default=1, init=False)

    @property
    def limits(self) -> Limits:
        return Limits(turns=1, tool_output_tokens=0)

    @property
    def rule(self) -> ScoringRule:
        """The evaluation's, on AIME."""
        return scoring_rule("aime_answer_or_box")

    def toolbox(self, problem: Problem) -> Toolbox | None:
        return None

    def reward(self, response: str, ground_truth: str) -> float:
        """verl's DAPO rule, the `Answer:` line alone."""
        return float(scoring_rule("dapo_math").score(response, ground_truth).correct)


def dapo_problem(row: Mapping[str, Any], index: int) -> Problem:
    """A problem from a row of `BytedTsinghua-SIA/DAPO-Math-17k`, its prompt as it is.

    Raises `ValueError` if the prompt is not one user message, or if there is no answer.
    """
    messages = row["prompt"]
    if len(messages) != 1 or messages[0]["role"] != "user" or not messages[0]["content"]:
        raise ValueError("the prompt is not one user message")
    answer = row["reward_model"]["ground_truth"]
    if not (answer and answer.strip()):
        raise ValueError("reward_model.ground_truth is empty")
    content = messages[0]["content"]
    return Problem(
        prompt=({"role": "user", "content": content},),
        ground_truth=answer,
        data_source=DATA_SOURCE,
        ability="math",
        split="train",
        index=index,
        question=content.removeprefix(PREFIX).removesuffix(SUFFIX),
        id=row["extra_info"]["index"],
    )


def aime_problem(row: Mapping[str, Any], position: int, name: str, start: int) -> Problem:
    """The problem at `position` of the set `name`, which begins at row `start` of the evaluation set.

    Its answer stands alone in `answer`, or in the last box of `solution`. Raises `ValueError` unless it is an integer
    from 0 to 999.
    """
    answer = str(row["answer"] if "answer" in row else row["solution"])
    found = _AIME_ANSWER.fullmatch(answer.strip())
    if found is None:
        raise ValueError(f"the answer is no integer from 0 to 999: {answer[-40:]!r}")
    return Problem(
        prompt=({"role": "user", "content": PREFIX + row["problem"] + SUFFIX},),
        ground_truth=str(int(found[1] or found[2])),
        data_source=name,
        ability="math",
        split="eval",
        index=start + position,
        question=row["problem"],
        id=f"{name}-{position}",
    )
