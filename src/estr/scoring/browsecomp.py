"""BrowseComp-Plus: the response format, and an exact match that stands in for the judge where there is none.

The benchmark asks for three fields, `Explanation:`, `Exact Answer:` and `Confidence:` (a percentage), and lets a
language model judge the answer. Exact match is harsher: "Marie Curie" and "Maria Skłodowska-Curie" differ.
"""

import re
from collections import deque

from estr.scoring.search_r1 import exact_match
from estr.scoring.verdict import ScoringRule

_EXACT_ANSWER = re.compile(r"exact\s+answer\*{0,3}\s*:\*{0,3}", re.IGNORECASE)
_CONFIDENCE = re.compile(r"\bconfidence\*{0,3}\s*:\*{0,3}", re.IGNORECASE)
_NEXT_FIELD = re.compile(r"\n\s*\n|\b(?:confidence|explanation)\*{0,3}\s*:", re.IGNORECASE)
_FIELD_LIMIT = 2000
_NUMBER = r"(?<![0-9.-])([0-9]{1,3}(?:\.[0-9]{1,6})?)(?![0-9.]*[0-9])"
_PERCENTAGE = re.compile(_NUMBER + r"\s?\\?%")
_LEADING_NUMBER = re.compile(r"[\s*\[({$~]*" + _NUMBER)


def _field(label: re.Pattern[str], response: str) -> str | None:
    """The text after the last such label, at most 2,000 characters; None without the label."""
    for last in deque(label.finditer(response), maxlen=1):
        start = last.end()
        while start < len(response) and response[start].isspace():
            start += 1
        return response[start : start + _FIELD_LIMIT]
    return None


def exact_answer(response: str) -> str | None:
    """What the last `Exact Answer:` says, up to the next field or a blank line, on one line and without bold marks."""
    text = _field(_EXACT_ANSWER, response)
    if text is None:
        return None
    return " ".join(_NEXT_FIELD.split(text, maxsplit=1)[0].split()).strip("* ") or None


def parse_confidence(response: str) -> float | None:
    """The last `Confidence:` as a probability in 0..1; None if there is none or it is no percentage of 0 to 100.

    `95%` and `95` are 0.95. Without a per cent sign, a decimal up to 1 is taken for the probability itself: `0.95` is
    0.95, but `1` is one per cent.
    """
    text = _field(_CONFIDENCE, response)
    if text is None:
        return None
    line = text.split("\n", 1)[0]
    if found := _PERCENTAGE.search(line):
        value = float(found[1]) / 100
    elif found := _LEADING_NUMBER.match(line):
        value = float(found[1])
        if value > 1 or "." not in found[1]:
            value /= 100
    else:
        return None
    return value if value <= 1 else None


BROWSECOMP_PLUS_EXACT = ScoringRule(
    name="browsecomp_plus_exact",
    version=1,
    source="offline exact-match stand-in for BrowseComp-Plus's LLM judge, not the benchmark's own accuracy: the last"
    " `Exact Answer:`, normalised as in Search-R1",
    extract=exact_answer,
    matches=exact_match,
)
