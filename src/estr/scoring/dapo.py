r"""DAPO-Math's rule: the line `Answer: ...`, normalised, compared as text.

What verl computes in `verl/utils/reward_score/math_dapo.py`, its oddities included: only the last 300 characters count,
every blank inside the answer is dropped, and markdown is not understood (`Answer: **12**` is not 12).
"""

import re
from functools import lru_cache

from estr.scoring.verdict import ScoringRule

_ANSWER_LINE = re.compile(r"(?i)answer\s*:\s*([^\n]+)")
_TAIL = 300
_GOLD_LIMIT = 1000  # verl's patterns take quadratic time

# in verl's order: each step sees what the ones before it left
_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_WORDS = (
    "square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents degrees cm gm "
    "pounds meters meals edges students childrentickets multiples"
)
_MARKS = (
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    '"',
    "\\dots",
)
_REMOVED = (*_WORDS.split(), *_MARKS)
_REWRITTEN = (
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),  # the first $...$ alone
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),  # \frac12
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def dapo_answer(response: str) -> str | None:
    """What follows the last `Answer:` in the last 300 characters, as DAPO-Math asks for it; None if there is none."""
    found = _ANSWER_LINE.findall(response[-_TAIL:])
    return found[-1].strip() or None if found else None


@lru_cache(maxsize=4096)  # a group's answers repeat, and its gold answer does
def normalized(answer: str) -> str:
    r"""The form in which answers are compared: no units, `$`, blanks, `\text{}` or thousands commas, `\frac12` spelt
    out, and of an equation the right-hand side only."""
    answer = answer.rsplit("=", 1)[-1]
    for before, after in _REPLACED:
        answer = answer.replace(before, after)
    for part in _REMOVED:
        answer = answer.replace(part, "")
    for pattern, kept in _REWRITTEN:
        answer = pattern.sub(kept, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()  # any script's digits, as in verl: they are only compared


def _matches(answer: str, gold: str) -> bool:
    return len(gold) <= _GOLD_LIMIT and normalized(answer[:_GOLD_LIMIT]) == normalized(gold.strip())


DAPO_MATH = ScoringRule(
    name="dapo_math",
    version=1,
    source="verl's math_dapo: what follows the last `Answer:` in the last 300 characters, normalised, equal as text",
    extract=dapo_answer,
    matches=_matches,
)
