"""The per-token signals that every keep rule, the objective and the diagnostics read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

ENTROPY_ROUNDING = 1e-6
"""Entropies down to minus this many nats count as a zero that was rounded; below, the signal is invalid."""

_FLOAT_FIELDS = ("behavior_logprob", "target_logprob", "entropy", "advantage")


@dataclass(frozen=True, eq=False)
class TokenSignals:
    """Signals of a right-padded batch of trajectories; every field is [batch, length].

    Half-precision floats are promoted to float32, float64 is kept. Only `target_logprob` carries a gradient:
    the behavior policy and the advantage are constants of the update (Eq. 45), so they are detached here.
    Positions outside `response_mask` may hold anything, NaN included.

    Attributes:
        behavior_logprob: log mu(y_t) under the weights that sampled the token, in nats.
        target_logprob: log pi_theta(y_t) under the weights being trained, in nats.
        entropy: H_t (Eq. 8) of the behavior policy's full distribution at the sampling temperature, in nats.
        advantage: A_t, one value per token.
        response_mask: bool, True on tokens the policy generated, False on prompt, tool output and padding.
        weight_version: int64, version of the weights that sampled the token.

    Raises:
        ValueError: a field has the wrong type, or the shapes differ.
    """

    behavior_logprob: Tensor
    target_logprob: Tensor
    entropy: Tensor
    advantage: Tensor
    response_mask: Tensor
    weight_version: Tensor

    def __post_init__(self) -> None:
        shape = self.behavior_logprob.shape
        if len(shape) != 2:
            raise ValueError(f"behavior_logprob must be [batch, length], got shape {tuple(shape)}")
        for field in fields(self):
            value: Tensor = getattr(self, field.name)
            if value.shape != shape:
                raise ValueError(f"{field.name} has shape {tuple(value.shape)}, behavior_logprob has {tuple(shape)}")
        for name in _FLOAT_FIELDS:
            value = getattr(self, name)
            if not value.is_floating_point():
                raise ValueError(f"{name} must be a float tensor, got {value.dtype}")
            if value.dtype in (torch.bfloat16, torch.float16):
                value = value.float()
            object.__setattr__(self, name, value if name == "target_logprob" else value.detach())
        if self.response_mask.dtype != torch.bool:
            raise ValueError(f"response_mask must be bool, got {self.response_mask.dtype}")
        if self.weight_version.dtype != torch.int64:
            raise ValueError(f"weight_version must be int64, got {self.weight_version.dtype}")

    @property
    def log_ratio(self) -> Tensor:
        """delta_t = log pi_theta(y_t) - log mu(y_t) (Eq. 7), in nats, never clamped."""
        return self.target_logprob - self.behavior_logprob

    @cached_property
    def finite(self) -> Tensor:
        """Bool [batch, length]: log-probs, entropy and advantage are finite, the entropy not negative."""
        # a mean is finite if and only if its terms are, and minus itself 0 only then: one test instead of four
        total = self.behavior_logprob / 4
        for signal in (self.target_logprob.detach(), self.entropy, self.advantage):
            total = torch.add(total, signal, alpha=0.25)
        nonnegative = indicator(torch.ge, self.entropy, -ENTROPY_ROUNDING)
        return indicator(torch.eq, total.sub_(total), 0.0).mul_(nonnegative).bool()

    @cached_property
    def usable(self) -> Tensor:
        """Bool [batch, length]: response tokens with finite signals, the only ones a rule may keep."""
        return self.response_mask & self.finite

    @property
    def response_tokens(self) -> int:
        """sum_i |o_i|, the number of response tokens: the denominator of Eq. 19."""
        return int(self.response_mask.sum())

    def detach(self) -> TokenSignals:
        """The same signals without the gradient of `target_logprob`."""
        return TokenSignals(*(getattr(self, field.name).detach() for field in fields(self)))

    def select(self, rows: slice | Sequence[int] | Tensor) -> TokenSignals:
        """The trajectories at `rows`, with their gradient."""
        return TokenSignals(*(getattr(self, field.name)[rows] for field in fields(self)))

    def micro_batches(self, count: int) -> list[TokenSignals]:
        """The trajectories in `count` consecutive parts, cut where `keep.tensor_split(count)` cuts a mask.

        Raises:
            ValueError: `count` is not between 1 and the number of trajectories.
        """
        batch = len(self.response_mask)
        if not 1 <= count <= batch:
            raise ValueError(f"cannot split {batch} trajectories into {count} micro-batches")
        return [self.select(rows) for rows in torch.arange(batch).tensor_split(count)]


def indicator(compare: Callable[..., Tensor], left: Tensor, right: Tensor | float) -> Tensor:
    """1 where `compare` (a torch comparison) holds, 0 elsewhere, in the dtype of `left`; no gradient.

    On a CPU it takes a quarter of the time of a comparison that writes bools.
    """
    return compare(left, right, out=torch.empty_like(left))


def weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as 0 and 1, to weigh a sum with; on a CPU in a quarter of the time of `mask.to(dtype)`."""
    return mask.view(torch.uint8).to(dtype)


def entropy_from_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """H = -sum_w mu(w) log mu(w) of mu = softmax(logits / temperature) (Eq. 8), in nats.

    A logit of -inf is a token of probability 0 and adds nothing. Rows with NaN, +inf, or only -inf give NaN.

    Args:
        logits: float [..., vocabulary]; half precision is promoted to float32.
        temperature: sampling temperature, > 0.

    Returns:
        float32 [...] (float64 for float64 logits), >= 0.
    """
    return _entropy(_log_softmax(logits, temperature))


def token_logprob(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of `tokens` under softmax(logits / temperature), in nats; arguments as `logprob_and_entropy`."""
    return _log_softmax(logits, temperature).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def logprob_and_entropy(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of `tokens` and entropy (Eq. 8) of softmax(logits / temperature), both in nats.

    Args:
        logits: float [..., vocabulary]; half precision is promoted to float32.
        tokens: int64 [...].
        temperature: sampling temperature, > 0.

    Returns:
        (logprob, entropy), both float32 [...] (float64 for float64 logits).
    """
    log_probabilities = _log_softmax(logits, temperature)
    return log_probabilities.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), _entropy(log_probabilities)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return torch.log_softmax(logits / temperature, dim=-1)


def _entropy(log_probabilities: Tensor) -> Tensor:
    # below the floor, -inf included, a probability is 0 in float64 as well, and so is its product
    return -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(-1)
