"""A sampler step that records entropy and weight version of every token against one that does not."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.policies import Load
from benchmarks.timing import Measurement, measured, take_turns
from estr.algorithm import token_logprob
from estr.embedded.concurrent.slots import SlotSampler
from estr.embedded.policy import Policy
from estr.embedded.sampler import AT_ONCE, _draw, _read_prompt, sample

NO_END = -1
"""No token has this id: every row is as long as it may be."""
AT_MOST = 1.02


class SilentSlotSampler(SlotSampler):
    """`SlotSampler` whose steps record log-probs alone."""

    @torch.inference_mode()
    def step(self) -> list[int]:
        length = self._length[: self.active]
        last = self._first_cell[: self.active] + length - 1
        scores = self.weights.scores(self._tokens.view(-1)[last], length - 1, self._cache)
        log_probability = scores.log_softmax(-1)
        cumulative = log_probability.exp().cumsum(-1, dtype=torch.float64)
        uniform = torch.rand(self.active, 1, dtype=torch.float64, generator=self.generator) * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, uniform, right=True).clamp_(max=scores.shape[1] - 1)
        cell = last + 1
        self._tokens.view(-1).index_copy_(0, cell, chosen[:, 0])
        self._logprob.view(-1).index_copy_(0, cell, log_probability.gather(-1, chosen)[:, 0])
        length += 1
        over = length - self._prompt_length[: self.active] >= self.max_tokens
        ended: list[int] = ((chosen[:, 0] == self.end_id) | over).nonzero()[:, 0].tolist()
        return ended


@torch.no_grad()
def silent_sample(policy: Policy, prompts: Tensor, group: int, max_tokens: int, generator: torch.Generator) -> Tensor:
    """`estr.embedded.sampler.sample` without switches and tools, recording log-probs alone; returns the tokens."""
    rows = prompts.shape[0] * group
    tokens, written = torch.zeros(rows, max_tokens, dtype=torch.int64), torch.full((rows, max_tokens), -1)
    logprob, mask = torch.zeros(rows, max_tokens), torch.zeros(rows, max_tokens, dtype=torch.bool)
    alive = torch.ones(rows, dtype=torch.bool)
    steps: list[tuple[int, Tensor, Tensor]] = []

    def record() -> None:
        positions, scores, chosen = zip(*steps, strict=True)
        logprob.index_copy_(1, torch.tensor(positions), token_logprob(torch.stack(scores, 1), torch.stack(chosen, 1)))
        steps.clear()

    valid = torch.ones_like(prompts, dtype=torch.bool)
    hidden, cache = _read_prompt(policy, prompts, valid, group, max_tokens)
    for t in range(max_tokens):
        scores = policy.head(hidden[:, -1])
        chosen = _draw(scores / 1.0, generator)
        steps.append((t, scores, chosen))
        if len(steps) == AT_ONCE:
            record()
        own = alive & (written[:, t] < 0)
        tokens[:, t] = torch.where(own, chosen, tokens[:, t])
        mask[:, t] = own
        for row in (own & (chosen == NO_END)).nonzero()[:, 0].tolist():
            alive[row] = False
        if not alive.any() or t + 1 == max_tokens:
            break
        bool(((written[:, t + 1] >= 0) | ~alive).all())
        hidden, cache = policy.read(tokens[:, t : t + 1], cache)
    if steps:
        record()
    logprob.masked_fill_(~mask, 0)
    return tokens


def slot_sampler(kind: type[SlotSampler], load: Load, policy: Policy, slots: int | None = None) -> SlotSampler:
    return kind(
        policy,
        version=0,
        slots=load.rows if slots is None else slots,
        prompt_length=load.prompt_length,
        max_tokens=load.max_tokens,
        end_id=NO_END,
        pad_id=0,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
    )


def fill_slots(sampler: SlotSampler, load: Load) -> Tensor:
    """Write a response of `max_tokens` tokens in every slot; returns prompts and responses."""
    start_over(sampler, load)
    while not sampler.step():
        pass
    return sampler._tokens


def start_over(sampler: SlotSampler, load: Load) -> None:
    """Put the load's prompts into all slots."""
    prompts = sampler.read_prompts(load.tokens().tolist())
    sampler.place(range(load.rows), prompts, [row // load.group for row in range(load.rows)])


def scheduled_sample(policy: Policy, load: Load) -> Tensor:
    """The same with the sampler of scheduled mode; returns the responses."""
    prompts = load.tokens()
    rollout = sample(
        [(0, policy)],
        [],
        prompts,
        torch.ones_like(prompts, dtype=torch.bool),
        group=load.group,
        max_tokens=load.max_tokens,
        end_id=NO_END,
        pad_id=0,
        generator=torch.Generator().manual_seed(0),
    )
    return rollout.tokens


STEPS = 16
"""Turns of single steps per turn of whole responses."""


def per_step(load: Load, turns: int) -> list[Measurement]:
    """With recording in units of without: single steps of the continuous batch, whole responses of scheduled mode."""
    policy = load.policy()
    recording, silent = (slot_sampler(kind, load, policy) for kind in (SlotSampler, SilentSlotSampler))

    def silently() -> Tensor:
        return silent_sample(policy, load.tokens(), load.group, load.max_tokens, torch.Generator().manual_seed(0))

    def scheduled() -> Tensor:
        return scheduled_sample(policy, load)

    if not torch.equal(fill_slots(recording, load), fill_slots(silent, load)):
        raise AssertionError("continuous batch: recording changed what was sampled")
    if not torch.equal(scheduled(), silently()):
        raise AssertionError("scheduled: recording changed what was sampled")
    start_over(recording, load)
    start_over(silent, load)
    return [
        _compare("continuous batch, a step", load, _stepping(recording, load), _stepping(silent, load), turns * STEPS),
        _compare("scheduled, responses", load, scheduled, silently, turns),
    ]


def _stepping(sampler: SlotSampler, load: Load) -> Callable[[], None]:
    """One step; the last one of the responses starts them over."""

    def call() -> None:
        if sampler.step():
            start_over(sampler, load)

    return call


def _compare(
    sampler: str, load: Load, recording: Callable[[], object], silent: Callable[[], object], turns: int
) -> Measurement:
    spent = take_turns({"recording": recording, "silent": silent}, turns)
    found = measured("recording", str(load), sampler, "the same without", spent["recording"], spent["silent"])
    return found.aim(at_most=AT_MOST)
