"""What every benchmark offers the engines: rows in one schema, a prompt, tools, a reward."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from estr.scoring import ScoringRule
from estr.tools.conversation import Limits
from estr.tools.toolbox import Toolbox

Message = dict[str, str]

SINGLE_TURN, TOOL_AGENT = "single_turn_agent", "tool_agent"
"""The names of verl's agent loops, as they stand in the column `agent_name`."""


@dataclass(frozen=True)
class Problem:
    """One row of a train or evaluation set, in the columns that verl reads.

    `prompt` is a chat (`[{"role", "content"}]`), `ground_truth` the reference answer as text (a JSON list where several
    are accepted). `question` is the bare question, `id` the source's name of the row, `evidence` the documents
    that hold the answer; each is empty where a benchmark has no such thing.
    """

    prompt: tuple[Message, ...]
    ground_truth: str
    data_source: str
    ability: str
    split: str
    index: int
    agent: str = SINGLE_TURN
    question: str = ""
    id: str = ""
    evidence: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        return {
            "data_source": self.data_source,
            "prompt": list(self.prompt),
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "agent_name": self.agent,
            "extra_info": {
                "split": self.split,
                "index": self.index,
                "question": self.question,
                "id": self.id,
                "evidence": list(self.evidence),
            },
        }


class Task(Protocol):
    """A benchmark. `version` rises whenever a prompt, a tool, an extractor or a reward changes."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def rule(self) -> ScoringRule:
        """How an answer is read from a response and compared with the reference."""

    @property
    def limits(self) -> Limits:
        """Of a dialogue."""

    def toolbox(self, problem: Problem) -> Toolbox | None:
        """The tools of a dialogue about `problem`; None for a single-turn benchmark."""

    def reward(self, response: str, ground_truth: str) -> float:
        """1.0 if the last turn of the dialogue holds a correct answer, 0.0 for any other text."""


class TrainableFromScratch(Task, Protocol):
    """A laptop counterpart: it also makes its problems, names its words and shows how a problem is solved."""

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        """`count` problems of the split ("train" or "eval"); equal arguments give equal problems."""

    @property
    def response_tokens(self) -> int:
        """Tokens of a well-formed response, tool output included: the version switches spread over them."""

    def vocabulary(self) -> Sequence[str]:
        """Every word that a prompt, a response or a tool's output may hold."""

    def demonstration(self, problem: Problem, rng: random.Random) -> list[Message]:
        """A worked dialogue (assistant and tool messages) with the task's own share of mistakes, for the warm start."""
