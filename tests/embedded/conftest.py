from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from estr.config import RunConfig, resolve
from estr.embedded.policy import Policy, PolicyShape, save_policy
from estr.embedded.tokenizer import ChatTokenizer
from estr.tasks.dapo_math_laptop import DapoMathLaptop

torch.set_num_threads(1)


@dataclass(frozen=True)
class EvenWords(DapoMathLaptop):
    """Rewards an even number of words, so that an untrained policy gets mixed rewards."""

    def reward(self, response: str, ground_truth: str) -> float:
        return float(len(response.split()) % 2 == 0)


@pytest.fixture
def shape() -> PolicyShape:
    return PolicyShape(
        vocab_size=29,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )


@pytest.fixture
def policy(shape: PolicyShape) -> Policy:
    """Random weights large enough for distributions far from uniform."""
    policy = Policy(shape).initialize(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(4.0)
    return policy


@pytest.fixture
def task() -> DapoMathLaptop:
    return EvenWords(steps=3, largest_term=3, largest_total=6)


@pytest.fixture
def tiny_config() -> RunConfig:
    """ESTR at smoke scale, shrunk to seconds: intra 3, inter 2, checkpoints every 4 of 12 steps."""
    config = resolve("smoke", "dapo_math", "estr__inter=2__intra=3__tau=0.001", 1)
    train = config.train.model_copy(
        update={
            "steps": 12,
            "prompts": 4,
            "group": 4,
            "checkpoint_every": 4,
            "tokens_first": 3,
            "tokens_every": 5,
        }
    )
    return config.model_copy(update={"train": train})


@pytest.fixture
def warm_start(tmp_path: Path, task: DapoMathLaptop) -> Path:
    """An untrained policy folder."""
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    folder = tmp_path / "warm_start"
    save_policy(Policy(PolicyShape(vocab_size=len(tokenizer), **sizes, **heads)).initialize(0), folder)
    tokenizer.save(folder)
    return folder
