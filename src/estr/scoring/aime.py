r"""AIME: the last balanced box, compared as an integer, else by math-verify.

An answer is an integer of 0 to 999, so nearly every comparison is one of integers and needs no computer algebra: 016 is
16, and so are `n=16`, `16^\circ`, `\text{16}`, `16.0`. What else stands in the box (`\frac{32}{2}`, `2^4`) goes to
math-verify, which can evaluate for hours and stops itself with a signal only, in the main thread only. So it sees
nothing but arithmetic on numbers whose size is bounded before, and is called without its timeout.
"""

import logging
import re
from math import prod
from typing import Any

from estr.scoring.latex import last_boxed, plain_latex
from estr.scoring.verdict import ScoringRule

_GROUP_LIMIT = 1000  # characters; an answer is shorter
_INTEGER = re.compile(r"([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,50})(?:\.0*)?")
_TEXT = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*"
_WRAPPED = re.compile(rf"(?:{_TEXT})?\{{(.*)\}}", re.DOTALL)
_UNIT = re.compile(_TEXT + r"\{[^{}0-9]*\}(?:\^\s*\{?[23]\}?)?\Z")
_DEGREES = re.compile(r"(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|°|\\degree)\Z")
_RELATION = re.compile(r"[,;<>]|\\(?:l|g|n)eq?(?![a-z])")

# what bounds math-verify's time: it takes minutes over the root of a number with 4,000 digits or a root of order 10^6
_LENGTH = 100
_DEPTH = 4
_ROOTS = 3
_DIGITS = 500  # of any value on the way
_IRRATIONAL_POWER = 4  # (sqrt(2) + pi)^99 is multiplied out
_ARITHMETIC = re.compile(
    r"(?:[-+*/^(){}.,0-9\s]|\\sqrt\s*\[[2-9]\]|\\(?:frac|sqrt|cdot|times|div|pi)(?![A-Za-z]))*+[A-Za-z]{0,20}"
)
_IRRATIONAL = re.compile(r"\\(?:sqrt|pi)")
_POWER = re.compile(r"\^\s*(?:\{\s*-?([0-9]{1,3})\s*\}|-?([0-9]{1,3}))(?![0-9.]|[\s{}()]*\^)")  # no tower


def _integer(text: str) -> str | None:
    """The integer that `text` spells, in its shortest form (16, -3), or None."""
    if len(text) > _GROUP_LIMIT:
        return None
    text = _right_hand_side(plain_latex(text))
    for _ in range(4):  # wrappers within wrappers
        text = text.replace("$", "").strip()
        text = _DEGREES.sub("", text).rstrip()
        wrapped = _WRAPPED.fullmatch(text)
        text = wrapped[1] if wrapped else _UNIT.sub("", text)
    spelt = _INTEGER.fullmatch(text.strip())
    if spelt is None:
        return None
    digits = spelt[2].replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if spelt[1] == "-" and digits != "0" else digits


def _right_hand_side(text: str) -> str:
    """`n=16` and `m+n=16` state 16; `a=1, b=16` and `1<n=16` are no single answer and stay as they are."""
    left, equals, right = text.rpartition("=")
    return right if equals and not _RELATION.search(left) else text


def _boxed_answer(response: str) -> str | None:
    group = last_boxed(response)
    if group is None or len(group) > _GROUP_LIMIT:
        return None
    end = len(group)
    while end and (group[end - 1].isspace() or group[end - 1] == "\\"):  # a `\ ` at the end is white space too
        end -= 1
    return _integer(group) or group[:end].lstrip() or None


def _same_number(answer: str, gold: str) -> bool:
    left, right = _integer(answer), _integer(gold)
    if left is not None and right is not None:
        return left == right
    return answer.strip() == gold.strip() or _verified(answer, gold)


def _verified(answer: str, gold: str) -> bool:
    """math-verify's verdict on two bounded pieces of arithmetic; False for anything else."""
    if len(answer) > _GROUP_LIMIT or len(gold) > _GROUP_LIMIT:
        return False
    left, right = _right_hand_side(plain_latex(answer)).strip(), _right_hand_side(plain_latex(gold)).strip()
    if not (_bounded(left) and _bounded(right)):
        return False
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeout is off
    from math_verify import LatexExtractionConfig, parse, verify

    def parsed(text: str) -> Any:
        # LaTeX only: the parser of plain expressions ends in an `eval`
        config = [LatexExtractionConfig()]
        return parse(f"${text}$", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)[0]

    try:
        target, value = parsed(right), parsed(left)
        # of unequal numbers it would look for a closed form of the difference, which may take minutes
        if target.is_number and value.is_number and not abs(complex((target - value).evalf(30))) < 1e-9:
            return False
        return bool(verify(target, value, timeout_seconds=None))
    except Exception:  # computer algebra raises anything on nonsense such as 1/0 or \frac{}{}
        return False


def _bounded(text: str) -> bool:
    """Whether `text` is arithmetic that is cheap to evaluate: short, shallow, with small numbers, roots and powers."""
    if len(text) > _LENGTH or not _ARITHMETIC.fullmatch(text) or "**" in text:
        return False
    depth = deepest = 0
    for char in text:
        depth += (char in "({") - (char in ")}")
        deepest = max(deepest, depth)
    exponents = [int(braced or bare) for braced, bare in _POWER.findall(text)]
    power = prod(max(exponent, 1) for exponent in exponents)
    return (
        deepest <= _DEPTH
        and text.count(r"\sqrt") <= _ROOTS
        and text.count("^") == len(exponents)
        and power * sum(map(str.isdigit, text)) <= _DIGITS
        and (power <= _IRRATIONAL_POWER or not _IRRATIONAL.search(text))
    )


AIME = ScoringRule(
    name="aime",
    version=1,
    source=r"the last balanced \boxed{} (or \fbox{}), equal as an integer, else by math-verify on bounded arithmetic",
    extract=_boxed_answer,
    matches=_same_number,
)
