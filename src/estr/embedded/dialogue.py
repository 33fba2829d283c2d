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
        toolboxes = [task.toolbox(problem) for problem in problems]
        self.with_tools = any(toolbox is not None for toolbox in toolboxes)
        self.conversations = [Conversation(toolbox, task.limits, first_words) for toolbox in toolboxes]

    def reply(self, row: int, turn: list[int]) -> Sequence[int] | None:
        """`estr.embedded.sampler.Reply`."""
        contents = self.conversations[row].reply(self.tokenizer.decode(turn))
        return None if contents is None else self.tokenizer.tool_turn(tuple(contents))

    def finals(self, tokens: Tensor, mask: Tensor) -> list[str]:
        """The text of each row's last turn, from which its answer is read.

        A single turn that the token limit cut counts as far as it goes. A dialogue with tools that did not come to its
        end has no answer, as in BrowseComp-Plus: its text is empty. `tokens` and `mask` are `[rows, length]`, those of
        the rollout.
        """
        finals = []
        for conversation, row, own in zip(self.conversations, tokens, mask, strict=True):
            if conversation.status == "completed":
                finals.append(conversation.final)
            else:
                finals.append("" if self.with_tools else self.tokenizer.decode(row[own].tolist()))
        return finals
