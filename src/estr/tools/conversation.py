"""The dialogue between a policy and its tools, whichever engine samples the turns."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from estr.tools.hermes import ToolCall, parse_tool_calls
from estr.tools.toolbox import Toolbox


@dataclass(frozen=True)
class Limits:
    """`turns` counts assistant turns; `tool_output_tokens` bounds each tool message."""

    turns: int
    tool_output_tokens: int


class Conversation:
    """The state of one dialogue: feed it each finished assistant turn, append the tool messages it returns.

    `truncate(text, tokens)` cuts a tool message in the engine's own tokens.
    """

    def __init__(self, toolbox: Toolbox | None, limits: Limits, truncate: Callable[[str, int], str]) -> None:
        self._toolbox = toolbox
        self._limits = limits
        self._truncate = truncate
        self._documents: dict[str, None] = {}  # an ordered set
        self.final = ""
        """Text of the last assistant turn."""
        self.turns = 0
        self.tool_calls: Counter[str] = Counter()
        """Calls that were run, by name of an existing tool (a policy's invented names are errors only)."""
        self.tool_errors = 0
        """Tool messages that reported an error."""
        self.status: Literal["running", "completed", "turn_limit"] = "running"

    @property
    def documents(self) -> tuple[str, ...]:
        """Ids of the documents that tools returned, each once, in the order first seen."""
        return tuple(self._documents)

    def reply(self, text: str) -> list[str] | None:
        """Take one finished assistant turn; returns the tool messages to append, one per call, or None at the end.

        The dialogue is over after a turn without a call ("completed") and after the last turn allowed; a call in
        that turn is not run ("turn_limit"). Raises `RuntimeError` if it was over before.
        """
        if self.status != "running":
            raise RuntimeError(f"the dialogue is over ({self.status})")
        self.final = text
        self.turns += 1
        calls = parse_tool_calls(text) if self._toolbox else []
        if self._toolbox is None or not calls:
            self.status = "completed"
            return None
        if self.turns >= self._limits.turns:
            self.status = "turn_limit"
            return None
        messages = []
        for call in calls:
            result = self._toolbox.run(call)
            if isinstance(call, ToolCall) and call.name in self._toolbox:
                self.tool_calls[call.name] += 1
            self.tool_errors += result.error
            self._documents.update(dict.fromkeys(result.documents))
            messages.append(self._truncate(result.content, self._limits.tool_output_tokens))
        return messages
