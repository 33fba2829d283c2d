"""Groups of dialogues on a continuous batch: prompts go in, scored groups of responses come out."""

import itertools
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from estr.config import RunConfig
from estr.embedded.concurrent.slots import Prompts, Response, SlotSampler
from estr.embedded.dialogue import Dialogues
from estr.embedded.policy import Policy
from estr.embedded.tokenizer import ChatTokenizer
from estr.tasks.base import Problem, Task

READ_AHEAD = 16
"""Groups whose prompts are read at once, before slots are free for all of them."""


@dataclass(frozen=True)
class Group:
    """The finished responses to one prompt, in the form of `Rollout`'s rows.

    `tokens`, `version` int64 and `logprob`, `entropy` float32 are `[group, longest]`, right-padded; version is -1 on
    tool output and padding. `number` counts the groups in the order in which they were begun. Lists have an entry per
    response: `reward`, `started` and `finished` (seconds on the monotonic clock, which all processes share), `resumed`
    (times that it was aborted and went on under new weights).
    """

    number: int
    prompt: Sequence[int]
    tokens: NDArray[np.int64]
    logprob: NDArray[np.float32]
    entropy: NDArray[np.float32]
    version: NDArray[np.int64]
    reward: Sequence[float]
    started: Sequence[float]
    finished: Sequence[float]
    resumed: Sequence[int]

    @property
    def response_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return int((self.version >= 0).sum())


class _OpenGroup:
    """A group that is being generated."""

    def __init__(self, number: int, problem: Problem, prompt: Sequence[int], dialogues: Dialogues, size: int) -> None:
        self.number, self.problem, self.prompt, self.dialogues = number, problem, prompt, dialogues
        self.responses: list[Response | None] = [None] * size
        self.unfinished = size
        self.started, self.finished = [0.0] * size, [0.0] * size
        self.resumed = [0] * size
        self.turn_start = [0] * size


_Member = tuple[_OpenGroup, int]
"""A group and the place of a response in it."""


