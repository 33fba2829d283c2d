"""The warm start: supervised training on a task's demonstrations, from random weights."""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from estr.config import PolicySizes, PretrainSettings
from estr.embedded.policy import Policy, PolicyShape, response_logits, save_policy
from estr.embedded.tokenizer import ChatTokenizer

WARM_UP = 50
FINAL_SHARE = 0.05
BETAS = (0.9, 0.98)
Chat = Sequence[Mapping[str, str]]


def pretrain(
    sizes: PolicySizes,
    settings: PretrainSettings,
    vocabulary: Sequence[str],
    demonstrations: Sequence[tuple[Chat, Chat]],
    folder: Path,
) -> float:
    """Train on (prompt, response) chats, save policy and tokenizer, return the final loss (nats/token).

    A response holds assistant and tool messages; the loss is that of the assistant's tokens.
    """
    torch.manual_seed(settings.seed)
    tokenizer = ChatTokenizer.from_words(vocabulary)
    policy = Policy(PolicyShape(vocab_size=len(tokenizer), **sizes.model_dump())).initialize(settings.seed)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=BETAS
    )
    encoded = [
        (tokenizer.encode(tokenizer.render(prompt)), *tokenizer.encode_dialogue(response))
        for prompt, response in demonstrations
    ]
    rng = random.Random(f"pretrain/{settings.seed}")
    smoothed = math.nan
    bar = tqdm(range(settings.steps), desc="warm start", unit="step", disable=None)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, settings.steps)
        loss = _loss(policy, tokenizer, rng.choices(encoded, k=settings.batch_size))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        smoothed = loss.item() if step == 0 else 0.98 * smoothed + 0.02 * loss.item()
        bar.set_postfix_str(f"loss {smoothed:.3f}")
    save_policy(policy, folder)
    tokenizer.save(folder)
    return smoothed


def _loss(policy: Policy, tokenizer: ChatTokenizer, batch: Sequence[tuple[list[int], list[int], list[bool]]]) -> Tensor:
    """Mean negative log-likelihood of the assistant's tokens, nats per token; rows are (prompt, response, own)."""
    prompts, valid = tokenizer.pad_left([prompt for prompt, _, _ in batch])
    longest = max(len(response) for _, response, _ in batch)
    responses = torch.tensor([ids + [tokenizer.pad_id] * (longest - len(ids)) for _, ids, _ in batch])
    mask = torch.tensor([own + [False] * (longest - len(own)) for _, _, own in batch])
    return F.cross_entropy(response_logits(policy, prompts, valid, responses, mask), responses[mask])


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to `FINAL_SHARE`, as a share of the peak learning rate."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARM_UP) * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)
