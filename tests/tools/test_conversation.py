from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.tools.base import ToolError, ToolResult, function_schema
from estr.tools.conversation import Conversation, Limits
from estr.tools.hermes import ToolCall, render_tool_call
from estr.tools.toolbox import Toolbox

PIECES = st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "look", "arguments": {"at": "a"}}', "{", "text"])


class Look:
    name = "look"
    schema = function_schema("look", "Looks at documents.", at="their ids, separated by blanks")

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        if arguments["at"] == "nothing":
            raise ToolError("there is nothing")
        return ToolResult(f"you see {arguments['at']}", documents=tuple(arguments["at"].split()))


def start(turns: int = 4, tokens: int = 100) -> Conversation:
    return Conversation(Toolbox([Look()]), Limits(turns, tokens), lambda text, limit: " ".join(text.split()[:limit]))


def look(at: str) -> str:
    return render_tool_call(ToolCall("look", {"at": at}))


def test_a_dialogue_of_three_turns() -> None:
    talk = start()
    assert talk.reply(f"first {look('a b')} then {look('b c')}") == ["you see a b", "you see b c"]
    assert talk.reply(look("a d")) == ["you see a d"]
    assert talk.reply("the answer") is None
    assert talk.status == "completed"
    assert talk.final == "the answer"
    assert talk.turns == 3
    assert talk.tool_calls == {"look": 3}
    assert talk.tool_errors == 0
    assert talk.documents == ("a", "b", "c", "d")


def test_a_dialogue_that_goes_on_is_running() -> None:
    talk = start()
    talk.reply(look("a"))
    assert talk.status == "running"


def test_errors_are_counted_and_invented_tools_are_not_listed() -> None:
    talk = start()
    unknown = render_tool_call(ToolCall("fly", {}))
    messages = talk.reply(look("nothing") + unknown + "<tool_call>{</tool_call>" + look("a"))
    assert messages is not None
    assert messages[0] == "Error: look: there is nothing"
    assert messages[1] == "Error: there is no tool 'fly'; the tools are look"
    assert messages[2].startswith("Error: not valid JSON")
    assert messages[3] == "you see a"
    assert talk.tool_calls == {"look": 2}
    assert talk.tool_errors == 3


def test_the_last_turn_allowed_ends_the_dialogue_and_its_call_is_not_run() -> None:
    talk = start(turns=2)
    assert talk.reply(look("a")) == ["you see a"]
    assert talk.reply(look("b")) is None
    assert talk.status == "turn_limit"
    assert talk.final == look("b")
    assert talk.tool_calls == {"look": 1}
    assert talk.documents == ("a",)


def test_an_answer_in_the_last_turn_allowed_is_complete() -> None:
    talk = start(turns=1)
    assert talk.reply("42") is None
    assert talk.status == "completed"


def test_every_tool_message_is_cut() -> None:
    assert start(tokens=3).reply(look("a b c") + "<tool_call>") == ["you see a", "Error: <tool_call> without"]


def test_without_tools_the_first_turn_is_the_last() -> None:
    talk = Conversation(None, Limits(5, 5), lambda text, limit: text)
    assert talk.reply(look("a")) is None
    assert talk.status == "completed"
    assert talk.turns == 1


def test_a_dialogue_that_is_over_takes_no_turn() -> None:
    talk = start()
    talk.reply("done")
    with pytest.raises(RuntimeError, match="over"):
        talk.reply("again")


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=8, max_size=8), st.integers(1, 8))
def test_every_dialogue_ends_within_its_turns(texts: list[str], turns: int) -> None:
    talk = start(turns=turns)
    for number, text in enumerate(texts, start=1):
        messages = talk.reply(text)
        assert talk.turns == number
        if messages is None:
            break
        assert messages
        assert talk.status == "running"
    assert talk.turns <= turns
    assert talk.status == ("turn_limit" if "<tool_call>" in talk.final else "completed")
