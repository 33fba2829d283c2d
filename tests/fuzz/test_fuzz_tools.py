"""What a policy writes: any text becomes a tool's output or a tool's error, in bounded time and memory."""

import json
import tracemalloc
from fractions import Fraction
from typing import Any

import pytest
from fuzzing import TEXT, VALUES, cases, pieces
from hypothesis import given
from hypothesis import strategies as st

from estr.tools.answer_check import AnswerCheck
from estr.tools.base import ToolError, ToolResult
from estr.tools.bm25 import BM25Index
from estr.tools.calculator import MAX_BITS, MAX_LENGTH, Calculator, evaluate, render
from estr.tools.conversation import Conversation, Limits
from estr.tools.hermes import CLOSE, MAX_CALLS, OPEN, MalformedCall, ToolCall, parse_tool_calls
from estr.tools.search import GetDocumentTool, SearchTool
from estr.tools.toolbox import Toolbox

INDEX = BM25Index.build([("d1", "the lighthouse of Aal"), ("d2", "Größe 9**9**9 ٣ \u202e sea")])
BOX = Toolbox(
    [Calculator(), SearchTool(INDEX, lambda text, tokens: text[:tokens]), GetDocumentTool(INDEX), AnswerCheck("42")]
)
ARGUMENT = {"calculator": "expression", "search": "query", "get_document": "docid", "calc_gsm8k_reward": "answer"}
NAMES = st.sampled_from([*ARGUMENT, "python", ""])
JSON_PARTS = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "\\",
    "\\u",
    "\\ud800",
    "\\udc00",
    "1e999",
    "-",
    "NaN",
    "null",
    "true",
    "9" * 5_000,
]
JSON_PARTS += [
    '"name"',
    '"arguments"',
    '"calculator"',
    '{"name": "calculator", "arguments": {"expression": "',
    "[" * 3_000,
    '{"a":' * 2_000,
]
TURNS = pieces(OPEN, CLOSE, "<tool_call", "</tool_call", "\n", *JSON_PARTS)


def dialogue(text: str) -> list[str] | None:
    """The tool messages of a turn, each text that a server can take."""
    conversation = Conversation(BOX, Limits(turns=2, tool_output_tokens=500), lambda text, tokens: text[:tokens])
    messages = conversation.reply(text)
    for message in messages or ():
        message.encode()
        assert len(message) <= 500
    assert len(messages or ()) <= MAX_CALLS + 1
    return messages


@cases(20)
@given(TURNS)
def test_any_turn(text: str) -> None:
    calls = parse_tool_calls(text)
    assert calls == parse_tool_calls(text)
    assert bool(calls) == (OPEN in text) == (dialogue(text) is not None)
    for call in calls:
        if isinstance(call, MalformedCall):
            assert len(call.reason.splitlines()) == 1 and len(call.reason) < 200
        else:
            json.dumps(call.arguments, allow_nan=False)


@cases(10)
@given(NAMES | TEXT, VALUES | st.dictionaries(st.sampled_from([*ARGUMENT.values(), "x"]), VALUES, max_size=2))
def test_any_call_in_valid_json(name: str, arguments: Any) -> None:
    block = json.dumps({"name": name, "arguments": arguments})
    for text in (block, json.dumps({"name": name, "arguments": json.dumps(arguments)})):
        (message,) = dialogue(f"{OPEN}{text}{CLOSE}") or [""]
        assert message


@cases(10)
@given(NAMES, TEXT)
def test_any_argument_of_every_tool(name: str, text: str) -> None:
    result = BOX.run(ToolCall(name, {ARGUMENT.get(name, "x"): text}))
    assert isinstance(result, ToolResult)
    if name not in ARGUMENT:
        assert result.error


@cases(3)
@given(st.dictionaries(TEXT, VALUES, max_size=3), NAMES)
def test_any_arguments(arguments: dict[str, Any], name: str) -> None:
    assert isinstance(BOX.run(ToolCall(name, arguments)), ToolResult)


SYMBOLS = ["+", "-", "*", "/", "**", "^", "%", "(", ")", ",", ".", " ", "9", "0", "1,000", "0.1", "9**9**9", "2^1000"]
SYMBOLS += [
    "9" * 300,
    "(" * 40,
    "-" * 300,
    "%" * 300,
    "*1.1" * 100,
    "٣",
    "²",
    "e",
    "1e9",
    "\u2212",
    "\u00d7",
    "\u00f7",
    "_",
    "0x1",
]


@cases(20)
@given(pieces(*SYMBOLS))
def test_any_expression(text: str) -> None:
    try:
        value = evaluate(text)
        assert value.numerator.bit_length() <= MAX_BITS and value.denominator.bit_length() <= MAX_BITS
        shown = render(value)
    except ToolError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 400
        return
    assert shown.isascii() and len(shown) < 60


NUMBER = st.integers(0, 99).map(str)
EXPRESSION = st.recursive(
    NUMBER,
    lambda inner: (
        st.builds("({}{}{})".format, inner, st.sampled_from(["+", "-", "*"]), inner)
        | st.builds("-{}".format, inner)
        | st.builds("{}**{}".format, NUMBER, st.integers(0, 9))
    ),
    max_leaves=12,
)


@cases(5)
@given(EXPRESSION)
def test_arithmetic_is_python_s(text: str) -> None:
    expected = Fraction(eval(text, {"__builtins__": {}}))  # noqa: S307 - digits, signs and parentheses
    try:
        assert evaluate(text) == expected
    except ToolError:
        assert len(text) > MAX_LENGTH or "-" * 2 in text or text.count("(") > 10 or expected.numerator.bit_length() > 99


@pytest.mark.parametrize("count", [10**5, 10**6])
@pytest.mark.parametrize(
    "part",
    [OPEN, CLOSE, OPEN + "{", OPEN + CLOSE, OPEN + '{"a":', "[", "\\", OPEN + "[" * 5_000 + CLOSE, "9", "\ud800"],
)
def test_long_turns_in_memory_linear_in_their_length(part: str, count: int) -> None:
    for text in (part * (count // len(part)), OPEN + part * (count // len(part)) + CLOSE):
        tracemalloc.start()
        dialogue(text)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * len(text) + (1 << 22)


@pytest.mark.parametrize("part", ["(", ")", "-", "%", "9", "9**", "1/", "(1+", "1.1*", ",", "\u00d7", " ", "2^"])
def test_long_expressions(part: str) -> None:
    for size in (MAX_LENGTH - 2, MAX_LENGTH, 10**6):
        for tail in ("", "1", ")"):
            tracemalloc.start()
            BOX.run(ToolCall("calculator", {"expression": part * (size // len(part)) + tail}))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 4 * size + (1 << 22)


@pytest.mark.parametrize(
    "expression",
    ["9**9**9", "2^1000^2", "(9**999)**9", "1/" + "3**500/" * 20 + "1", "99999999999^999%7", "0^-1", "1%0", "5%%%"],
)
def test_powers_are_bounded(expression: str) -> None:
    result = BOX.run(ToolCall("calculator", {"expression": expression}))
    assert result.error or len(result.content) < 60


@pytest.mark.parametrize("expression", ["9 " + "9" * 900, "(1)" + "9" * 900, "1,0" + "9" * 900])
def test_an_error_repeats_no_long_number(expression: str) -> None:
    result = BOX.run(ToolCall("calculator", {"expression": expression}))
    assert result.error and len(result.content) < 100
