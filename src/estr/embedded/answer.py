"""Answers of a stored policy to evaluation problems."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from estr.config import EvaluationSettings
from estr.embedded.policy import load_policy
from estr.embedded.sampler import sample
from estr.embedded.tokenizer import ChatTokenizer
from estr.embedded.trainer import behavior_copy
from estr.tasks.base import Problem

CHUNK = 128


def answer(
    policy_folder: Path, problems: Sequence[Problem], settings: EvaluationSettings, max_tokens: int
) -> list[list[str]]:
    """`settings.samples` responses per problem, sampled by the rollout engine's copy of the policy."""
    policy = behavior_copy(load_policy(policy_folder))
    tokenizer = ChatTokenizer.load(policy_folder)
    generator = torch.Generator().manual_seed(settings.seed)
    answers: list[list[str]] = []
    bar = tqdm(total=len(problems), desc="evaluate", unit="problem", disable=None)
    for start in range(0, len(problems), CHUNK):
        chunk = problems[start : start + CHUNK]
        prompts, valid = tokenizer.pad_left([tokenizer.encode(tokenizer.render(p.prompt)) for p in chunk])
        rollout = sample(
            [(0, policy)],
            [],
            prompts,
            valid,
            group=settings.samples,
            max_tokens=max_tokens,
            end_id=tokenizer.end_id,
            pad_id=tokenizer.pad_id,
            generator=generator,
            temperature=settings.temperature,
        )
        texts = [tokenizer.decode(row.tolist()) for row in rollout.tokens]
        answers += [texts[i : i + settings.samples] for i in range(0, len(texts), settings.samples)]
        bar.update(len(chunk))
    bar.close()
    return answers
