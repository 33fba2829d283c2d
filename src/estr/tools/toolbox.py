"""The tools of one dialogue, and the guard between them and what a policy wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from estr.tools.base import Tool, ToolError, ToolResult
from estr.tools.hermes import MalformedCall, ToolCall

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True)
class _Parameters:
    types: dict[str, str]
    required: tuple[str, ...]


class Toolbox:
    """Runs calls by name. Raises `ValueError` for two tools of one name or a parameter type that is not in JSON."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise ValueError("two tools have the same name")
        self._parameters = {tool.name: _read_parameters(tool.schema) for tool in tools}

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI function schemas, for the chat template's `tools`."""
        return [tool.schema for tool in self._tools.values()]

    def run(self, call: ToolCall | MalformedCall) -> ToolResult:
        """The tool's result, or an error message for the policy; never raises for what a policy wrote."""
        if isinstance(call, MalformedCall):
            return _error(call.reason)
        tool = self._tools.get(call.name)
        if tool is None:
            return _error(f"there is no tool {_short(call.name)}; the tools are {', '.join(self._tools)}")
        wrong = _check(call.arguments, self._parameters[call.name])
        if wrong:
            return _error(f"{call.name}: {wrong}")
        try:
            return tool.call(call.arguments)
        except ToolError as error:
            return _error(f"{call.name}: {error}")


def _read_parameters(schema: dict[str, Any]) -> _Parameters:
    parameters = schema["function"]["parameters"]
    types = {key: str(field["type"]) for key, field in parameters["properties"].items()}
    if not set(types.values()) <= set(_TYPES):
        raise ValueError(f"{schema['function']['name']}: a parameter's type must be one of {', '.join(_TYPES)}")
    return _Parameters(types, tuple(parameters.get("required", ())))


def _check(arguments: dict[str, Any], parameters: _Parameters) -> str | None:
    for key in parameters.required:
        if key not in arguments:
            return f"the argument {key!r} is missing"
    for key, value in arguments.items():
        expected = parameters.types.get(key)
        if expected is None:
            return f"there is no argument {_short(key)}; the arguments are {', '.join(parameters.types)}"
        # bool is an int in Python, not in JSON
        if not isinstance(value, _TYPES[expected]) or (isinstance(value, bool) and expected != "boolean"):
            return f"the argument {key!r} must be of type {expected}"
    return None


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "...")


def _error(message: str) -> ToolResult:
    return ToolResult(f"Error: {message}", error=True)
