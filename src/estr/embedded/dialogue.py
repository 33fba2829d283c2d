"""The dialogues of a batch of rows: sampled ids become turns, tools are run, their output becomes ids again."""

from collections.abc import Sequence

from torch import Tensor

from estr.embedded.tokenizer import ChatTokenizer
from estr.tasks.base import Problem, Task
from estr.tasks.laptop import first_words
from estr.tools.conversation import Conversation


class Dialogues:
    """One `Conversation` per row; `problems` holds the problem of each row."""

    def __init__(self, task: Task, tokenizer: ChatTokenizer, problems: Sequence[Problem]) -> None:
        self.tokenizer = tokenizer
        self.conversations = [Conversation(task.toolbox(problem), task.limits, first_words) for problem in problems]

    def reply(self, row: int, turn: list[int]) -> Sequence[int] | None:
        """`estr.embedded.sampler.Reply`."""
        contents = self.conversations[row].reply(self.tokenizer.decode(turn))
        return None if contents is None else self.tokenizer.tool_turn(tuple(contents))

    def finals(self, tokens: Tensor, mask: Tensor) -> list[str]:
        """The text of each row's last turn; one that the token limit cut counts as far as it goes.

        `tokens` and `mask` are `[rows, length]`, those of the rollout.
        """
        return [
            self._unfinished(row, own) if conversation.status == "running" else conversation.final
            for conversation, row, own in zip(self.conversations, tokens.tolist(), mask.tolist(), strict=True)
        ]

    def _unfinished(self, row: list[int], own: list[bool]) -> str:
        end = len(row) - own[::-1].index(True)
        start = end
        while start > 0 and own[start - 1]:
            start -= 1
        return self.tokenizer.decode(row[start:end]) if row[end - 1] != self.tokenizer.end_id else ""
