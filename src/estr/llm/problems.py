"""Grade-school word problems of reasoning-gym, and how near a response comes to the answer."""

import re
import warnings
from dataclasses import dataclass

from estr.errors import UserError

INSTRUCTION = "Think step by step and end with a line `#### N`, where N is the answer."
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class WordProblem:
    """A problem of `gsm_symbolic` (100 templates in the manner of GSM8K) and its numeric answer."""

    question: str
    answer: float

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The chat that asks for it."""
        return [{"role": "user", "content": f"{self.question}\n{INSTRUCTION}"}]


def word_problems(count: int, seed: int) -> list[WordProblem]:
    """The first `count` problems of a seed. Raises `UserError` if reasoning-gym is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a dependency, when Python compiles it
            import reasoning_gym
    except ImportError as error:
        raise UserError(f"the word problems need {error.name}: run `make setup`") from error
    rows = reasoning_gym.create_dataset("gsm_symbolic", size=count, seed=seed)
    return [WordProblem(row["question"], float(row["answer"].replace(",", ""))) for row in rows]


def closeness(response: str, answer: float) -> float:
    """1 / (1 + |x - answer| / max(1, |answer|)) of the last number x in the response; 0 without a number.

    SmolLM2-135M solves almost none of these problems: 0 of 100, greedily. A reward for right answers would be 0
    throughout, every group-normalised advantage with it; this one differs within nearly every group.
    """
    numbers = _NUMBER.findall(response)
    if not numbers:
        return 0.0
    distance = abs(float(numbers[-1].replace(",", "")) - answer)
    return 1 / (1 + distance / max(1.0, abs(answer)))
