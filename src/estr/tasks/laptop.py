"""What the laptop counterparts share: problems drawn by hash into disjoint splits, turns with a tool's output."""

import hashlib
import random
from collections.abc import Callable
from typing import TypeVar

from estr.errors import UserError
from estr.tasks.base import Message
from estr.tools.hermes import parse_tool_calls
from estr.tools.toolbox import Toolbox

DRAWS_PER_PROBLEM = 200
EVAL_BYTES = 26  # of 256: about a tenth of all problems
Answer = TypeVar("Answer")


def draw_distinct(
    task: str, draw: Callable[[random.Random], tuple[str, Answer]], split: str, count: int, seed: int
) -> list[tuple[str, Answer]]:
    """`count` distinct problems (text, answer) of the split ("train" or "eval"); equal arguments, equal problems.

    A problem belongs to the split that the hash of its text names, so train and evaluation never overlap.

    Raises:
        UserError: the generator has too few distinct problems.
    """
    rng = random.Random(f"{task}/{split}/{seed}")
    found: dict[str, Answer] = {}
    for _ in range(DRAWS_PER_PROBLEM * count):
        if len(found) == count:
            return list(found.items())
        text, answer = draw(rng)
        if split_of(text) == split:
            found.setdefault(text, answer)
    raise UserError(f"{task}: its sizes give only {len(found)} of {count} {split} problems")


def split_of(text: str) -> str:
    """The split that a problem's text belongs to."""
    return "eval" if hashlib.sha256(text.encode()).digest()[0] < EVAL_BYTES else "train"


def call_and_output(toolbox: Toolbox, call: str) -> list[Message]:
    """A demonstrated tool call and what the real tool says to it."""
    [parsed] = parse_tool_calls(call)
    return [
        {"role": "assistant", "content": call},
        {"role": "tool", "content": toolbox.run(parsed).content},
    ]


def first_words(text: str, tokens: int) -> str:
    """The first `tokens` words of a tool's output: a laptop policy's tokens are words."""
    words = text.split()
    return text if len(words) <= tokens else " ".join(words[:tokens])
