"""Sampling with in-flight weight updates; every token records its log-prob, entropy and weight version."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from estr.algorithm.signals import logprob_and_entropy
from estr.embedded.policy import KeyValueCache, Policy

OnSwitch = Literal["retract", "in_place"]


@dataclass(frozen=True)
class Rollout:
    """Responses to a batch of prompts; rows of one prompt are adjacent.

    `prompts`, `prompt_valid` `[rows / group, prompt_length]`; the others `[rows, length]`, right-padded:
    `tokens` int64, `mask` (True on sampled tokens, the closing one included), `logprob` and `entropy` float32 (nats,
    at the sampling temperature), `version` int64 (of the weights that sampled the token; -1 on padding).
    """

    prompts: Tensor
    prompt_valid: Tensor
    tokens: Tensor
    mask: Tensor
    logprob: Tensor
    entropy: Tensor
    version: Tensor


@torch.no_grad()
def sample(
    versions: Sequence[tuple[int, Policy]],
    switch_at: Sequence[int],
    prompts: Tensor,
    prompt_valid: Tensor,
    *,
    group: int,
    max_tokens: int,
    end_id: int,
    pad_id: int,
    generator: torch.Generator,
    temperature: float = 1.0,
    on_switch: OnSwitch = "retract",
) -> Rollout:
    """Sample `group` responses per prompt while the weights change under way.

    `versions` are (version, weights) in the order of use; token positions `switch_at[i] <= t` are sampled by
    `versions[i + 1]`. At a switch the prefix is recomputed under the new weights (`retract`) or the old keys and
    values stay (`in_place`).
    """
    rows = prompts.shape[0] * group
    tokens = torch.full((rows, max_tokens), pad_id)
    version = torch.full((rows, max_tokens), -1)
    logprob, entropy = torch.zeros(rows, max_tokens), torch.zeros(rows, max_tokens)
    mask = torch.zeros(rows, max_tokens, dtype=torch.bool)
    alive = torch.ones(rows, dtype=torch.bool)
    schedule = iter(zip([0, *switch_at], versions, strict=True))
    _, (number, policy) = next(schedule)
    upcoming = next(schedule, None)
    logits, cache = _read_prompt(policy, prompts, prompt_valid, group)
    for t in range(max_tokens):
        while upcoming is not None and upcoming[0] <= t:
            _, (number, policy) = upcoming
            upcoming = next(schedule, None)
            if on_switch == "retract" or t == 0:
                logits, cache = _read_prompt(policy, prompts, prompt_valid, group)
                if t > 0:
                    logits, cache = policy(tokens[:, :t], cache)
            else:
                last = KeyValueCache([(k[:, :, :-1], v[:, :, :-1]) for k, v in cache.layers], cache.valid[:, :-1])
                logits, cache = policy(tokens[:, t - 1 : t], last)
        scores = logits[:, -1].float()
        chosen = torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator)[:, 0]
        chosen_logprob, chosen_entropy = logprob_and_entropy(scores, chosen, temperature)
        tokens[alive, t] = chosen[alive]
        logprob[alive, t], entropy[alive, t] = chosen_logprob[alive], chosen_entropy[alive]
        version[alive, t] = number
        mask[:, t] = alive
        alive = alive & (chosen != end_id)
        if t + 1 == max_tokens or not alive.any():
            break
        logits, cache = policy(tokens[:, t : t + 1], cache)
    return Rollout(prompts, prompt_valid, tokens, mask, logprob, entropy, version)


def _read_prompt(policy: Policy, prompts: Tensor, valid: Tensor, group: int) -> tuple[Tensor, KeyValueCache]:
    logits, cache = policy(prompts, valid=valid)
    return logits[:, -1:].repeat_interleave(group, 0), cache.expand(group)
