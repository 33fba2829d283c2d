"""The samplers against `transformers.generate` on the same weights: equal lengths, and skewed ones."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from benchmarks.policies import Load, as_transformers
from benchmarks.recording import fill_slots, scheduled_sample, slot_sampler
from benchmarks.timing import Measurement, measured, take_turns
from estr.embedded.concurrent.slots import SlotSampler

GENERATE = "transformers.generate"


class StopAt(StoppingCriteria):
    """Row i ends with its `lengths[i]`-th token; `generate` goes on computing it until the longest row has ended."""

    def __init__(self, prompt_length: int, lengths: Sequence[int]) -> None:
        self.stop = torch.tensor(lengths) + prompt_length

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return self.stop <= input_ids.shape[1]


def generate(model: PreTrainedModel, prompts: Tensor, max_tokens: int, stop: StopAt | None = None) -> Tensor:
    """Plain sampling with a cache, nothing returned but the ids."""
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        generation_config=GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max_tokens, pad_token_id=0
        ),
        stopping_criteria=None if stop is None else StoppingCriteriaList([stop]),
    )


def equal_lengths(load: Load, turns: int) -> list[Measurement]:
    """`generate` in units of each of our samplers, which record log-prob, entropy and version besides."""
    policy = load.policy()
    model, slots = as_transformers(policy), slot_sampler(SlotSampler, load, policy)
    repeated = load.tokens().repeat_interleave(load.group, 0)
    spent = take_turns(
        {
            GENERATE: lambda: generate(model, repeated, load.max_tokens),
            "scheduled": lambda: scheduled_sample(policy, load),
            "continuous batch": lambda: fill_slots(slots, load),
        },
        turns,
    )
    return [
        measured("sampling, equal lengths", str(load), GENERATE, ours, spent[GENERATE], spent[ours]).aim(at_least=1.7)
        for ours in ("scheduled", "continuous batch")
    ]


def skewed_lengths(load: Load, spread: float, waves: int, turns: int) -> list[Measurement]:
    """`waves` times as many responses as there are slots, of lengths that are fixed beforehand by `draw_lengths`.

    `generate` takes them batch by batch and waits for the longest of each; the continuous batch puts the next response
    into the slot that has become free.
    """
    policy = load.policy()
    model, sampler = as_transformers(policy), slot_sampler(SlotSampler, load, policy)
    prompts, lengths = load.tokens(), draw_lengths(load.rows * waves, load.max_tokens, spread)
    batches = [lengths[start : start + load.rows] for start in range(0, len(lengths), load.rows)]
    repeated = prompts.repeat_interleave(load.group, 0)

    def batch_by_batch() -> None:
        for batch in batches:
            generate(model, repeated, load.max_tokens, StopAt(load.prompt_length, batch))

    spent = take_turns({GENERATE: batch_by_batch, "refilled": lambda: refill(sampler, prompts, lengths)}, turns)
    skew = sum(map(max, batches)) * load.rows / sum(lengths)
    case = f"{len(lengths)} responses on {load.rows} slots, longest of a batch {skew:.1f} times the mean"
    found = measured("sampling, skewed lengths", case, GENERATE, "continuous batch", spent[GENERATE], spent["refilled"])
    return [found.aim(at_least=2.5)]


def draw_lengths(count: int, longest: int, spread: float) -> list[int]:
    """Log-normal lengths, sigma `spread`, with `longest` two sigmas above the median; what is longer is cut there."""
    drawn = ((torch.randn(count, generator=torch.Generator().manual_seed(0)) - 2) * spread).exp() * longest
    return drawn.ceil().clamp(1, longest).to(torch.int64).tolist()


def refill(sampler: SlotSampler, prompts: Tensor, lengths: Sequence[int]) -> int:
    """Write a response of every length; response i belongs to prompt i modulo their number. Returns the tokens."""
    read = sampler.read_prompts(prompts.tolist())
    slots = min(sampler.slots, len(lengths))
    sampler.place(range(slots), read, [row % len(prompts) for row in range(slots)])
    left = torch.tensor(lengths[:slots])
    following, tokens = slots, 0
    while sampler.active:
        sampler.step()
        tokens += sampler.active
        left -= 1
        ended = (left == 0).nonzero()[:, 0].tolist()
        if not ended:
            continue
        again = ended[: len(lengths) - following]
        if again:
            numbers = range(following, following + len(again))
            sampler.place(again, read, [number % len(prompts) for number in numbers])
            left[again] = torch.tensor([lengths[number] for number in numbers])
            following += len(again)
        idle = ended[len(again) :]
        for source, target in sampler.drop(idle) if idle else []:
            left[target] = left[source]
        left = left[: sampler.active]
    assert tokens == math.fsum(lengths)
    return tokens
