"""What every benchmark offers the engines: rows in one schema, a prompt, a reward."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Problem:
    """One row of a train or evaluation set, in the columns that verl reads.

    `prompt` is a chat (`[{"role", "content"}]`), `ground_truth` the reference answer as text.
    """

    prompt: tuple[dict[str, str], ...]
    ground_truth: str
    data_source: str
    ability: str
    split: str
    index: int

    def row(self) -> dict[str, Any]:
        return {
            "data_source": self.data_source,
            "prompt": list(self.prompt),
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {"split": self.split, "index": self.index},
        }


class Task(Protocol):
    """A benchmark. `version` rises whenever a prompt, an extractor or a reward changes."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        """`count` problems of the split ("train" or "eval"); equal arguments give equal problems."""

    def reward(self, response: str, ground_truth: str) -> float:
        """1.0 for a correct response, 0.0 for any other text."""


class TrainableFromScratch(Task, Protocol):
    """A laptop counterpart: it also names its words and shows how a problem is solved."""

    @property
    def response_tokens(self) -> int:
        """Tokens of a well-formed response, the closing one included: the version switches spread over them."""

    def vocabulary(self) -> Sequence[str]:
        """Every word that a prompt or a response may hold."""

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """A worked response with the task's own share of mistakes, for the warm start."""
