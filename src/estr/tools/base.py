"""What a tool is, and what a call of it gives back."""

from dataclasses import dataclass
from typing import Any, Protocol


class ToolError(Exception):
    """A foreseen bad call; the message is what the policy reads, so it is short and says what was wrong."""


@dataclass(frozen=True)
class ToolResult:
    """`content` is the tool message; `documents` the ids of the documents it shows, best first."""

    content: str
    error: bool = False
    documents: tuple[str, ...] = ()


class Tool(Protocol):
    """A function that a policy may call.

    `schema` is an OpenAI function schema (`{"type": "function", "function": {"name", "description", "parameters"}}`)
    with flat parameters. `call` gets arguments that already fit it, and raises `ToolError` for what a schema cannot
    say. Any other exception is a failure of ours (a retriever that is down) and stops the dialogue.
    """

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> dict[str, Any]: ...

    def call(self, arguments: dict[str, Any]) -> ToolResult: ...


def function_schema(name: str, description: str, **arguments: str) -> dict[str, Any]:
    """OpenAI schema of a function whose arguments are all required strings, given as name=description."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": text} for key, text in arguments.items()},
                "required": list(arguments),
            },
        },
    }
