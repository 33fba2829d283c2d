"""Tool calls in the Hermes format, which Qwen's chat templates ask for.

    <tool_call>
    {"name": "search", "arguments": {"query": "..."}}
    </tool_call>

The text comes from a policy, so any text must be parsed: linear time, bounded sizes, nothing evaluated.
"""

import json
from dataclasses import dataclass
from math import isfinite
from typing import Any

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
MAX_CALLS = 16  # per assistant turn
MAX_BLOCK = 16_384  # characters between the tags
MAX_DIGITS = 100  # of an integer


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call; whether the tool exists and takes these arguments is the toolbox's question."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class MalformedCall:
    """A block that is no call; `reason` is one short line for the policy to read."""

    reason: str


def parse_tool_calls(text: str) -> list[ToolCall | MalformedCall]:
    """All `<tool_call>` blocks of an assistant turn, in order, at most `MAX_CALLS` and one note on the rest.

    A block ends at its closing tag; a tag inside a JSON string counts as well (write it as `\\u003c...`, as
    `render_tool_call` does). A block that is followed by another opening tag first was not closed. Never raises.
    """
    calls: list[ToolCall | MalformedCall] = []
    start = text.find(OPEN)
    while start >= 0:
        if len(calls) == MAX_CALLS:
            calls.append(MalformedCall(f"more than {MAX_CALLS} calls in one turn; the rest was ignored"))
            break
        start += len(OPEN)
        end = text.find(CLOSE, start)
        following = text.find(OPEN, start)
        if end < 0 or 0 <= following < end:
            calls.append(MalformedCall(f"{OPEN} without {CLOSE}"))
        elif end - start > MAX_BLOCK:
            calls.append(MalformedCall(f"the call is longer than {MAX_BLOCK} characters"))
        else:
            calls.append(_parse_block(text[start:end]))
        start = following
    return calls


def render_tool_call(call: ToolCall) -> str:
    """The block that `parse_tool_calls` reads back as `call`. Raises `ValueError` for NaN and infinities."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, allow_nan=False)
    if OPEN in body or CLOSE in body:
        body = body.replace("<", "\\u003c")
    return f"{OPEN}\n{body}\n{CLOSE}"


def _parse_block(block: str) -> ToolCall | MalformedCall:
    try:
        call = _decode(block)
        if not isinstance(call, dict):
            return MalformedCall("a call must be a JSON object with name and arguments")
        name = call.get("name")
        if not isinstance(name, str):
            return MalformedCall("the call has no name")
        arguments = call.get("arguments")
        if isinstance(arguments, str):  # as OpenAI's API writes them
            arguments = _decode(arguments)
    except json.JSONDecodeError as error:
        return MalformedCall(f"not valid JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        return MalformedCall("not valid JSON: nested too deeply")
    except ValueError as error:
        return MalformedCall(f"not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return MalformedCall("arguments must be a JSON object")
    return ToolCall(name, arguments)


def _decode(text: str) -> Any:
    value = _DECODER.decode(text)
    # half of a surrogate pair is no text: no tokenizer and no server could take it
    if "\\u" in text:
        _require_text(json.dumps(value, ensure_ascii=False))
    else:
        _require_text(text)
    return value


def _require_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError("a number is too large")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number is too large")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded, object_pairs_hook=_unique_keys
)
