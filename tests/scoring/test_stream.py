import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estr.scoring import RULES, score_lines

STRICT, EXACT = RULES["gsm8k_strict"], RULES["search_r1_em"]


def scored(line: str | bytes, rule: str = "gsm8k_strict") -> dict[str, Any]:
    (out,) = score_lines([line], RULES[rule])
    assert out.isascii() and "\n" not in out
    row = json.loads(out, parse_constant=pytest.fail)
    assert isinstance(row, dict)
    return row


def test_adds_two_keys_and_keeps_the_others() -> None:
    line = '{"id": 7, "answer": "#### 18", "gold": "18", "note": "é", "extracted": "old"}\n'
    expected = {"id": 7, "answer": "#### 18", "gold": "18", "note": "é", "extracted": "18", "correct": True}
    assert scored(line) == scored(line.encode()) == expected
    assert scored('{"answer": "no", "gold": "18"}') == {
        "answer": "no",
        "gold": "18",
        "extracted": None,
        "correct": False,
    }


@pytest.mark.parametrize(
    ("gold", "rule", "correct"),
    [
        ('"18"', "gsm8k_strict", True),
        ("18", "gsm8k_strict", True),
        ("18.00", "gsm8k_strict", False),
        ("18.00", "gsm8k_flexible", True),
        ("1.8e1", "gsm8k_strict", False),
        ('["17", "18"]', "search_r1_em", True),
        ("[17, 18]", "search_r1_em", True),
        ('["17"]', "search_r1_em", False),
    ],
)
def test_gold_may_be_a_number_or_a_list(gold: str, rule: str, correct: bool) -> None:
    row = scored(f'{{"answer": "#### 18 <answer>18</answer>", "gold": {gold}}}', rule)
    assert (row["extracted"], row["correct"], row["gold"]) == ("18", correct, json.loads(gold))


def test_a_gold_number_is_taken_as_it_is_written() -> None:
    assert scored('{"answer": "#### 18.00", "gold": 18.00}')["correct"]
    assert scored('{"answer": "<answer>1.50</answer>", "gold": [2, 1.50]}', "search_r1_em")["correct"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "line 1: blank; expected a JSON object with the keys answer and gold"),
        (" \t\n", "line 1: blank; expected a JSON object with the keys answer and gold"),
        ("#### 18", "line 1: not valid JSON: Expecting value at character 1"),
        ('{"answer": "x"', "line 1: not valid JSON: Expecting ',' delimiter at character 15"),
        ('{"answer": "a\0b", "gold": "1"}', "line 1: not valid JSON: Invalid control character at character 14"),
        ("\0", "line 1: not valid JSON: Expecting value at character 1"),
        (b'{"answer": "\xff", "gold": "1"}', "line 1: not UTF-8 at byte 13"),
        ('{"answer": "x", "gold": NaN}', "line 1: not valid JSON: NaN is not a finite number"),
        ('{"answer": "x", "gold": 1e999}', "line 1: not valid JSON: 1e999 is not a finite number"),
        ("[1, 2]", "line 1: expected a JSON object with the keys answer and gold, not a list"),
        ("null", "line 1: expected a JSON object with the keys answer and gold, not null"),
        ("18", "line 1: expected a JSON object with the keys answer and gold, not a number"),
        ('"18"', "line 1: expected a JSON object with the keys answer and gold, not text"),
        ('{"gold": "1"}', "line 1: the key answer is missing"),
        ('{"answer": "1"}', "line 1: the key gold is missing"),
        ('{"answer": 18, "gold": "18"}', "line 1: answer must be text, not a number"),
        ('{"answer": null, "gold": "18"}', "line 1: answer must be text, not null"),
        ('{"answer": ["18"], "gold": "18"}', "line 1: answer must be text, not a list"),
        ('{"answer": "18", "gold": null}', "line 1: gold must be text, a number or a list of them, not null"),
        ('{"answer": "18", "gold": true}', "line 1: gold must be text, a number or a list of them, not true"),
        ('{"answer": "18", "gold": {}}', "line 1: gold must be text, a number or a list of them, not an object"),
        ('{"answer": "18", "gold": []}', "line 1: a gold list must hold texts or numbers, and at least one"),
        ('{"answer": "1", "gold": [["1"]]}', "line 1: a gold list must hold texts or numbers, and at least one"),
    ],
)
def test_a_line_that_cannot_be_scored_says_why(line: str | bytes, error: str) -> None:
    row = scored(line)
    assert row["error"] == error
    assert (row["extracted"], row["correct"]) == (None, False)


def test_an_error_keeps_the_keys_of_the_object_and_counts_lines_from_one() -> None:
    lines = ['{"answer": "#### 18", "gold": "18"}', '{"id": 3, "answer": "#### 18"}', ""]
    good, kept, blank = (json.loads(line) for line in score_lines(lines, STRICT))
    assert good["correct"] and "error" not in good
    error = "line 2: the key gold is missing"
    assert kept == {"id": 3, "answer": "#### 18", "error": error, "extracted": None, "correct": False}
    assert blank["error"].startswith("line 3: blank")


def test_unpaired_surrogates_null_escapes_and_a_byte_order_mark_are_scored() -> None:
    row = scored('{"answer": "<answer>\\ud800\\u0000</answer>", "gold": "\\ud800\\u0000"}', "search_r1_em")
    assert (row["extracted"], row["correct"]) == ("\ud800\0", True)
    assert scored('{"answer": "\udcff #### 18", "gold": "18"}')["correct"]  # as Python reads bytes that are no UTF-8
    assert scored(b'\xef\xbb\xbf{"answer": "#### 18", "gold": "18"}')["correct"]


@pytest.mark.parametrize("rule", RULES)
def test_large_lines(rule: str) -> None:
    digits = "7" * 1_000_000
    row = scored(json.dumps({"answer": f"#### {digits} \\boxed{{{digits}}}", "gold": "18"}), rule)
    assert row["correct"] is False and "error" not in row
    assert "4300 digits" in scored(f'{{"answer": "#### 18", "gold": {digits}}}', rule)["error"]
    assert "nested too deeply" in scored('{"answer": ' + "[" * 1_000_000, rule)["error"]
    assert scored(b" " * (2**24 + 1), rule)["error"] == "line 1: longer than 16 MiB"


def test_lines_are_scored_as_they_come() -> None:
    lines = iter(['{"answer": "#### 18", "gold": "18"}', '{"answer": "#### 17", "gold": "18"}'])
    stream = score_lines(lines, STRICT)
    assert json.loads(next(stream))["correct"]
    assert next(lines, None) is not None  # the second line was not read ahead


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["answer", "gold", "x"]), inner),
    max_leaves=6,
)
any_line = (
    st.text(st.characters(), max_size=40)
    | st.binary(max_size=40)
    | json_values.map(json.dumps)
    | st.dictionaries(st.sampled_from(["answer", "gold", "id"]), json_values, min_size=2).map(json.dumps)
    | st.fixed_dictionaries({"answer": st.text(st.characters()), "gold": st.text(st.characters())}).map(json.dumps)
)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=100, deadline=None)
@given(st.lists(any_line, max_size=5))
def test_one_line_out_for_each_line_in(rule: str, lines: list[str | bytes]) -> None:
    out = list(score_lines(lines, RULES[rule]))
    assert len(out) == len(lines)
    for line in out:
        assert line.isascii() and line.isprintable()
        row = json.loads(line, parse_constant=pytest.fail)
        assert isinstance(row["correct"], bool)
        assert row["extracted"] is None or isinstance(row["extracted"], str)
