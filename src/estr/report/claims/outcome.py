"""What comes out of checking a claim."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

Part = TypeVar("Part")

HELD = "held"
NOT_HELD = "not held"
NOT_TESTABLE = "not testable"
NOT_COMPUTABLE = "not computable"
NO_DATA = "no data"

VERDICTS = {
    HELD: "the predicate is true of our data",
    NOT_HELD: "the predicate is false of our data",
    NOT_TESTABLE: "this scale could not show the effect if it were there",
    NOT_COMPUTABLE: "the predicate, as it was written before the reference run, has no truth value here; it says why",
    NO_DATA: "the study lacks runs, measurements or samples that the predicate needs",
}
"""What each verdict means, in the order of the summary."""


class NoData(Exception):
    """The study lacks what a predicate needs; the message says what."""


class NotComputable(Exception):
    """The predicate as written has no truth value on these data; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """A verdict of VERDICTS and the numbers behind it, as text."""

    verdict: str
    statistic: str


def judged(held: bool, statistic: str) -> Outcome:
    """The outcome of a predicate that is true or false."""
    return Outcome(HELD if held else NOT_HELD, statistic)


def everywhere(parts: Mapping[str, Part], check: Callable[[Part], Outcome]) -> Outcome:
    """The outcome of a predicate about several tasks, sources or settings, given by name.

    Held only if it holds in each; not held if it fails in one, whatever is missing elsewhere; else the first of the
    other verdicts. The statistic lists every part.
    """
    found = {name: attempted(partial(check, part)) for name, part in parts.items()}
    verdicts = [outcome.verdict for outcome in found.values()]
    others = [verdict for verdict in verdicts if verdict != HELD]
    verdict = NOT_HELD if NOT_HELD in verdicts else (others[0] if others else HELD)
    texts = (f"{name}: {outcome.statistic} ({outcome.verdict})" for name, outcome in found.items())
    return Outcome(verdict, "; ".join(texts))


def attempted(check: Callable[[], Outcome]) -> Outcome:
    """What the check returns, or what its `NoData` or `NotComputable` says."""
    try:
        return check()
    except NoData as error:
        return Outcome(NO_DATA, str(error))
    except NotComputable as error:
        return Outcome(NOT_COMPUTABLE, str(error))


def known(value: float, missing: str) -> float:
    """The value; `NoData` with the reason `missing` if it is NaN, as a statistic without data is."""
    if math.isnan(value):
        raise NoData(missing)
    return value
