"""The settings of a keep rule in verl's configuration, typed and checked before a worker starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.workers.config import PolicyLossConfig

from estr.algorithm import KeepRule, build_rule
from estr.cluster.loss_modes import LOSS_MODES


@dataclass
class KeepRuleConfig(PolicyLossConfig):
    """`actor_rollout_ref.actor.policy_loss._target_=estr.cluster.verl.KeepRuleConfig` for other thresholds than the
    defaults.

    Attributes:
        thresholds: of the rule, by name: `+actor_rollout_ref.actor.policy_loss.thresholds.tau=1.0`.
        nonfinite_limit: largest fraction of a micro-batch's response tokens that may carry a non-finite signal.
        record: folder into which every trainer process writes its sums and tokens of each update, for
            `metrics.parquet` and `tokens.parquet`; empty: nothing is written.
        updates_per_version: updates between two pushes of weights to the rollout servers, by which the record numbers
            them; where there are more, a recording ends the training.
        tokens_first: updates whose tokens are all recorded, from the first on; beyond them every `tokens_every`-th.
        tokens_every: see there; 0 records none of them.
        attempt: number of this start of the run, so that an update which is done again after a crash counts once.

    Raises:
        ValueError: unknown loss mode, unknown or missing threshold, or a value out of range.
    """

    loss_mode: str = "estr"
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    nonfinite_limit: float = 1e-3
    record: str = ""
    updates_per_version: int = 1
    tokens_first: int = 0
    tokens_every: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.nonfinite_limit <= 1:
            raise ValueError(f"nonfinite_limit must be in [0, 1], got {self.nonfinite_limit}")
        if self.updates_per_version < 1:
            raise ValueError(f"updates_per_version must be at least 1, got {self.updates_per_version}")
        keep_rule(self.loss_mode, self.thresholds)


def keep_rule(loss_mode: str, thresholds: Mapping[str, Any]) -> KeepRule:
    """The rule of a loss mode. Raises `ValueError` as `KeepRuleConfig` does."""
    if loss_mode not in LOSS_MODES:
        raise ValueError(f"unknown loss mode {loss_mode!r}; estr has {', '.join(LOSS_MODES)}")
    return build_rule(LOSS_MODES[loss_mode], **dict(thresholds))
