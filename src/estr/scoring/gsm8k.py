r"""GSM8K: verl's strict reward, and a flexible one that reads what strict misses.

Strict accepts `#### 18` and `#### 1,000`; `#### 18.00`, `#### 18.`, `#### $18`, `####18`, `#### **18**` and
`#### \boxed{18}` all score 0 (`verl/utils/reward_score/gsm8k.py`). Flexible accepts them all.
"""

import re
from collections import deque
from collections.abc import Iterator
from fractions import Fraction

from estr.scoring.latex import last_boxed, plain_characters, plain_latex
from estr.scoring.verdict import ScoringRule

_TAIL = 300
_STRICT = re.compile(r"#### (-?[0-9.,]+)")


def _strict_answer(response: str) -> str | None:
    found = _STRICT.findall(response[-_TAIL:])
    return found[-1].replace(",", "") or None if found else None


GSM8K_STRICT = ScoringRule(
    name="gsm8k_strict",
    version=1,
    source="verl's GSM8K reward: the last `#### number` in the last 300 characters, commas dropped, equal as text",
    extract=_strict_answer,
    matches=str.__eq__,
)

_STATEMENT = 200  # characters of a line that may state an answer, and of a number in it
_DIGITS = 50
_MARKERS = 10
_BLOCK = 4096

# ASCII digits only. A number that is part of an expression (9**9, 16 + 2, 3:4, 1e9) or of a longer numeral is none.
_NUMBER = re.compile(
    r"""
    (?<!\d)
    (?: (?P<sign>(?<![A-Za-z0-9)-])[+-])? [$€£¥]? | [$€£¥]\ ?(?P<inner_sign>[+-])? )
    (?>
        (?P<whole>[0-9]++)\ (?P<part>[0-9]++)\ ?/\ ?(?P<of>[0-9]++)
      | (?P<over>[0-9]++)\ ?/\ ?(?P<under>[0-9]++)
      | (?P<integer>[0-9]{1,3}(?:,[0-9]{2,3}){0,15},[0-9]{3}(?![0-9])|[0-9]++) (?:\.(?P<decimals>[0-9]*+))?
      | \.(?P<only_decimals>[0-9]++)
    )
    (?! [\d²³¹⁰-⁹¼-¾⅐-⅞] | [.,:][0-9] | [eE][+-]?[0-9] | \*{1,2}\(?[0-9] )
    (?! [\ \t]+\*{1,2}[\ \t]*[($]?[0-9] )
    (?! [\ \t]*(?:[-+/^\u00d7\u00b7\u00f7\u2013]|\\times|\\cdot|\\div)[\ \t]*[({$]*[0-9] )
    """,
    re.VERBOSE,
)
# what makes the number after it a part of something longer
_JOINED = re.compile(
    r"""
    (?: \d(?:[.,:eE]|[eE][+-])
      | [\d)}][ \t]?\^[ \t]?[({]*
      | \d[ \t]?(?:\*\*|[-+*/\u00d7\u00b7\u00f7\u2013]|\\times|\\cdot|\\div)[ \t]?[({$]* )\Z
    """,
    re.VERBOSE,
)
_FRACTION = re.compile(
    r"(?P<digit>[0-9])?\\frac\s?\{\s?(?P<over>-?[0-9]{1,50})\s?\}\s?\{\s?(?P<under>[0-9]{1,50})\s?\}"
)
_COMMAND = re.compile(r"\\(?:boxed|fbox|text\w*|math\w*|mbox|displaystyle|operatorname)(?![A-Za-z])|\\[()\[\]]")
# markdown's fourth level: `#### Step 2: ...`, `#### 1. Compute ...`
_HEADING = re.compile(
    r"\s*(?:(?:step|part|case|phase|method|question)\s*[0-9]|[0-9]{1,2}[.)][ \t]+[A-Za-z])", re.IGNORECASE
)
_DIGIT = re.compile("[0-9]")
_ASIDE = re.compile(r"(?<=[\w%$*])\s+\(|;|\.\s|\s(?:because|since|as|where)\s")
_NO_BRACES = str.maketrans("", "", "{}")
_LEAD_IN = re.compile(r"(?:[:]|\b(?:is|are|be|equals|usd|eur|gbp|us|rs\.?))\W*\Z", re.IGNORECASE)
_ANSWER_IS = re.compile(r"answer\W{0,4}?(?:\bis\b|[:=])", re.IGNORECASE)


