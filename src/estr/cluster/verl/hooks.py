"""Every place where importing `estr.cluster.verl` changes verl, and nothing else does.

| what | how |
|---|---|
| policy losses `estr`, `icepop`, `kpop`, `m2po`, ... | verl's registry |
| agent loops `single_turn_agent`, `tool_agent` | verl's registry: subclasses under the same names |
| rollout replica `sglang` | verl's registry: a subclass that also returns entropy and version |
| `verl.workers.engine_workers.ppo_loss` | wrapped: verl's own passes a loss only log-probs, advantages and the mask |
| `ActorRolloutRefWorker.update_weights` | wrapped: notes the version that the trainer pushed, for the measured
staleness |
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import verl
from verl.workers import engine_workers

from estr.cluster.verl import losses, sglang_replica
from estr.cluster.verl.updates import CLOCK

TESTED = "0.9.1"
logger = logging.getLogger(__name__)


def install() -> None:
    """Idempotent. Raises `RuntimeError` if this verl lacks one of the places."""
    if verl.__version__ != TESTED:
        logger.warning("estr is tested with verl %s, this is %s", TESTED, verl.__version__)
    try:
        loss, push = engine_workers.ppo_loss, engine_workers.ActorRolloutRefWorker.update_weights
    except AttributeError as error:
        raise RuntimeError(f"verl {verl.__version__} is not one that estr knows ({error}); use {TESTED}") from error
    sglang_replica.install()
    if hasattr(loss, "estr_wraps"):
        return
    engine_workers.ppo_loss = losses.with_columns(loss)
    engine_workers.ppo_loss.estr_wraps = loss
    engine_workers.ActorRolloutRefWorker.update_weights = _noting_version(push)


def _noting_version(push: Any) -> Any:
    @functools.wraps(push)
    async def update_weights(self: Any, global_steps: int | None = None, *rest: Any, **named: Any) -> Any:
        result = await push(self, global_steps, *rest, **named)
        if global_steps is not None:
            CLOCK.pushed(int(global_steps))
        return result

    return update_weights
