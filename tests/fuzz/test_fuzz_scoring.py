"""Scoring rules over any text: a verdict, the same each time, and not undone by what stands in front of the answer."""

import json
import re
from typing import Any

import pytest
from fuzzing import TEXT, VALUES, cases, pieces
from hypothesis import assume, given
from hypothesis import strategies as st

from estr.scoring import RULES, Verdict, dapo_answer, parse_confidence, score_lines
from estr.scoring.latex import last_boxed, plain_latex
from tests.scoring.forms import FORM

MARKS = [
    "####",
    "#### ",
    "answer is ",
    "Answer:",
    "<answer>",
    "</answer>",
    "Exact Answer:",
    "Confidence:",
    "\\boxed{",
    "\\fbox{",
]
LATEX = [
    "{",
    "}",
    "{{",
    "$",
    "$$",
    "\\frac{",
    "\\frac12",
    "\\sqrt[3]{",
    "\\sqrt",
    "\\text{",
    "\\mathrm{",
    "\\left(",
    "\\right)",
    "^\\circ",
]
LATEX += [
    "\\",
    "\\ ",
    "\\!",
    "\\,",
    "{,}",
    "^",
    "_",
    "\\pi",
    "\\cdot",
    "\\times",
    "=",
    "<",
    "\\leq",
    "\\%",
    "\\$",
    "\\boxed",
    "frac",
    "sqrt",
]
NUMERIC = [
    "1",
    "16",
    "016",
    "1,000",
    "1,00",
    "1.000,5",
    ".5",
    "5.",
    "1e9",
    "-",
    "+",
    "--",
    "%",
    "1/2",
    "1 1/2",
    "3:4",
    "9**9",
    "2^",
    "0/0",
]
NUMERIC += [
    "16\u202f000",
    "\uff11\uff16",
    "١٦",
    "¹",
    "½",
    "\u2212",
    "€",
    "£",
    "$1",
    "1" * 60,
    ",000" * 30,
    "1/" * 30,
    "2 " * 30,
    "x=",
    "n = ",
    " because ",
]
EMPTY_ANSWER = re.compile(r"answer\s*:\s*\Z", re.IGNORECASE)
NEAR_MISSES = pieces(*MARKS, *LATEX, *NUMERIC, " ", "\n", "**", "\0", "\ud800", "\u200f", "[", "]", '"')


@pytest.mark.parametrize("name", RULES)
@cases(8)
@given(text=NEAR_MISSES, gold=NEAR_MISSES | TEXT)
def test_any_text_gets_a_verdict(name: str, text: str, gold: str) -> None:
    rule = RULES[name]
    for answer in (text, FORM[name].format(text)):
        verdict = rule.score(answer, gold)
        assert verdict == rule.score(answer, gold)
        assert isinstance(verdict.correct, bool)
        assert verdict.extracted is None or (verdict.extracted and len(verdict.extracted) <= len(answer) + 1)
    rule.matches(text, gold)


@pytest.mark.parametrize("name", RULES)
@cases(4)
@given(before=NEAR_MISSES, number=st.integers(0, 999), between=st.sampled_from(["\n", "\n\n", ". So\n", " \n "]))
def test_a_correct_answer_stays_correct_after_other_text(name: str, before: str, number: int, between: str) -> None:
    stated = FORM[name].format(number)
    # of two opening tags the first counts; verl's pattern reads the line after an empty `Answer:` as its answer
    assume(name != "search_r1_em" or "<answer>" not in before.rpartition("</answer>")[2])
    assume(not FORM[name].startswith("Answer:") or not EMPTY_ANSWER.search(before))
    assert RULES[name].score(before + between + stated, str(number)) == Verdict(str(number), True)


@pytest.mark.parametrize("name", RULES)
@cases(0.3)
@given(
    parts=st.lists(st.sampled_from([*MARKS, *LATEX, *NUMERIC, " ", "\n", "\t", "*", "a"]), min_size=1, max_size=3),
    start=st.sampled_from(["", *MARKS, "\\boxed{16}", "1"]),
    end=st.sampled_from(["", "}", "</answer>", "16", "%", "!", "\n"]),
    size=st.sampled_from([10**5, 10**6]),
)
def test_a_repeated_piece_is_read_in_linear_time(name: str, parts: list[str], start: str, end: str, size: int) -> None:
    piece = "".join(parts)
    text = start + piece * (size // len(piece)) + end
    extracted = RULES[name].score(text, "16").extracted
    assert extracted is None or len(extracted) <= len(text) + 1
    RULES[name].matches(text, text + "x")
    RULES[name].matches("16", text)
    parse_confidence(text)


ARITHMETIC = [
    "1",
    "2",
    "9",
    "10",
    "99",
    "+",
    "-",
    "*",
    "/",
    "^",
    "^{",
    "{",
    "}",
    "(",
    ")",
    ".",
    ",",
    "\\frac{",
    "}{",
    "\\sqrt{",
    "\\sqrt[9]{",
]
ARITHMETIC += [
    "\\pi",
    "\\cdot",
    "\\times",
    "\\div",
    " ",
    "!",
    "x",
    "\\frac",
    "\\sqrt",
    "^9",
    "^{99}",
    "\\pi^4",
    "(\\sqrt{2}+\\pi)",
    "0.1",
]


@cases(5)
@given(pieces(*ARITHMETIC, size=12), pieces(*ARITHMETIC, size=8) | st.integers(0, 999).map(str))
def test_computer_algebra_gives_a_verdict(answer: str, gold: str) -> None:
    assert RULES["aime"].matches(answer, gold) in (True, False)


@cases(10)
@given(NEAR_MISSES)
def test_the_parts_of_the_rules(text: str) -> None:
    boxed = last_boxed(text)
    assert boxed is None or (boxed in text and boxed.strip())
    assert isinstance(plain_latex(text), str)
    assert dapo_answer(text) is None or dapo_answer(text)
    confidence = parse_confidence(text)
    assert confidence is None or 0 <= confidence <= 1


LINE_PARTS = [
    "{",
    "}",
    "[",
    "]",
    '"answer"',
    '"gold"',
    ":",
    ",",
    '"#### 18"',
    "18",
    "18.00",
    "1e999",
    "NaN",
    "-",
    "null",
    "\\ud800",
    '"',
]
LINE_PARTS += ["9" * 5_000, "[" * 3_000, '{"answer": "#### 18", "gold": ', '{"gold":' * 2_000, "\ufeff", "\0", " "]


@cases(10)
@given(st.lists(pieces(*LINE_PARTS, size=8) | st.binary(max_size=20), min_size=1, max_size=3))
def test_any_line_gives_one_line(lines: list[str | bytes]) -> None:
    scored = list(score_lines(lines, RULES["gsm8k_flexible"]))
    assert len(scored) == len(lines)
    for line in scored:
        check_scored(line)


@cases(5)
@given(VALUES | st.fixed_dictionaries({"answer": VALUES | TEXT, "gold": VALUES}), st.sampled_from(sorted(RULES)))
def test_any_json_line_gives_one_line(content: Any, rule: str) -> None:
    (line,) = score_lines([json.dumps(content)], RULES[rule])
    check_scored(line)


def check_scored(line: str) -> None:
    row = json.loads(line, parse_constant=pytest.fail)
    assert line.isascii() and "\n" not in line
    assert isinstance(row["correct"], bool) and "extracted" in row
    assert ("error" not in row) or (len(row["error"]) < 200 and not row["correct"])
