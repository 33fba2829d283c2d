"""The keep-gated clipped policy objective (Eq. 19) and its gradient (Eq. 48)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from estr.algorithm.diagnostics import EXPONENT_LIMIT, check_clip, check_mask, diagnose
from estr.algorithm.rules import KeepRule
from estr.algorithm.signals import TokenSignals, indicator, weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ObjectiveOutput:
    """Loss (scalar, with gradient), the mask applied (bool [batch, length]) and the numbers of `diagnose`."""

    loss: Tensor
    keep: Tensor
    diagnostics: dict[str, float]


def objective(
    signals: TokenSignals,
    rule: KeepRule,
    *,
    clip_low: float = 0.20,
    clip_high: float = 0.28,
    response_tokens: int | None = None,
    keep: Tensor | None = None,
) -> ObjectiveOutput:
    """L = -1/sum_i|o_i| sum_{i,t} M_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) (Eq. 19).

    The mask is a stop-gradient gate: a masked token adds exactly nothing to loss and gradient, but still
    counts in the denominator. For k micro-batches of one batch, pass the batch's `response_tokens` and the
    part of its mask; the k losses then sum to the loss of the batch, and `diagnose` on the whole batch gives
    its diagnostics.

    Args:
        signals: the tokens; the gradient flows through `target_logprob`.
        rule: decides the mask, unless `keep` is given.
        clip_low: epsilon_low of the clip, in [0, 1).
        clip_high: epsilon_high of the clip, >= 0.
        response_tokens: response tokens of the global batch, kept or not; default: those of `signals`.
        keep: precomputed mask, bool [batch, length].

    Raises:
        ValueError: a clip range out of bounds, fewer `response_tokens` than `signals` has, or a malformed
        `keep`.
    """
    check_clip(clip_low, clip_high)
    local_tokens = signals.response_tokens
    denominator = local_tokens if response_tokens is None else response_tokens
    if denominator < local_tokens:
        raise ValueError(f"response_tokens = {denominator}, but these signals alone have {local_tokens}")
    if keep is None:
        keep = rule.keep(signals)
    check_mask(keep, signals)
    keep = keep & signals.usable

    loss = _loss(signals, keep, clip_low, clip_high, max(denominator, 1))
    diagnostics = diagnose(signals, keep, clip_low=clip_low, clip_high=clip_high)
    if diagnostics["nonfinite_fraction"] > 0:
        _log_nonfinite(signals)
    return ObjectiveOutput(loss, keep, diagnostics)


def _loss(signals: TokenSignals, keep: Tensor, clip_low: float, clip_high: float, tokens: int) -> Tensor:
    """Eq. 19 with the gradient of Eq. 48; a masked token is one of advantage 0."""
    log_ratio = signals.log_ratio.detach().nan_to_num()
    exponent = log_ratio.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    ratio = exponent.exp()
    advantage = signals.advantage.nan_to_num() * weights(keep, log_ratio.dtype)
    free, clipped = ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    value = -torch.minimum(free, clipped).sum() / tokens
    # 1 where the gradient is not cut: C_t (Eq. 47), and a ratio that is within the limit
    passes = indicator(torch.le, free, clipped).mul_(indicator(torch.eq, exponent, log_ratio))
    gradient = advantage.mul_(-1 / tokens).mul_(ratio).mul_(passes)
    loss: Tensor = _WithGradient.apply(signals.target_logprob, value, gradient)  # type: ignore[no-untyped-call]
    return loss


class _WithGradient(torch.autograd.Function):
    """A scalar whose gradient with respect to the log-probs is known in closed form (Eq. 48)."""

    @staticmethod
    def forward(context: Any, logprob: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(context: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the objective has no second derivative: its gradient is a constant of autograd's graph")
        (gradient,) = context.saved_tensors
        return scale * gradient, None, None


def _log_nonfinite(signals: TokenSignals) -> None:
    bad = (signals.response_mask & ~signals.finite).nonzero()
    row, position = bad[0].tolist()
    logger.warning(
        "non-finite signals on %d response tokens, first at sequence %d, position %d: behavior_logprob %s, "
        "target_logprob %s, entropy %s, advantage %s; they are not kept",
        len(bad),
        row,
        position,
        *(
            float(values[row, position].detach())
            for values in (
                signals.behavior_logprob,
                signals.target_logprob,
                signals.entropy,
                signals.advantage,
            )
        ),
    )
