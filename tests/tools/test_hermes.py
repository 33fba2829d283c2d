import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.tools.hermes import MAX_BLOCK, MAX_CALLS, MalformedCall, ToolCall, parse_tool_calls, render_tool_call

PLAIN = st.text()
SCALARS = st.none() | st.booleans() | st.integers(-(10**90), 10**90) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = SCALARS | PLAIN | st.lists(SCALARS | PLAIN, max_size=3) | st.dictionaries(PLAIN, SCALARS, max_size=2)
CALLS = st.builds(ToolCall, PLAIN, st.dictionaries(PLAIN, VALUES, max_size=3))
# pieces that make tags, JSON and half-written calls likely
PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "a"', ', "arguments": {', "}", '"', "\\ud800", "[", "\n"]
)


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def only(body: str) -> ToolCall | MalformedCall:
    (call,) = parse_tool_calls(block(body))
    return call


def test_calls_are_read_in_order_from_the_text_around_them() -> None:
    first = block('{"name": "search", "arguments": {"query": "a < b"}}')
    text = f"Let me look.\n{first} and <tool_call>{{}}</tool_call>" + block(
        '\t{ "name":"calculator",\r\n"arguments":\n{"expression":"1+1"} } '
    )
    assert parse_tool_calls(text) == [
        ToolCall("search", {"query": "a < b"}),
        MalformedCall("the call has no name"),
        ToolCall("calculator", {"expression": "1+1"}),
    ]


@pytest.mark.parametrize("text", ["", "no call", "</tool_call>", "tool_call", "<tool_call", "< tool_call >{}"])
def test_text_without_an_opening_tag_holds_no_call(text: str) -> None:
    assert parse_tool_calls(text) == []


def test_arguments_may_be_a_json_string() -> None:
    assert only(r'{"name": "search", "arguments": "{\"query\": \"x\"}"}') == ToolCall("search", {"query": "x"})


def test_other_keys_of_a_call_are_ignored() -> None:
    assert only('{"id": 7, "name": "f", "arguments": {}}') == ToolCall("f", {})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not valid JSON: Expecting value"),
        ("search(query)", "not valid JSON: Expecting value"),
        ('{"name": "f", "arguments": {}', "not valid JSON: Expecting ',' delimiter"),
        ('{"name": "f", "arguments": {}} {}', "not valid JSON: Extra data"),
        ("{'name': 'f'}", "not valid JSON: Expecting property name"),
        ("[1]", "a call must be a JSON object"),
        ('"f"', "a call must be a JSON object"),
        ('{"arguments": {}}', "the call has no name"),
        ('{"name": 3, "arguments": {}}', "the call has no name"),
        ('{"name": "f"}', "arguments must be a JSON object"),
        ('{"name": "f", "arguments": null}', "arguments must be a JSON object"),
        ('{"name": "f", "arguments": [1]}', "arguments must be a JSON object"),
        ('{"name": "f", "arguments": "x"}', "not valid JSON: Expecting value"),
        ('{"name": "f", "arguments": "[]"}', "arguments must be a JSON object"),
        ('{"name": "f", "name": "g", "arguments": {}}', "not valid JSON: a key occurs twice"),
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', "not valid JSON: a key occurs twice"),
        ('{"name": "f", "arguments": {"x": NaN}}', "not valid JSON: NaN is no JSON number"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "not valid JSON: -Infinity is no JSON number"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "not valid JSON: a number is too large"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 10_000 + "}}", "not valid JSON: a number is too large"),
        ('{"name": "f", "arguments": {"x": "a\0b"}}', "not valid JSON: Invalid control character"),
        (r'{"name": "f", "arguments": {"x": "\ud800"}}', "not valid JSON: half of a surrogate pair"),
        ('{"name": "f", "arguments": {"x": "\ud800"}}', "not valid JSON: half of a surrogate pair"),
        (r'{"name": "f", "arguments": "{\"x\": \"\\ud800\"}"}', "not valid JSON: half of a surrogate pair"),
        ("[" * (MAX_BLOCK - 2), "not valid JSON: nested too deeply"),
        ('{"name":' * 2000, "not valid JSON: nested too deeply"),
        ('{"name": "f", "arguments": "' + "[" * 10_000 + '"}', "not valid JSON: nested too deeply"),
        ("{" * 10**5, f"the call is longer than {MAX_BLOCK} characters"),
        (json.dumps({"name": "f", "arguments": {"x": "y" * 10**6}}), f"the call is longer than {MAX_BLOCK} characters"),
    ],
)
def test_what_is_no_call_gets_a_short_reason(body: str, reason: str) -> None:
    call = only(body)
    assert isinstance(call, MalformedCall)
    assert call.reason.startswith(reason)
    assert len(call.reason) < 120


def test_escaped_surrogate_pairs_and_nul_are_text() -> None:
    assert only(r'{"name": "f", "arguments": {"x": "\ud83d\ude00\u0000"}}') == ToolCall("f", {"x": "\U0001f600\0"})


def test_an_unclosed_block_ends_at_the_next_one() -> None:
    good = block('{"name": "f", "arguments": {}}')
    unclosed = MalformedCall("<tool_call> without </tool_call>")
    assert parse_tool_calls('<tool_call>{"name": ' + good) == [unclosed, ToolCall("f", {})]
    assert parse_tool_calls(good + "<tool_call>{}") == [ToolCall("f", {}), unclosed]


def test_calls_beyond_the_limit_become_one_note() -> None:
    calls = parse_tool_calls(block('{"name": "f", "arguments": {}}') * (MAX_CALLS + 50))
    assert calls[:-1] == [ToolCall("f", {})] * MAX_CALLS
    assert calls[-1] == MalformedCall(f"more than {MAX_CALLS} calls in one turn; the rest was ignored")
    # each of these scans to the end of the text in vain; only the limit keeps that linear
    assert len(parse_tool_calls("<tool_call>" * 10**5)) == MAX_CALLS + 1


@given(st.lists(PIECES | st.text(max_size=5), max_size=16).map("".join))
def test_any_text_is_parsed(text: str) -> None:
    calls = parse_tool_calls(text)
    assert len(calls) == min(text.count("<tool_call>"), MAX_CALLS + 1)


@given(st.lists(CALLS, max_size=3), PLAIN.filter(lambda text: "<" not in text))
def test_rendered_calls_are_read_back(calls: list[ToolCall], between: str) -> None:
    assert parse_tool_calls(between.join(map(render_tool_call, calls))) == calls


def test_a_tag_inside_an_argument_survives_rendering() -> None:
    call = ToolCall("search", {"query": "what does </tool_call> after <tool_call> mean"})
    assert parse_tool_calls(render_tool_call(call)) == [call]


def test_nan_is_not_rendered() -> None:
    with pytest.raises(ValueError):
        render_tool_call(ToolCall("f", {"x": float("nan")}))
