"""Answers of a policy to evaluation problems."""

import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import torch

from estr.config import EvaluationSettings
from estr.embedded.dialogue import Dialogues
from estr.embedded.policy import Policy, behavior_copy, load_policy
from estr.embedded.sampler import sample
from estr.embedded.tokenizer import ChatTokenizer
from estr.evaluation.sample import Sample
from estr.tasks.base import Problem, Task

CHUNK = 128


class EmbeddedEngine:
    """Samples dialogues with a behavior copy. Equal problems get equal answers, whichever of them are wanted.

    A chunk of the problems is sampled as a whole, with random numbers that depend on its first problem's index: an
    evaluation that was interrupted within it samples it again.
    """

    label = "embedded"

    def __init__(
        self, policy: Policy, tokenizer: ChatTokenizer, task: Task, settings: EvaluationSettings, max_tokens: int
    ) -> None:
        self.policy, self.tokenizer = policy, tokenizer
        self.task, self.settings, self.max_tokens = task, settings, max_tokens

    @classmethod
    def load(cls, folder: Path, task: Task, settings: EvaluationSettings, max_tokens: int) -> "EmbeddedEngine":
        """The engine of a stored policy: its behavior copy answers."""
        return cls(behavior_copy(load_policy(folder)), ChatTokenizer.load(folder), task, settings, max_tokens)

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        """Yields (position in `problems`, its `k` samples) in rising order."""
        for start, positions in groupby(sorted(wanted), lambda position: position - position % CHUNK):
            samples = self._sample(problems[start : start + CHUNK], k)
            for position in positions:
                offset = position - start
                yield position, samples[offset * k : (offset + 1) * k]

    def _sample(self, chunk: Sequence[Problem], k: int) -> list[Sample]:
        encoded = [self.tokenizer.encode(self.tokenizer.render(problem.prompt)) for problem in chunk]
        prompts, valid = self.tokenizer.pad_left(encoded)
        dialogues = Dialogues(self.task, self.tokenizer, [problem for problem in chunk for _ in range(k)])
        rollout = sample(
            [(0, self.policy)],
            [],
            prompts,
            valid,
            group=k,
            max_tokens=min(self.max_tokens, self.policy.shape.max_position_embeddings - prompts.shape[1]),
            end_id=self.tokenizer.end_id,
            pad_id=self.tokenizer.pad_id,
            generator=torch.Generator().manual_seed(
                random.Random(f"evaluate/{self.settings.seed}/{chunk[0].index}").getrandbits(63)
            ),
            temperature=self.settings.temperature,
            reply=dialogues.reply,
        )
        finals = dialogues.finals(rollout.tokens, rollout.mask)
        lengths = rollout.mask.sum(1).tolist()
        return [
            Sample(
                text=text,
                turns=conversation.turns,
                tool_calls=dict(conversation.tool_calls),
                tool_errors=conversation.tool_errors,
                tokens=length,
                status="token_limit" if conversation.status == "running" else conversation.status,
                documents=conversation.documents,
            )
            for text, conversation, length in zip(finals, dialogues.conversations, lengths, strict=True)
        ]
