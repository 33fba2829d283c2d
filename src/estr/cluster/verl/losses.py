"""Every keep rule as a policy loss of verl. The formulas are `estr.algorithm`'s; here they meet verl's tensors.

verl hands a registered loss the log-probs, advantages and the mask of a micro-batch. Entropy and weight version reach
it around verl's `ppo_loss` (`with_columns`), which keeps its KL and entropy terms, its normalization and its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from estr.algorithm import ObjectiveOutput, TokenSignals, objective
from estr.cluster.loss_modes import LOSS_MODES
from estr.cluster.sums import DIVISORS
from estr.cluster.verl.columns import FIELD, OUTSIDE, MissingColumns, TokenColumns
from estr.cluster.verl.record import Recorder, padded, per_trajectory
from estr.cluster.verl.settings import keep_rule
from estr.cluster.verl.sums import largest, token_sums, trajectory_sums
from estr.cluster.verl.updates import CLOCK

Loss = Callable[..., tuple[Tensor, dict[str, Any]]]
LIVE = {name: name for name in (*DIVISORS["response_tokens"], *DIVISORS["usable"])} | {
    "masked_entropy": "masked_entropy_per_token",
    "kept_entropy": "kept_entropy_per_token",
}
"""What is logged while verl trains, by its name below `estr/`; the last two, divided by the masked and the kept
fraction, are the mean entropies of those tokens."""


@dataclass
class _MicroBatch:
    """What `with_columns` hands to the loss around verl, and what it gets back."""

    columns: Sequence[TokenColumns | MissingColumns | None]
    behavior_logprob: Tensor
    target_entropy: Tensor | None = None
    signals: TokenSignals | None = None
    output: ObjectiveOutput | None = None


_current: ContextVar[_MicroBatch | None] = ContextVar("estr_micro_batch", default=None)


def with_columns(ppo_loss: Loss) -> Loss:
    """verl's `ppo_loss`, giving our losses the columns and adding their diagnostics as `estr/...` metrics."""

    def with_estr(
        config: Any, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        if config.policy_loss.get("loss_mode", "vanilla") not in LOSS_MODES:
            return ppo_loss(config=config, model_output=model_output, data=data, dp_group=dp_group)
        entropy = model_output.get("entropy")  # of the trained policy, with actor.calculate_entropy=True
        batch = _MicroBatch(
            trajectory_columns(data),
            _behavior_logprob(data),
            None if entropy is None else no_padding_2_padding(entropy, data).detach(),
        )
        token = _current.set(batch)
        try:
            loss, metrics = ppo_loss(config=config, model_output=model_output, data=data, dp_group=dp_group)
        finally:
            _current.reset(token)
        metrics.update(_metrics(batch, config, data))
        return loss, metrics

    return with_estr


def keep_gated_loss(
    loss_mode: str,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Eq. 19 on one micro-batch, as verl calls a policy loss; all tensors [batch, length].

    The behavior policy is the one that sampled (`rollout_log_probs`), so `old_log_prob` must be the same, which is
    verl's bypass mode. The denominator is the response tokens of the global mini-batch; verl averages gradients over
    data-parallel ranks, so the loss is multiplied by their number, as verl's own token-mean is.

    Raises:
        ValueError: a configuration in which Eq. 19 would not be what is optimized.
        MissingColumns: entropy or version is missing, misaligned, or more often non-finite than the limit allows.
    """
    batch = _current.get()
    if batch is None:
        raise MissingColumns("this loss was not called through verl's ppo_loss (distillation is not supported)")
    if loss_agg_mode != "token-mean":
        raise ValueError(f"loss_agg_mode is {loss_agg_mode!r}; Eq. 19 is actor.loss_agg_mode=token-mean")
    if rollout_is_weights is not None:
        raise ValueError("rollout_is_weights would weight Eq. 19 once more: set rollout_correction.rollout_is=null")
    mask = response_mask.bool()
    if not torch.equal(torch.where(mask, old_log_prob, 0), torch.where(mask, batch.behavior_logprob, 0)):
        raise ValueError(
            "old_log_probs differ from rollout_log_probs: set algorithm.rollout_correction.bypass_mode=True; "
            "Eq. 19 has one ratio, of the trained to the sampling policy"
        )
    settings = config.policy_loss
    entropy, version = align(batch.columns, mask)
    signals = TokenSignals(
        behavior_logprob=batch.behavior_logprob,
        target_logprob=log_prob,
        entropy=entropy,
        advantage=advantages.to(log_prob.dtype),
        response_mask=mask,
        weight_version=version,
    )
    information = config.global_batch_info
    tokens = int(information["batch_num_tokens"])
    output = objective(
        signals,
        keep_rule(loss_mode, settings.get("thresholds", {}) or {}),
        clip_low=config.clip_ratio_low,
        clip_high=config.clip_ratio_high,
        response_tokens=tokens,
    )
    nonfinite, limit = output.diagnostics["nonfinite_fraction"], settings.get("nonfinite_limit", 1e-3)
    if nonfinite > limit:
        raise MissingColumns(
            f"{nonfinite:.2%} of a micro-batch's response tokens have a non-finite log-prob, entropy or advantage; "
            f"policy_loss.nonfinite_limit allows {limit:.2%}"
        )
    batch.signals, batch.output = signals, output
    return output.loss * information["dp_size"], {}


for _mode in LOSS_MODES:
    register_policy_loss(_mode)(partial(keep_gated_loss, _mode))


def trajectory_columns(data: TensorDict) -> list[TokenColumns | MissingColumns | None]:
    """The columns of each trajectory of a micro-batch, from where either trainer leaves an agent loop's extra fields.

    Raises:
        MissingColumns: the batch has none.
    """
    if FIELD in data.keys():  # fully_async_policy and the older trainers: a field of its own
        return per_trajectory(data, FIELD)
    if "extra_fields" in data.keys():  # the V1 trainers: the fields as they were
        return [fields.get(FIELD) for fields in per_trajectory(data, "extra_fields")]
    raise MissingColumns(
        "the batch has no per-token entropy: the agent loop is not one of estr's. "
        "A custom one inherits estr.cluster.verl.agent_loops.CarryColumns; see docs/use_in_verl.md"
    )


def align(columns: Sequence[TokenColumns | MissingColumns | None], response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of trajectories as (entropy float32, weight version int64), both [batch, length].

    Rows without response tokens (verl's padding) may lack columns or have another trajectory's.

    Raises:
        MissingColumns: a row with response tokens has no columns, fewer than its last one, or none for one of them.
    """
    rows, length = response_mask.shape
    entropy = torch.full((rows, length), torch.nan)
    version = torch.full((rows, length), OUTSIDE, dtype=torch.int64)
    for row, (found, mask) in enumerate(zip(columns, response_mask.cpu(), strict=True)):
        if not mask.any():
            continue
        if isinstance(found, MissingColumns):
            raise found
        last = int(mask.nonzero()[-1]) + 1
        if found is None or len(found) < last:
            has = "none" if found is None else str(len(found))
            raise MissingColumns(f"trajectory {row} of a micro-batch has {last} response tokens and {has} entropies")
        entropy[row, :last] = torch.from_numpy(found.entropy[:last].copy())
        version[row, :last] = torch.from_numpy(found.weight_version[:last].copy())
        if (version[row][mask] == OUTSIDE).any():
            raise MissingColumns(
                f"trajectory {row} of a micro-batch: the columns and the response mask are not aligned"
            )
    return entropy.to(response_mask.device), version.to(response_mask.device)


def _behavior_logprob(data: TensorDict) -> Tensor:
    if "rollout_log_probs" not in data.keys():
        raise MissingColumns(
            "the batch has no rollout_log_probs: set actor_rollout_ref.rollout.calculate_log_probs=True"
        )
    return padded(data, "rollout_log_probs")


def _metrics(batch: _MicroBatch, config: Any, data: TensorDict) -> dict[str, Metric]:
    """Sums over the mini-batch divided by its response tokens, exact over micro-batches and data-parallel ranks."""
    assert batch.signals is not None and batch.output is not None
    ranks, tokens = int(data["dp_size"]), int(data["batch_num_tokens"])
    trajectories = int(data["global_batch_size"])
    target = CLOCK.version or 0
    signals, keep = batch.signals, batch.output.keep
    per_token = token_sums(signals, keep, batch.output.diagnostics)
    of_trajectories = trajectory_sums(signals, keep, target)
    peaks = largest(signals, target, batch.target_entropy)
    recorder = Recorder.of(config.policy_loss)
    if recorder is not None:
        step = CLOCK.step(config.policy_loss.updates_per_version)
        sums = per_token | of_trajectories | peaks | {"loss": float(batch.output.loss.detach())}
        recorder.add(step, target, signals, keep, data, sums)
    CLOCK.went_through(len(signals.response_mask) * ranks, trajectories)
    values = {LIVE[name]: per_token[name] * ranks / tokens for name in per_token if name in LIVE}
    values |= {name: value * ranks / trajectories for name, value in of_trajectories.items()}
    peaks["weight_version"] = float(target)
    return {f"estr/{name}": Metric(AggregationType.SUM, value) for name, value in values.items()} | {
        f"estr/{name}": Metric(AggregationType.MAX, value) for name, value in peaks.items()
    }