class Generation:
    """Keeps the slots of a sampler busy with groups of `train.group` responses, up to the `limit`-th group.

    `order` says which problem comes next. `limit` counts from the first group on; who owns the generation raises it.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        problems: Sequence[Problem],
        encoded: Sequence[Sequence[int]],
        tokenizer: ChatTokenizer,
        policy: Policy,
        *,
        slots: int,
        order: Iterator[int],
        seed: int,
    ) -> None:
        self.settings, self.task, self.problems = config.train, task, problems
        self.encoded, self.tokenizer, self.order = encoded, tokenizer, order
        self.sampler = SlotSampler(
            policy,
            version=0,
            slots=slots,
            prompt_length=max(map(len, encoded)),
            max_tokens=config.train.max_tokens,
            end_id=tokenizer.end_id,
            pad_id=tokenizer.pad_id,
            temperature=config.train.temperature,
            generator=torch.Generator().manual_seed(seed),
        )
        self.limit = 0
        self.begun = 0
        self.responses_finished = 0
        self._prompts: Prompts
        self._place_in_prompts: dict[int, int] = {}
        self._waiting: deque[_Member] = deque()
        self._rows: list[_Member] = []

    def switch(self, policy: Policy, version: int) -> None:
        """Abort every response where it stands and let it go on under new weights."""
        self.sampler.load(policy, version)
        for (group, member), written in zip(self._rows, self.sampler.written, strict=True):
            group.resumed[member] += written > 0
        retract = self._rows if self.settings.on_switch == "retract" else []
        groups = {group.number: group for group, _ in [*self._waiting, *retract]}
        if groups:
            self._read(groups.values())
        if retract:
            self.sampler.retract(self._prompts, [self._place_in_prompts[group.number] for group, _ in retract])

    def advance(self) -> list[Group] | None:
        """Sample a token in every slot; returns the groups that are complete by that, or None if no slot is in use."""
        self._refill([])
        if not self._rows:
            return None
        ended = self.sampler.step()
        if not ended:
            return []
        now = time.monotonic()
        outputs, free, complete = {}, [], []
        for row, response in zip(ended, self.sampler.responses(ended), strict=True):
            group, member = self._rows[row]
            output = self._tool_output(group, member, response)
            if output is not None:
                outputs[row] = output
                continue
            free.append(row)
            group.responses[member], group.finished[member] = response, now
            group.unfinished -= 1
            if group.unfinished == 0:
                complete.append(self._close(group))
        if outputs:
            self.sampler.append(outputs)
        if free:
            self.responses_finished += len(free)
            self._refill(free)
        return complete

    def _tool_output(self, group: _OpenGroup, member: int, response: Response) -> Sequence[int] | None:
        """What a tool says to the turn that a response has just ended; None if the response is over."""
        tokens = response.tokens
        if tokens[-1] != self.tokenizer.end_id:
            return None
        output = group.dialogues.reply(member, tokens[group.turn_start[member] : -1].tolist())
        if output is None or len(tokens) + len(output) >= self.settings.max_tokens:
            return None
        group.turn_start[member] = len(tokens) + len(output)
        return output

    def _refill(self, free: list[int]) -> None:
        """Put the next responses into the slots that are free: `free`, and all that are not in use."""
        sampler = self.sampler
        rows = free + list(range(sampler.active, sampler.slots))
        now = time.monotonic()
        while rows and (self._waiting or self._begin()):
            count = min(len(rows), len(self._waiting))
            members = [self._waiting.popleft() for _ in range(count)]
            sampler.place(rows[:count], self._prompts, [self._place_in_prompts[group.number] for group, _ in members])
            for row, (group, member) in zip(rows[:count], members, strict=True):
                group.started[member] = now
                self._rows[row : row + 1] = [(group, member)]
            rows = rows[count:]
        unused = [row for row in rows if row < sampler.active]
        if unused:
            for source, target in sampler.drop(unused):
                self._rows[target] = self._rows[source]
            del self._rows[sampler.active :]

    def _begin(self) -> bool:
        """Read the prompts of the next groups; False if the limit allows none."""
        size = self.settings.group
        groups = []
        for number in range(self.begun, min(self.begun + READ_AHEAD, self.limit)):
            index = next(self.order)
            problem = self.problems[index]
            dialogues = Dialogues(self.task, self.tokenizer, [problem] * size)
            groups.append(_OpenGroup(number, problem, self.encoded[index], dialogues, size))
        if not groups:
            return False
        self.begun += len(groups)
        self._waiting.extend(itertools.product(groups, range(size)))
        self._read(groups)
        return True

    def _read(self, groups: Iterable[_OpenGroup]) -> None:
        self._place_in_prompts = {group.number: place for place, group in enumerate(groups)}
        self._prompts = self.sampler.read_prompts([group.prompt for group in groups])

    def _close(self, group: _OpenGroup) -> Group:
        responses = [response for response in group.responses if response is not None]
        longest = max(len(response.tokens) for response in responses)

        def padded(name: str, fill: float) -> NDArray[Any]:
            rows = [getattr(response, name) for response in responses]
            table = np.full((len(rows), longest), fill, rows[0].dtype)
            for row, values in zip(table, rows, strict=True):
                row[: len(values)] = values
            return table

        tokens, version = padded("tokens", self.tokenizer.pad_id), padded("version", -1)
        finals = group.dialogues.finals(torch.from_numpy(tokens), torch.from_numpy(version >= 0))
        return Group(
            number=group.number,
            prompt=group.prompt,
            tokens=tokens,
            logprob=padded("logprob", 0),
            entropy=padded("entropy", 0),
            version=version,
            reward=[self.task.reward(text, group.problem.ground_truth) for text in finals],
            started=group.started,
            finished=group.finished,
            resumed=group.resumed,
        )


def shuffled(count: int, seed: int) -> Iterator[int]:
    """0..count-1 in random order, again and again."""
    rng = random.Random(f"concurrent/{seed}")
    while True:
        yield from rng.sample(range(count), count)
