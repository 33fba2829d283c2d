"""The guard of everything: what the sampler recorded is what the weights say, token by token, version by version."""

from dataclasses import fields
from itertools import pairwise

import pytest
import torch
from test_policy import left_padded

from estr.algorithm.signals import logprob_and_entropy
from estr.embedded.policy import Policy, response_logits
from estr.embedded.sampler import OnSwitch, Rollout, sample
from estr.embedded.trainer import behavior_copy

END, PAD, GROUP, LENGTH = 1, 0, 3, 16
SWITCHES = (3, 4, 9)


def drifted(policy: Policy, count: int) -> list[tuple[int, Policy]]:
    """Versions of a policy whose weights move by several percent each."""
    generator = torch.Generator().manual_seed(5)
    versions = []
    for number in range(count):
        version = behavior_copy(policy)
        for parameter in version.parameters():
            parameter.add_(0.05 * number * torch.randn(parameter.shape, generator=generator) * parameter.std())
        versions.append((10 + number, version))
    return versions


def rollout(policy: Policy, on_switch: OnSwitch, temperature: float = 1.0) -> tuple[Rollout, dict[int, Policy]]:
    versions = drifted(policy, len(SWITCHES) + 1)
    prompts, valid = left_padded(5, 7, policy.shape.vocab_size)
    sampled = sample(
        versions,
        SWITCHES,
        prompts,
        valid,
        group=GROUP,
        max_tokens=LENGTH,
        end_id=END,
        pad_id=PAD,
        generator=torch.Generator().manual_seed(11),
        temperature=temperature,
        on_switch=on_switch,
    )
    return sampled, dict(versions)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rescoring_reproduces_every_version_over_switches(policy: Policy, temperature: float) -> None:
    sampled, versions = rollout(policy, "retract", temperature)
    checked = 0
    for number, weights in versions.items():
        everywhere = torch.ones_like(sampled.mask)
        logits = response_logits(weights, sampled.prompts, sampled.prompt_valid, sampled.tokens, everywhere)
        logits = logits.view(*sampled.tokens.shape, -1)
        logprob, entropy = logprob_and_entropy(logits, sampled.tokens, temperature)
        here = sampled.version == number
        torch.testing.assert_close(sampled.logprob[here], logprob[here], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(sampled.entropy[here], entropy[here], atol=2e-5, rtol=1e-5)
        others = sampled.mask & ~here
        assert (sampled.logprob[others] - logprob[others]).abs().max() > 0.01
        checked += int(here.sum())
    assert checked == int(sampled.mask.sum())


@pytest.mark.parametrize("at_once", [1, 5, 16])
def test_steps_recorded_together_have_the_bits_of_single_ones(
    policy: Policy, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, _ = rollout(policy, "retract", 0.7)
    monkeypatch.setattr("estr.embedded.sampler.AT_ONCE", at_once)
    apart, _ = rollout(policy, "retract", 0.7)
    for field in fields(Rollout):
        assert torch.equal(getattr(together, field.name), getattr(apart, field.name))


def test_in_place_switch_keeps_old_keys_and_values(policy: Policy) -> None:
    sampled, versions = rollout(policy, "in_place")
    bounds = [0, *SWITCHES, LENGTH]
    for (start, stop), (_, weights) in zip(pairwise(bounds), versions.items(), strict=True):
        if start == 0:
            logits, cache = weights(sampled.prompts, valid=sampled.prompt_valid)
            pending, cache = logits[:, -1:].repeat_interleave(GROUP, 0), cache.expand(GROUP)
        else:
            pending, cache = weights(sampled.tokens[:, start - 1 : start], cache)
        rest, grown = weights(sampled.tokens[:, start : stop - 1], cache) if stop - 1 > start else (None, cache)
        logits = pending if rest is None else torch.cat([pending, rest], 1)
        logprob, entropy = logprob_and_entropy(logits, sampled.tokens[:, start:stop], 1.0)
        here = sampled.mask[:, start:stop]
        torch.testing.assert_close(sampled.logprob[:, start:stop][here], logprob[here], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(sampled.entropy[:, start:stop][here], entropy[here], atol=2e-5, rtol=1e-5)
        cache = grown
    retracted, _ = rollout(policy, "retract")
    assert torch.equal(sampled.tokens[:, : SWITCHES[0]], retracted.tokens[:, : SWITCHES[0]])
    assert not torch.equal(sampled.logprob, retracted.logprob)


def test_masks_versions_and_padding(policy: Policy) -> None:
    sampled, _ = rollout(policy, "retract")
    lengths = sampled.mask.sum(1)
    assert lengths.min() < LENGTH
    for row, length in enumerate(lengths.tolist()):
        tokens, mask = sampled.tokens[row], sampled.mask[row]
        assert mask[:length].all() and not mask[length:].any()
        assert (tokens[length:] == PAD).all() and (sampled.version[row, length:] == -1).all()
        assert (tokens[: length - 1] != END).all()
        assert length == LENGTH or tokens[length - 1] == END
    expected = 10 + (torch.arange(LENGTH) >= torch.tensor(SWITCHES)[:, None]).sum(0)
    assert torch.equal(sampled.version[sampled.mask], expected.expand(len(lengths), -1)[sampled.mask])


def test_samples_follow_the_recorded_distribution(policy: Policy) -> None:
    prompts, valid = left_padded(1, 7, policy.shape.vocab_size)
    sampled = sample(
        [(0, policy)],
        [],
        prompts,
        valid,
        group=20_000,
        max_tokens=1,
        end_id=END,
        pad_id=PAD,
        generator=torch.Generator().manual_seed(0),
    )
    logits, _ = policy(prompts, valid=valid)
    expected = logits[0, -1].softmax(-1)
    observed = torch.bincount(sampled.tokens[:, 0], minlength=policy.shape.vocab_size) / 20_000
    assert (observed - expected).abs().max() < 4 * 0.5 / 20_000**0.5


def test_behavior_copy_is_rounded_to_bfloat16_and_close(policy: Policy) -> None:
    copied = behavior_copy(policy)
    for name, tensor in policy.state_dict().items():
        rounded = copied.state_dict()[name]
        assert torch.equal(rounded, tensor.bfloat16().float())
    prompts, valid = left_padded(5, 7, policy.shape.vocab_size)
    with torch.no_grad():
        gap = (policy(prompts, valid=valid)[0] - copied(prompts, valid=valid)[0])[valid].abs()
    assert 0 < gap.max() < 0.5


def scripted(row: int, turn: list[int]) -> list[int] | None:
    """Three turns: after the first two comes tool output, of a length that depends on the row."""
    REPLIES.setdefault(row, []).append(turn)
    return None if len(REPLIES[row]) == 3 else [20 + row % 3] * (2 + row % 2)


REPLIES: dict[int, list[list[int]]] = {}


@pytest.mark.parametrize("on_switch", ["retract", "in_place"])
def test_tool_output_stands_in_the_stream_and_nowhere_else(policy: Policy, on_switch: OnSwitch) -> None:
    REPLIES.clear()
    prompts, valid = left_padded(5, 7, policy.shape.vocab_size)
    versions = drifted(policy, len(SWITCHES) + 1)
    length = 48
    sampled = sample(
        versions,
        SWITCHES,
        prompts,
        valid,
        group=GROUP,
        max_tokens=length,
        end_id=END,
        pad_id=PAD,
        generator=torch.Generator().manual_seed(4),
        on_switch=on_switch,
        reply=scripted,
    )
    assert sum(len(turns) for turns in REPLIES.values()) > 15
    for row, turns in REPLIES.items():
        tokens, mask = sampled.tokens[row].tolist(), sampled.mask[row].tolist()
        at = 0
        for number, turn in enumerate(turns):
            assert tokens[at : at + len(turn) + 1] == [*turn, END] and all(mask[at : at + len(turn) + 1])
            at += len(turn) + 1
            if number < 2:
                output = [20 + row % 3] * (2 + row % 2)
                assert tokens[at : at + len(output)] == output[: len(tokens) - at]
                assert not any(mask[at : at + len(output)])
                at += len(output)
        if len(turns) == 3:
            assert not any(mask[at:])
    outside = ~sampled.mask
    assert (sampled.version[outside] == -1).all()
    assert (sampled.logprob[outside] == 0).all() and (sampled.entropy[outside] == 0).all()
    if on_switch == "retract":
        for number, weights in versions:
            here = sampled.version == number
            logits = response_logits(weights, prompts, valid, sampled.tokens, here)
            logprob, entropy = logprob_and_entropy(logits, sampled.tokens[here], 1.0)
            torch.testing.assert_close(sampled.logprob[here], logprob, atol=2e-5, rtol=1e-5)
            torch.testing.assert_close(sampled.entropy[here], entropy, atol=2e-5, rtol=1e-5)


def test_tool_output_never_passes_the_token_limit(policy: Policy) -> None:
    prompts, valid = left_padded(5, 7, policy.shape.vocab_size)
    sampled = sample(
        [(0, policy)],
        [],
        prompts,
        valid,
        group=40,
        max_tokens=6,
        end_id=END,
        pad_id=PAD,
        generator=torch.Generator().manual_seed(4),
        reply=lambda row, turn: [20] * 9,
    )
    ended = (sampled.tokens == END).any(1)
    assert ended.any() and not ended.all()
    assert sampled.tokens.shape[1] <= 6
    for row in ended.nonzero()[:, 0].tolist():
        end = sampled.tokens[row].tolist().index(END)
        assert not sampled.mask[row, end + 1 :].any()
