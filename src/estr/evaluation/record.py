"""What is kept of one problem's evaluation, and its line in `samples.jsonl`."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from estr.evaluation.judge import Judgement
from estr.evaluation.sample import FAILED, Sample
from estr.tasks.base import Problem


@dataclass(frozen=True)
class Scored:
    """A sample and its verdict; `judgement` is None where a rule decided, or where there was no answer to judge."""

    sample: Sample
    extracted: str | None = None
    correct: bool = False
    judgement: Judgement | None = None

    def to_json(self) -> dict[str, Any]:
        return self.sample.to_json() | {
            "extracted": self.extracted,
            "correct": self.correct,
            "judgement": None if self.judgement is None else self.judgement.to_json(),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Scored":
        rest = dict(content)
        extracted, correct, judgement = (rest.pop(name) for name in ("extracted", "correct", "judgement"))
        if not isinstance(correct, bool):
            raise TypeError("correct is true or false")
        judged = None if judgement is None else Judgement.from_json(judgement)
        return cls(Sample.from_json(rest), extracted, correct, judged)


@dataclass(frozen=True)
class Record:
    """The samples of the problem at `position` of the evaluation set; `scorer` decided on them (None: nobody yet)."""

    position: int
    samples: tuple[Scored, ...]
    scorer: str | None = None

    def delivered(self) -> list[Scored]:
        return [scored for scored in self.samples if scored.sample.status != FAILED]

    @property
    def correct(self) -> int:
        return sum(scored.correct for scored in self.delivered())

    def to_json(self, problem: Problem) -> dict[str, Any]:
        return {
            "index": self.position,
            "problem": problem_hash(problem),
            "scorer": self.scorer,
            "samples": [scored.to_json() for scored in self.samples],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any], problems: Sequence[Problem]) -> "Record":
        """Raises `KeyError`, `TypeError`, `ValueError` or `IndexError` if it is no record of `problems`."""
        position = content["index"]
        if type(position) is not int or position < 0:
            raise TypeError("index is a position")
        if content["problem"] != problem_hash(problems[position]):
            raise ValueError(f"not problem {position} of this evaluation set")
        return cls(position, tuple(map(Scored.from_json, content["samples"])), content["scorer"])


def problem_hash(problem: Problem) -> str:
    """SHA-256 of all that a problem holds."""
    return hashlib.sha256(json.dumps(problem.row(), sort_keys=True).encode()).hexdigest()


def problems_hash(problems: Sequence[Problem]) -> str:
    """SHA-256 of an evaluation set, its order included."""
    return hashlib.sha256("".join(map(problem_hash, problems)).encode()).hexdigest()
