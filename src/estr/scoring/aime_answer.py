"""AIME for a policy that is trained on DAPO-Math's `Answer:` lines."""

from estr.scoring.aime import AIME
from estr.scoring.dapo import DAPO_MATH
from estr.scoring.verdict import ScoringRule


def _line_or_box(response: str) -> str | None:
    line = DAPO_MATH.extract(response)
    return AIME.extract(response) if line is None else line.strip("* ") or None


def _text_or_integer(answer: str, gold: str) -> bool:
    return DAPO_MATH.matches(answer, gold) or AIME.matches(AIME.extract(answer) or answer, gold)


AIME_ANSWER_OR_BOX = ScoringRule(
    name="aime_answer_or_box",
    version=1,
    source=r"the last `Answer:` line (verl's math_dapo), or without one the last \boxed{}; equal as verl compares "
    "them, or as integers",
    extract=_line_or_box,
    matches=_text_or_integer,
)
"""Whatever verl's own AIME reward accepts, this accepts; it also reads boxes, bold marks and leading zeros, so that
another policy's format does not count as a wrong answer."""
