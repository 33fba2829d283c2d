"""The continuous batch: whatever happened to a slot before, a row is what the policy alone says about it."""

import random
from itertools import islice, pairwise

import pytest
import torch
from test_agentic import Calling
from test_sampler import drifted

from estr.algorithm.signals import logprob_and_entropy
from estr.config import RunConfig
from estr.embedded.concurrent.generation import Generation, shuffled
from estr.embedded.concurrent.slots import Response, SlotSampler
from estr.embedded.policy import Policy, PolicyShape, response_logits
from estr.embedded.sampler import OnSwitch
from estr.embedded.tokenizer import ChatTokenizer

END, PAD, LENGTH, TEMPERATURE = 1, 0, 20, 0.7


def sampler(policy: Policy, slots: int, max_tokens: int = LENGTH) -> SlotSampler:
    return SlotSampler(
        policy,
        version=0,
        slots=slots,
        prompt_length=7,
        max_tokens=max_tokens,
        end_id=END,
        pad_id=PAD,
        temperature=TEMPERATURE,
        generator=torch.Generator().manual_seed(0),
    )


def prompts(policy: Policy, count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(2, policy.shape.vocab_size) for _ in range(2 + index % 6)] for index in range(count)]


def assert_recorded(prompt: list[int], response: Response, versions: dict[int, Policy]) -> None:
    tokens, version = torch.from_numpy(response.tokens)[None], torch.from_numpy(response.version)
    shown, everywhere = torch.tensor([prompt]), torch.ones_like(tokens, dtype=torch.bool)
    for number in version[version >= 0].unique().tolist():
        with torch.no_grad():
            logits = response_logits(
                versions[number], shown, torch.ones_like(shown, dtype=torch.bool), tokens, everywhere
            )
        logprob, entropy = logprob_and_entropy(logits, tokens[0], TEMPERATURE)
        here = version == number
        torch.testing.assert_close(torch.from_numpy(response.logprob)[here], logprob[here], atol=5e-5, rtol=1e-5)
        torch.testing.assert_close(torch.from_numpy(response.entropy)[here], entropy[here], atol=5e-5, rtol=1e-5)


def test_rows_are_refilled_moved_answered_and_retracted_without_a_trace(policy: Policy) -> None:
    """Anything at random, for 300 steps; every finished row is scored again under the weights of its versions."""
    rng = random.Random(2)
    asked, batch = prompts(policy, 6), sampler(policy, slots=6)
    versions = dict(drifted(policy, 12))
    batch.load(versions[10], 10)
    read = batch.read_prompts(asked)
    batch.place(range(6), read, range(6))
    owners = list(range(6))
    finished: list[tuple[int, Response]] = []
    moves = answers = 0
    for step in range(1, 300):
        if step % 30 == 0:
            batch.load(versions[batch.version + 1], batch.version + 1)
            read = batch.read_prompts(asked)
            batch.retract(read, owners)
        ended = batch.step()
        outputs, over = {}, []
        for row, response in zip(ended, batch.responses(ended) if ended else [], strict=True):
            if response.tokens[-1] == END and len(response.tokens) < LENGTH - 6 and rng.random() < 0.6:
                outputs[row] = [rng.randrange(2, 29) for _ in range(rng.randrange(1, 6))]
            else:
                over.append(row)
                finished.append((owners[row], response))
        if outputs:
            batch.append(outputs)
            answers += len(outputs)
        if over and rng.random() < 0.5:
            drawn = [rng.randrange(6) for _ in over]
            batch.place(over, read, drawn)
            for row, owner in zip(over, drawn, strict=True):
                owners[row] = owner
        elif over:
            for source, target in batch.drop(over):
                owners[target] = owners[source]
                moves += 1
            del owners[batch.active :]
        if batch.active < 3:
            drawn = [rng.randrange(6) for _ in range(6 - batch.active)]
            batch.place(range(batch.active, 6), read, drawn)
            owners += drawn
        assert batch.active == len(owners) == len(batch.written)
    assert moves > 5 and answers > 10 and len(finished) > 60
    assert sum(len(set(response.version[response.version >= 0])) > 1 for _, response in finished) > 10
    for owner, response in finished:
        own = response.version[response.version >= 0]
        assert (own[1:] >= own[:-1]).all() and len(response.tokens) <= LENGTH
        assert_recorded(asked[owner], response, versions)


