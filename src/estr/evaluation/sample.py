"""One answer of a policy, and what every engine that samples answers offers."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from estr.tasks.base import Problem

COMPLETED, TURN_LIMIT, TOKEN_LIMIT, FAILED = "completed", "turn_limit", "token_limit", "failed"
LARGEST = 1 << 53  # of a count: beyond it a mean is no longer exact
STATUSES = (COMPLETED, TURN_LIMIT, TOKEN_LIMIT, FAILED)


@dataclass(frozen=True)
class Sample:
    """How one dialogue ended.

    `text` is the last assistant turn, `tokens` what the policy generated over all turns (tool output is not counted),
    `tool_calls` the calls that were run, by tool, `documents` the distinct ids that tools showed. `status` is
    "completed", "turn_limit", "token_limit", or "failed": the engine could not deliver the sample.
    """

    text: str
    turns: int = 1
    tool_calls: dict[str, int] = field(default_factory=dict)
    tool_errors: int = 0
    tokens: int = 0
    status: str = COMPLETED
    documents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"documents": list(self.documents)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Sample":
        """The inverse of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        documents, calls = content["documents"], content["tool_calls"]
        numbers = [content[name] for name in ("turns", "tool_errors", "tokens")] + list(dict(calls).values())
        if not all(type(number) is int and 0 <= number < LARGEST for number in numbers):
            raise ValueError("turns, calls, errors and tokens are counts")
        if not isinstance(documents, list) or not all(isinstance(text, str) for text in [content["text"], *documents]):
            raise TypeError("text and documents are texts")
        return cls(**content | {"documents": tuple(documents)})


class Engine(Protocol):
    """Samples answers; `label` says in every result which kind of engine it was."""

    @property
    def label(self) -> str: ...

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        """Yields (position in `problems`, its samples) of the positions `wanted`, in any order, each once.

        A list may be shorter than `k` or hold samples of status "failed": what is missing counts as wrong.
        """
