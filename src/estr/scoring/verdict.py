"""What every scoring rule is: a named, versioned pair of pure functions."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The answer that a response states (None: it states none) and whether it is the gold answer."""

    extracted: str | None
    correct: bool


@dataclass(frozen=True)
class ScoringRule:
    """A way to read the answer out of a response and to compare it with the gold answer.

    `source` says in one line what the rule implements. `version` rises whenever a verdict may change. Both functions
    take any text (null bytes and unpaired surrogates included), never raise, and take time linear in its length.
    """

    name: str
    version: int
    source: str
    extract: Callable[[str], str | None]
    matches: Callable[[str, str], bool]

    def score(self, answer: str, gold: str) -> Verdict:
        extracted = self.extract(answer)
        return Verdict(extracted, extracted is not None and self.matches(extracted, gold))
