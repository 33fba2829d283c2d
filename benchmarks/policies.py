"""The policies that are timed: the laptop scale's sizes, random weights."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from estr.config import load_sizes
from estr.embedded.policy import Policy, PolicyShape, save_policy

TASK = "dapo_math"


def laptop_policy(vocabulary: int, positions: int) -> Policy:
    """The decoder of the laptop scale with weights that spread the next token over a part of the vocabulary."""
    sizes = load_sizes("laptop", TASK).policy.model_dump() | {"max_position_embeddings": positions}
    policy = Policy(PolicyShape(vocab_size=vocabulary, **sizes)).initialize(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(4.0)
    return policy.requires_grad_(False)


def as_transformers(policy: Policy) -> PreTrainedModel:
    """The same weights as `transformers` runs them."""
    with tempfile.TemporaryDirectory() as folder:
        save_policy(policy, Path(folder))
        return AutoModelForCausalLM.from_pretrained(folder).eval()


@dataclass(frozen=True)
class Load:
    """`prompts` prompts of `prompt_length` tokens, `group` responses each of at most `max_tokens` tokens."""

    prompts: int = 16
    group: int = 8
    prompt_length: int = 24
    max_tokens: int = 64
    vocabulary: int = 64

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.max_tokens} tokens, vocabulary {self.vocabulary}"

    def policy(self) -> Policy:
        return laptop_policy(self.vocabulary, self.prompt_length + self.max_tokens + 1)

    def tokens(self) -> Tensor:
        """The prompts, int64 `[prompts, prompt_length]`."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.vocabulary, (self.prompts, self.prompt_length), generator=generator)
