"""What both ways of working share: the run's parts, and an update from groups of responses."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from estr.algorithm.advantage import group_normalized_advantage
from estr.algorithm.objective import objective
from estr.algorithm.signals import TokenSignals
from estr.config import RunConfig, keep_rule
from estr.embedded.concurrent.generation import Generation, Group, shuffled
from estr.embedded.optimizer import AdamW
from estr.embedded.policy import Policy, load_policy
from estr.embedded.sampler import Rollout
from estr.embedded.score import score
from estr.embedded.tokenizer import ChatTokenizer
from estr.errors import UserError
from estr.tasks.base import Problem, Task


@dataclass(frozen=True)
class Recipe:
    """What a process needs to take part in a run; it can be pickled. `encoded` are the prompts of `problems`."""

    config: RunConfig
    task: Task
    problems: Sequence[Problem]
    encoded: Sequence[Sequence[int]]
    warm_start: Path

    @classmethod
    def prepare(cls, config: RunConfig, task: Task, problems: Sequence[Problem], warm_start: Path) -> "Recipe":
        """Raises `UserError` if the training problems or the policy's positions do not suffice."""
        tokenizer, settings = ChatTokenizer.load(warm_start), config.train
        encoded = [tokenizer.encode(tokenizer.render(problem.prompt)) for problem in problems]
        if settings.prompts > len(problems):
            raise UserError(f"train.prompts = {settings.prompts}, but the training set has {len(problems)} problems")
        needed = max(map(len, encoded)) + settings.max_tokens
        there = load_policy(warm_start).shape.max_position_embeddings
        if needed > there:
            raise UserError(
                f"train.max_tokens = {settings.max_tokens}: prompt and response need {needed} positions, "
                f"policy.max_position_embeddings is {there}"
            )
        return cls(config, task, problems, encoded, warm_start)

    def policy(self) -> Policy:
        """The warm start."""
        return load_policy(self.warm_start)

    def generation(self, policy: Policy, slots: int, part: int = 0, parts: int = 1) -> Generation:
        """Responses to every `parts`-th problem of the run's order, from the `part`-th on."""
        seed = self.config.seed
        return Generation(
            self.config,
            self.task,
            self.problems,
            self.encoded,
            ChatTokenizer.load(self.warm_start),
            policy,
            slots=slots,
            order=itertools.islice(shuffled(len(self.problems), seed), part, None, parts),
            seed=random.Random(f"concurrent/{seed}/{part}").getrandbits(63),
        )


class Learner:
    """The policy that is trained; `version` counts its updates."""

    def __init__(self, recipe: Recipe) -> None:
        self.settings, self.rule = recipe.config.train, keep_rule(recipe.config)
        self.policy = recipe.policy()
        self.optimizer = AdamW(self.policy.parameters(), self.settings.learning_rate, self.settings.weight_decay)
        self.version = 0

    def backward(self, groups: Sequence[Group], response_tokens: int | None = None) -> TokenSignals:
        """The gradient of the objective (Eq. 19) on these groups; `response_tokens` are those of the whole batch.

        A rule that looks at a batch (`second_moment`) looks at these groups.
        """
        settings = self.settings
        reward = torch.tensor([reward for group in groups for reward in group.reward])
        members = torch.arange(len(groups)).repeat_interleave(settings.group)
        advantage = group_normalized_advantage(reward, members)
        signals = score(self.policy, collate(groups), advantage, settings.temperature)
        output = objective(
            signals,
            self.rule,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            response_tokens=response_tokens,
        )
        self.optimizer.zero_grad()
        output.loss.backward()
        return signals

    def step(self) -> None:
        clip_grad_norm_(self.policy.parameters(), self.settings.grad_norm_limit)
        self.optimizer.step()
        self.version += 1


def collate(groups: Sequence[Group]) -> Rollout:
    """Groups as the rows of one rollout; padding holds token 0, which nothing reads."""
    length = max(group.tokens.shape[1] for group in groups)
    longest = max(len(group.prompt) for group in groups)

    def rows(name: str, fill: float) -> Tensor:
        tables = [getattr(group, name) for group in groups]
        padded = [np.pad(table, ((0, 0), (0, length - table.shape[1])), constant_values=fill) for table in tables]
        return torch.from_numpy(np.concatenate(padded))

    version = rows("version", -1)
    return Rollout(
        prompts=torch.tensor([[0] * (longest - len(group.prompt)) + list(group.prompt) for group in groups]),
        prompt_valid=torch.arange(longest) >= torch.tensor([[longest - len(group.prompt)] for group in groups]),
        tokens=rows("tokens", 0),
        mask=version >= 0,
        logprob=rows("logprob", 0),
        entropy=rows("entropy", 0),
        version=version,
    )
