"""SGLang 0.5.23: its sampling observer, which is made for values per token, and one hook that installs it.

The version is stamped when a token is sampled. SGLang's own `weight_versions` spans are off by one token after an in-
place pause with the overlap scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from estr.cluster.meta import ENTROPY, WEIGHT_VERSION
from estr.cluster.sglang.entropy import row_entropy

logger = logging.getLogger(__name__)


def _version() -> str:
    from sglang.srt.runtime_context import get_serving

    version: str = get_serving().weight_version
    return version


@dataclass(frozen=True)
class HostStats:
    """Entropies of one sampling step on the host; valid once the scheduler has waited for the copy."""

    entropy: Tensor
    version: str

    def consume(self, batch: Any, commits: Any) -> None:
        """SGLang calls this when the step's tokens have become part of their requests; None is no token."""
        for request, commit, entropy in zip(batch.reqs, commits, self.entropy.tolist(), strict=True):
            if commit is None:
                continue
            if len(commit.token_ids) != 1:
                raise RuntimeError(f"estr counts one token per step, SGLang committed {len(commit.token_ids)}")
            if request.customized_info is None:
                request.customized_info = {}
            for column, value in ((ENTROPY, entropy), (WEIGHT_VERSION, self.version)):
                values = request.customized_info.setdefault(column, [])
                values.extend([None] * (commit.output_index - len(values)))
                values[commit.output_index :] = [value]


@dataclass(frozen=True)
class DeviceStats:
    entropy: Tensor
    version: str

    def copy_to_host(self, copy: Callable[[Tensor], Tensor]) -> HostStats:
        return HostStats(copy(self.entropy), self.version)


class EntropyObserver:
    """SGLang's `SamplingObserver`: sees the logits after penalties, before grammar, logit bias, top-p and top-k."""

    def is_active(self, sampling_info: Any) -> bool:
        return True

    def before_grammar(self, logits: Tensor, sampling_info: Any) -> Tensor:
        return row_entropy(logits, sampling_info.temperatures)

    def after_sample(self, entropy: Tensor, token_ids: Any) -> DeviceStats:
        return DeviceStats(entropy, _version())


def _after_runner_is_made(_none: Any, runner: Any, *rest: Any, **named: Any) -> None:
    if runner.is_draft_worker:
        return
    if not runner.supports_sampling_observer():
        logger.error("estr: no entropies with speculative decoding")
        return
    runner.sampling_observer = EntropyObserver()


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.__init__", _after_runner_is_made, HookType.AFTER
    )
