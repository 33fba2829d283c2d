import pytest

from estr.tools.answer_check import AnswerCheck
from estr.tools.base import ToolResult
from estr.tools.hermes import ToolCall
from estr.tools.toolbox import Toolbox


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("72", "1.0"), ("#### 72", "1.0"), ("71", "0.0"), ("", "0.0"), ("#### ", "0.0"), ("it is 72", "1.0")],
)
def test_the_tool_tells_the_reward_in_the_words_of_verl(answer: str, reward: str) -> None:
    box = Toolbox([AnswerCheck("72")])
    result = box.run(ToolCall("calc_gsm8k_reward", {"answer": answer}))
    assert result == ToolResult(f"Current parsed answer={answer!r} reward={reward}")


def test_a_number_must_be_written_as_text() -> None:
    result = Toolbox([AnswerCheck("72")]).run(ToolCall("calc_gsm8k_reward", {"answer": 72}))
    assert result.error
    assert "must be of type string" in result.content


def test_a_hostile_answer_gets_a_verdict() -> None:
    result = Toolbox([AnswerCheck("72")]).run(ToolCall("calc_gsm8k_reward", {"answer": "9" * 10_000 + "\0\u202e"}))
    assert result.content.endswith("reward=0.0")
