"""Keep rule, objective and diagnostics against the plain clipped loss, forward and backward."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.policies import laptop_policy
from benchmarks.timing import Measurement, measured, plus, take_turns
from estr.algorithm import EntropyScaled, KeepRule, TokenSignals, build_rule, diagnose, objective, token_logprob
from estr.embedded.policy import response_logits

PLAIN = "plain clipped loss"
CLIP_LOW, CLIP_HIGH = 0.20, 0.28
RULES: dict[str, KeepRule] = {
    "keep_all": build_rule("keep_all"),
    "entropy_scaled": build_rule("entropy_scaled"),
    "ratio_interval": build_rule("ratio_interval"),
    "binary_kl": build_rule("binary_kl"),
    "second_moment": build_rule("second_moment"),
    "second_moment, budget 0.002": build_rule("second_moment", budget=0.002),
    "fixed_magnitude": build_rule("fixed_magnitude", c=0.6931),
    "exploration_preserving": build_rule("exploration_preserving", c=0.6931),
    "outlier_suppressing": build_rule("outlier_suppressing", c=0.6931),
}
"""At the published thresholds these signals lose up to 3 % of their tokens; a budget of 0.002 costs them 9 %."""


PASS_BYTES = 30_000_000
"""A tensor of this size is freed before the timing, as any pass of a model does: from then on the allocator keeps
freed memory of up to twice as much. Else every call fetches its memory anew, and either arm times page faults."""


def draw_signals(batch: int, length: int) -> TokenSignals:
    """Responses of half to all of `length` tokens, log-ratios that grow with entropy and have a heavy tail."""
    generator = torch.Generator().manual_seed(0)

    def uniform() -> Tensor:
        return torch.rand(batch, length, generator=generator)

    entropy = 3 * uniform() ** 3
    behavior = -2 * (entropy + 1e-3) * uniform() - 1e-4
    noise = torch.randn(batch, length, generator=generator) * (0.08 + 0.8 * (uniform() < 0.01))
    lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
    return TokenSignals(
        behavior_logprob=behavior,
        target_logprob=(behavior + noise * (entropy + 0.01).sqrt()).clamp(max=-1e-6).requires_grad_(),
        entropy=entropy,
        advantage=torch.randn(batch, 1, generator=generator).expand(batch, length),
        response_mask=torch.arange(length) < lengths,
        weight_version=torch.zeros(batch, length, dtype=torch.int64),
    )


def plain_loss(signals: TokenSignals, kept: Tensor | None = None) -> Tensor:
    """The PPO clip, averaged over the response tokens; `kept` gates it."""
    ratio, advantage = signals.log_ratio.exp(), signals.advantage
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
    return -(surrogate * (signals.response_mask if kept is None else kept)).sum() / signals.response_mask.sum()


def masked_loss(signals: TokenSignals) -> Tensor:
    """The plain loss behind ESTR's mask in its barest form: no check of the signals, no diagnostics."""
    scaled = signals.log_ratio.detach().square() / (signals.entropy + 0.01)
    return plain_loss(signals, signals.response_mask & (scaled <= 1.6))


def alone(batch: int, length: int, turns: int) -> list[Measurement]:
    """Every rule's loss with diagnostics in units of the plain loss; the second-moment budget may cost twice it."""
    case = f"[{batch}, {length}]"
    torch.zeros(PASS_BYTES, dtype=torch.uint8)
    spent = take_turns(_arms(draw_signals(batch, length)), turns)
    found = [
        measured("objective", case, arm, PLAIN, spent[arm], spent[PLAIN]) for arm in ("bare mask", "diagnose", *RULES)
    ]
    return [
        each.aim(at_most=2.0 if each.arm.startswith("second_moment") else 1.3) if each.arm in RULES else each
        for each in found
    ]


def in_a_step(batch: int, length: int, rows: int, turns: int) -> list[Measurement]:
    """The same as part of an update of the laptop's policy on that batch, in units of the update with the plain loss.

    The update's forward and backward pass is timed on a micro-batch of `rows` rows and taken `batch / rows` times;
    sampling is left out, which makes the share larger than it is.
    """
    arms = _arms(draw_signals(batch, length)) | {"pass": _policy_pass(rows, length)}
    spent = take_turns(arms, turns)
    plain = plus(spent[PLAIN], spent["pass"], batch / rows)
    return [
        measured(
            "objective in an update",
            f"[{batch}, {length}]",
            arm,
            PLAIN,
            plus(spent[arm], spent["pass"], batch / rows),
            plain,
        ).aim(at_most=1.002)
        for arm in RULES
    ]


def _arms(drawn: TokenSignals) -> dict[str, Callable[[], object]]:
    leaf = drawn.target_logprob

    def backward(loss: Callable[[TokenSignals], Tensor]) -> Callable[[], None]:
        def call() -> None:
            leaf.grad = None
            loss(replace(drawn)).backward()  # signals that nothing has looked at yet

        return call

    kept = EntropyScaled().keep(drawn)

    def rule_loss(rule: KeepRule) -> Callable[[TokenSignals], Tensor]:
        return lambda signals: objective(signals, rule, clip_low=CLIP_LOW, clip_high=CLIP_HIGH).loss

    return {
        PLAIN: backward(plain_loss),
        "bare mask": backward(masked_loss),
        "diagnose": lambda: diagnose(replace(drawn), kept),
        **{name: backward(rule_loss(rule)) for name, rule in RULES.items()},
    }


def _policy_pass(rows: int, length: int) -> Callable[[], None]:
    """Log-probs of `rows` responses to a prompt of 8 tokens, and their gradient."""
    vocabulary = 64
    policy = laptop_policy(vocabulary, length + 8).requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(vocabulary, (1, 8), generator=generator)
    responses = torch.randint(vocabulary, (rows, length), generator=generator)
    mask = torch.ones_like(responses, dtype=torch.bool)

    def call() -> None:
        policy.zero_grad()
        logits = response_logits(policy, prompt, torch.ones_like(prompt, dtype=torch.bool), responses, mask)
        token_logprob(logits, responses[mask]).sum().backward()

    return call