def _numbers(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """The numbers that begin in text[start:end]."""
    stop = min(end + _STATEMENT, len(text))
    for number in _NUMBER.finditer(text, start, stop):
        if number.start() >= end:
            return
        cut = number.end() == stop < len(text)
        if not cut and not _JOINED.search(text[max(number.start() - 12, 0) : number.start()]):
            yield number


def _last_number(text: str) -> str | None:
    for end in range(len(text), 0, -_BLOCK):
        start = max(end - _BLOCK, 0)
        if _DIGIT.search(text, start, end):
            spelt = [answer for number in _numbers(text, start, end) if (answer := _spelt(number)) is not None]
            if spelt:
                return spelt[-1]
    return None


def _spelt(number: re.Match[str]) -> str | None:
    """The number in the form 18, -0.5 or 3/2; None if it is longer than 50 digits or has no value."""
    if len(number[0]) > 2 * _DIGITS:
        return None
    sign = "-" if "-" in (number["sign"], number["inner_sign"]) else ""
    if number["under"] or number["of"]:
        under = int(number["under"] or number["of"])
        over = int(number["over"] or number["part"]) + int(number["whole"] or 0) * under
        return f"{sign if over else ''}{over}/{under}" if under else None
    whole = (number["integer"] or "").replace(",", "").lstrip("0") or "0"
    decimals = (number["decimals"] or number["only_decimals"] or "").rstrip("0")
    if len(whole) + len(decimals) > _DIGITS:
        return None
    magnitude = f"{whole}.{decimals}" if decimals else whole
    return magnitude if magnitude == "0" else sign + magnitude


def _beside(fraction: re.Match[str]) -> str:
    return f"{fraction['digit'] + ' ' if fraction['digit'] else ''}{fraction['over']}/{fraction['under']}"


def _stated(line: str, cut: bool) -> str | None:
    """The number that one short line states: alone, wrapped, with a unit, after "... is", "...:" or "=".

    Of an equation the right-hand side counts, if it is a number. An aside after the number (`18 (with x=9)`) is passed
    over. A line that only mentions a number (`Add the 3 pears`, `9**9`) states none. `cut`: the line goes on beyond
    this text, so that a number that touches its end may be incomplete.
    """
    text = _COMMAND.sub(" ", _FRACTION.sub(_beside, plain_latex(line))).translate(_NO_BRACES)
    digit = _DIGIT.search(text)
    if digit and (aside := _ASIDE.search(text, digit.end())):
        text, cut = text[: aside.start()], False
    for side in reversed(text.split("=")):
        number = next(_numbers(side, 0, len(side)), None)
        if number is None:
            continue
        lead = side[: number.start()]
        if any(char.isdigit() for char in lead) or (any(map(str.isalpha, lead)) and not _LEAD_IN.search(lead)):
            continue
        if not (cut and number.end() == len(side)):
            return _spelt(number)
    return None


def _stated_after(text: str, start: int) -> str | None:
    """What the first line that is not blank states, of the text from `start` on."""
    while start < len(text) and text[start].isspace():
        start += 1
    line = text[start : start + _STATEMENT].split("\n", 1)[0]
    return _stated(line, cut=len(line) == _STATEMENT)


def _flexible_answer(response: str) -> str | None:
    text = plain_characters(response)
    marker = len(text)
    for _ in range(_MARKERS):
        marker = text.rfind("####", 0, marker)
        if marker < 0:
            break
        if _HEADING.match(text, marker + 4):
            continue
        if (answer := _stated_after(text, marker + 4)) is not None:
            return answer
    boxed = last_boxed(text)
    if boxed is not None and len(boxed) <= _STATEMENT and (answer := _stated(boxed, cut=False)) is not None:
        return answer
    for phrase in deque(_ANSWER_IS.finditer(text), maxlen=1):
        if (answer := _stated_after(text, phrase.end())) is not None:
            return answer
    return _last_number(text)


def _same_value(answer: str, gold: str) -> bool:
    gold = gold.rsplit("####", 1)[-1]
    if len(answer) > _STATEMENT or len(gold) > _STATEMENT:
        return False
    left, right = _stated(answer, cut=False), _stated(gold, cut=False)
    return left is not None and right is not None and Fraction(left) == Fraction(right)


GSM8K_FLEXIBLE = ScoringRule(
    name="gsm8k_flexible",
    version=1,
    source=r"the number after the last `####`, else in the last \boxed{}, after `answer is`, or the last one at all;"
    " equal as an exact decimal or fraction",
    extract=_flexible_answer,
    matches=_same_value,
)
