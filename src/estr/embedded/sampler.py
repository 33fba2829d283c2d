"""Sampling with in-flight weight updates; every token records its log-prob, entropy and weight version."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from estr.algorithm.signals import logprob_and_entropy
from estr.embedded.policy import KeyValueCache, Policy

AT_ONCE = 4
"""Steps whose log-probs and entropies are computed together; their scores are kept for so long."""
OnSwitch = Literal["retract", "in_place"]
Reply = Callable[[int, list[int]], Sequence[int] | None]
"""(row, ids of the turn it has just ended) -> ids of the tool output that follows, or None: the row is finished."""


@dataclass(frozen=True)
class Rollout:
    """Responses to a batch of prompts; rows of one prompt are adjacent.

    `prompts`, `prompt_valid` `[rows / group, prompt_length]`; the others `[rows, length]`, right-padded:
    `tokens` int64, `mask` (True on sampled tokens, those that close a turn included; False on tool output and
    padding), `logprob` and `entropy` float32 (nats, at the sampling temperature), `version` int64 (of the weights that
    sampled the token). Where the mask is False, version is -1 and logprob and entropy are 0.
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
    reply: Reply = lambda row, turn: None,
) -> Rollout:
    """Sample `group` responses of at most `max_tokens` per prompt while the weights change under way.

    `versions` are (version, weights) in the order of use; token positions `switch_at[i] <= t` are sampled by
    `versions[i + 1]`. At a switch the prefix is recomputed under the new weights (`retract`) or the old keys and
    values stay (`in_place`). When a row ends a turn, `reply` says what is written after it; positions count those
    tokens as well, and so does `max_tokens`.
    """
    rows = prompts.shape[0] * group
    tokens = torch.full((rows, max_tokens), pad_id)
    written = torch.full((rows, max_tokens), -1)  # tool output, where it is known already
    used = [-1] * max_tokens  # the version at each position
    logprob, entropy = torch.zeros(rows, max_tokens), torch.zeros(rows, max_tokens)
    mask = torch.zeros(rows, max_tokens, dtype=torch.bool)
    alive = torch.ones(rows, dtype=torch.bool)
    turn_start = [0] * rows
    steps: list[tuple[int, Tensor, Tensor]] = []
    schedule = iter(zip([0, *switch_at], versions, strict=True))
    _, (number, policy) = next(schedule)
    upcoming = next(schedule, None)
    hidden, cache = _read_prompt(policy, prompts, prompt_valid, group, max_tokens)
    t = 0
    while t < max_tokens:
        while upcoming is not None and upcoming[0] <= t:
            _, (number, policy) = upcoming
            upcoming = next(schedule, None)
            if on_switch == "retract" or t == 0:
                hidden, cache = _read_prompt(policy, prompts, prompt_valid, group, max_tokens)
                if t > 0:
                    hidden, cache = policy.read(tokens[:, :t], cache)
            else:
                hidden, cache = policy.read(tokens[:, t - 1 : t], cache.without_last())
        scores = policy.head(hidden[:, -1])
        chosen = _draw(scores / temperature, generator)
        steps.append((t, scores, chosen))
        if len(steps) == AT_ONCE:
            _record(steps, temperature, logprob, entropy)
        own = alive & (written[:, t] < 0)
        tokens[:, t] = torch.where(own, chosen, tokens[:, t])
        used[t] = number
        mask[:, t] = own
        for row in (own & (chosen == end_id)).nonzero()[:, 0].tolist():
            following = reply(row, tokens[row, turn_start[row] : t].tolist())
            if following is None:
                alive[row] = False
                continue
            turn_start[row] = t + 1 + len(following)
            shown = torch.tensor(following[: max_tokens - t - 1])
            tokens[row, t + 1 : t + 1 + len(shown)] = written[row, t + 1 : t + 1 + len(shown)] = shown
        if not alive.any():
            break
        # positions where no row samples need no step of their own, up to the next version switch
        end, limit = t + 1, max_tokens if upcoming is None else upcoming[0]
        while end < min(limit, max_tokens) and bool(((written[:, end] >= 0) | ~alive).all()):
            end += 1
        if end == max_tokens:
            break
        hidden, cache = policy.read(tokens[:, t:end], cache)
        t = end
    _record(steps, temperature, logprob, entropy)
    version = torch.where(mask, torch.tensor(used), -1)
    logprob.masked_fill_(~mask, 0)
    entropy.masked_fill_(~mask, 0)
    columns = (tokens, mask, logprob, entropy, version)
    longest = int(mask.any(0).nonzero()[-1]) + 1
    return Rollout(prompts, prompt_valid, *(column[:, :longest] for column in columns))


def _read_prompt(policy: Policy, prompts: Tensor, valid: Tensor, group: int, room: int) -> tuple[Tensor, KeyValueCache]:
    hidden, cache = policy.read(prompts, valid=valid)
    return hidden[:, -1:].repeat_interleave(group, 0), cache.expand(group, room)


def _record(steps: list[tuple[int, Tensor, Tensor]], temperature: float, logprob: Tensor, entropy: Tensor) -> None:
    """Fill the columns of `steps` (position, scores `[rows, vocab]`, chosen `[rows]`), which are forgotten."""
    if not steps:
        return
    positions, scores, chosen = zip(*steps, strict=True)
    at = torch.tensor(positions)
    columns = logprob_and_entropy(torch.stack(scores, 1), torch.stack(chosen, 1), temperature)
    for column, values in zip((logprob, entropy), columns, strict=True):
        column.index_copy_(1, at, values)
    steps.clear()


def _draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row `[rows]` from softmax(logits `[rows, vocab]`), by inversion: one random number a row."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    uniform = torch.rand(len(logits), 1, dtype=torch.float64, generator=generator) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, uniform, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