def test_in_place_keeps_the_old_keys_and_values(policy: Policy) -> None:
    (_, old), (_, new) = drifted(policy, 2)
    [prompt], batch = prompts(policy, 1), sampler(policy, slots=1)
    batch.load(old, 0)
    batch.place([0], batch.read_prompts([prompt]), [0])
    for step in range(6):
        if step == 3:
            batch.load(new, 1)
        batch.step()
    [response] = batch.responses([0])
    tokens = torch.from_numpy(response.tokens)[None]
    with torch.no_grad():
        first, cache = old(torch.cat([torch.tensor([prompt]), tokens[:, :2]], 1))
        second, _ = new(tokens[:, 2:5], cache)
    logits = torch.cat([first[:, len(prompt) - 1 :], second], 1)[0]
    logprob, entropy = logprob_and_entropy(logits, tokens[0], TEMPERATURE)
    torch.testing.assert_close(torch.from_numpy(response.logprob), logprob, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(torch.from_numpy(response.entropy), entropy, atol=2e-5, rtol=1e-5)


def test_a_refilled_slot_samples_the_distribution_of_its_own_prompt(policy: Policy) -> None:
    asked, batch = prompts(policy, 2), sampler(policy, slots=100, max_tokens=1)
    read = batch.read_prompts(asked)
    counts = torch.zeros(2, policy.shape.vocab_size)
    for turn in range(100):
        which = [(row + turn) % 2 for row in range(100)]
        batch.place(range(100), read, which)
        assert batch.step() == list(range(100))
        for prompt, response in zip(which, batch.responses(range(100)), strict=True):
            counts[prompt, response.tokens[0]] += 1
    for prompt, observed in zip(asked, counts, strict=True):
        logits, _ = policy(torch.tensor([prompt]))
        expected = (logits[0, -1] / TEMPERATURE).softmax(-1)
        assert (observed / observed.sum() - expected).abs().max() < 4 * 0.5 / 5000**0.5
    assert (counts[0] / counts[0].sum() - counts[1] / counts[1].sum()).abs().max() > 0.1


def fresh(tokenizer: ChatTokenizer) -> Policy:
    return Policy(PolicyShape(len(tokenizer), 16, 32, 1, 2, 2, 64)).initialize(0)


def dialogues(config: RunConfig, on_switch: OnSwitch = "retract") -> Generation:
    task = Calling()
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    settings = config.train.model_copy(update={"max_tokens": 40, "group": 3, "on_switch": on_switch})
    problems = task.problems("train", 40, 0)
    return Generation(
        config.model_copy(update={"train": settings}),
        task,
        problems,
        [tokenizer.encode(tokenizer.render(problem.prompt)) for problem in problems],
        tokenizer,
        fresh(tokenizer),
        slots=8,
        order=shuffled(40, 0),
        seed=0,
    )


def test_generation_pauses_at_its_limit_and_goes_on_when_it_rises(tiny_config: RunConfig) -> None:
    generation, numbers = dialogues(tiny_config), []
    for limit in (0, 1, 20, 21):
        generation.limit = limit
        while (complete := generation.advance()) is not None:
            numbers += [group.number for group in complete]
        assert sorted(numbers) == list(range(limit)) and generation.begun == limit
        assert generation.responses_finished == 3 * limit


@pytest.mark.parametrize("on_switch", ["retract", "in_place"])
def test_an_aborted_response_is_counted_and_goes_on(tiny_config: RunConfig, on_switch: OnSwitch) -> None:
    generation, groups = dialogues(tiny_config, on_switch), []
    generation.limit = 12
    for step in range(10_000):
        if step % 5 == 4:
            generation.switch(fresh(generation.tokenizer), step)
        complete = generation.advance()
        if complete is None:
            break
        groups += complete
    assert len(groups) == 12
    for group in groups:
        for version, resumed in zip(group.version, group.resumed, strict=True):
            own = version[version >= 0]
            assert len(set(own)) == 1 + resumed
            assert all(a == b or (b + 1) % 5 == 0 for a, b in pairwise(own))
    assert max(times for group in groups for times in group.resumed) > 1


def test_every_problem_comes_once_before_any_comes_again() -> None:
    order = list(islice(shuffled(7, 3), 21))
    assert all(sorted(order[start : start + 7]) == list(range(7)) for start in (0, 7, 14))
    assert order[:7] != order[7:14] and order == list(islice(shuffled(7, 3), 21))
