from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.errors import UserError
from estr.tools.base import ToolError, ToolResult, function_schema
from estr.tools.hermes import MalformedCall, ToolCall
from estr.tools.toolbox import Toolbox


class Echo:
    name = "echo"
    schema = function_schema("echo", "Repeats a text.", text="the text")

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        if arguments["text"] == "forbidden":
            raise ToolError("not that text")
        if arguments["text"] == "broken":
            raise UserError("the retriever is down")
        return ToolResult(arguments["text"], documents=("d1",))


class Typed:
    name = "typed"
    schema: ClassVar[dict[str, Any]] = {
        "type": "function",
        "function": {
            "name": "typed",
            "description": "One argument of each type, all but the first optional.",
            "parameters": {
                "type": "object",
                "properties": {kind: {"type": kind} for kind in ("integer", "number", "boolean", "array", "object")},
                "required": ["integer"],
            },
        },
    }

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult("fits")


BOX = Toolbox([Echo(), Typed()])


def test_a_call_reaches_its_tool() -> None:
    assert BOX.run(ToolCall("echo", {"text": "hello"})) == ToolResult("hello", documents=("d1",))


def test_schemas_are_those_of_the_tools_in_order() -> None:
    assert BOX.schemas == [Echo.schema, Typed.schema]
    assert Echo.schema == {
        "type": "function",
        "function": {
            "name": "echo",
            "description": "Repeats a text.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "the text"}},
                "required": ["text"],
            },
        },
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (MalformedCall("no name"), "Error: no name"),
        (ToolCall("python", {}), "Error: there is no tool 'python'; the tools are echo, typed"),
        (ToolCall("x" * 10**5, {}), f"Error: there is no tool '{'x' * 40}...'; the tools are echo, typed"),
        (ToolCall("\ud800\n", {}), r"Error: there is no tool '\ud800\n'; the tools are echo, typed"),
        (ToolCall("echo", {}), "Error: echo: the argument 'text' is missing"),
        (ToolCall("echo", {"text": 5}), "Error: echo: the argument 'text' must be of type string"),
        (ToolCall("echo", {"text": None}), "Error: echo: the argument 'text' must be of type string"),
        (
            ToolCall("echo", {"text": "a", "loud": True}),
            "Error: echo: there is no argument 'loud'; the arguments are text",
        ),
        (ToolCall("echo", {"text": "forbidden"}), "Error: echo: not that text"),
        (
            ToolCall("typed", {"integer": 1, "number": "2"}),
            "Error: typed: the argument 'number' must be of type number",
        ),
        (
            ToolCall("typed", {"integer": 1, "boolean": 0}),
            "Error: typed: the argument 'boolean' must be of type boolean",
        ),
    ],
)
def test_a_bad_call_becomes_a_message(call: ToolCall | MalformedCall, message: str) -> None:
    assert BOX.run(call) == ToolResult(message, error=True)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("integer", 1.0), ("integer", True), ("number", "2"), ("boolean", 0), ("array", {}), ("object", [])],
)
def test_a_value_of_another_type_is_refused(kind: str, value: object) -> None:
    message = f"Error: typed: the argument {kind!r} must be of type {kind}"
    assert BOX.run(ToolCall("typed", {"integer": 1, kind: value})) == ToolResult(message, error=True)


def test_arguments_of_every_type_fit() -> None:
    arguments = {"integer": 1, "number": 2, "boolean": False, "array": [1], "object": {"a": 1}}
    assert BOX.run(ToolCall("typed", arguments)) == ToolResult("fits")
    assert BOX.run(ToolCall("typed", {"integer": 1, "number": 2.5})) == ToolResult("fits")


def test_a_failure_of_ours_is_no_tool_message() -> None:
    with pytest.raises(UserError, match="retriever is down"):
        BOX.run(ToolCall("echo", {"text": "broken"}))


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Toolbox([Echo(), Echo()])


def test_a_schema_with_an_unknown_type_is_refused() -> None:
    tool = Echo()
    tool.schema = {"function": {"name": "echo", "parameters": {"properties": {"text": {"type": "text"}}}}}
    with pytest.raises(ValueError, match="type must be one of"):
        Toolbox([tool])


@given(st.text(), st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_any_call_gets_a_result(name: str, arguments: dict[str, Any]) -> None:
    result = BOX.run(ToolCall(name, arguments))
    assert isinstance(result, ToolResult)
    assert result.error
    result.content.encode()
