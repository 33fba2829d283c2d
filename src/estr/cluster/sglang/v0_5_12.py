"""SGLang 0.5.12, which verl 0.9.1 pins: hooks around the sampler, the scheduler's output and the tokenizer manager.

This version has no interface for values per token. Its `customized_info` comes close, but the tokenizer manager
overwrites what was sent before (every 50 tokens) instead of appending, and it is indexed by the position in the batch,
so that each request must carry the columns. The scheduler does not know the weight version; it is learned from the
updates.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from estr.cluster.meta import ENTROPY, WEIGHT_VERSION
from estr.cluster.sglang.entropy import row_entropy

COLUMNS = (ENTROPY, WEIGHT_VERSION)
_STATS = "estr_stats"


class _Version:
    """Of the weights in this scheduler process, as SGLang's text."""

    now: str | None = None

    @classmethod
    def read(cls) -> str:
        if cls.now is None:
            from sglang.srt.server_args import get_global_server_args

            cls.now = get_global_server_args().weight_version
        return cls.now or ""


class _Stats:
    """Entropies of one sampling step, on the device until the scheduler has waited for its copy."""

    def __init__(self, entropy: Tensor, version: str) -> None:
        self.entropy, self.version = entropy, version
        self._values: list[float] | None = None

    def of(self, row: int) -> float:
        if self._values is None:
            self._values = self.entropy.tolist()
        return self._values[row]


# scheduler process


def _after_weight_update(result: Any, _scheduler: Any, request: Any, *rest: Any, **named: Any) -> None:
    if result.success and getattr(request, "weight_version", None) is not None:
        _Version.now = request.weight_version


def _after_logits_are_final(logits: Tensor, sampler: Any, _given: Any, sampling: Any, *rest: Any, **named: Any) -> None:
    # after penalties, logit bias and custom processors, before top-p and top-k
    sampler.estr_entropy = row_entropy(logits, sampling.temperatures)


def _after_sampling(_tokens: Any, sampler: Any, logits_output: Any, *rest: Any, **named: Any) -> None:
    entropy = sampler.__dict__.pop("estr_entropy", None)
    if entropy is not None:
        setattr(logits_output, _STATS, _Stats(entropy, _Version.read()))


def _before_copy_to_host(result: Any, *rest: Any, **named: Any) -> None:
    stats = getattr(result.logits_output, _STATS, None)
    if stats is not None:  # enqueued before the event that the scheduler waits for
        stats.entropy = stats.entropy.to("cpu", non_blocking=True)


def _after_request_is_made(_none: Any, request: Any, *rest: Any, **named: Any) -> None:
    request.customized_info = {column: [] for column in COLUMNS}


def _after_token_is_committed(_none: Any, _scheduler: Any, row: int, request: Any, logits_output: Any) -> None:
    stats = getattr(logits_output, _STATS, None)
    if stats is None:
        return
    place = len(request.output_ids) - 1
    for column, value in ((ENTROPY, stats.of(row)), (WEIGHT_VERSION, stats.version)):
        values = request.customized_info[column]
        values.extend([None] * (place - len(values)))
        values[place:] = [value]


# process of the tokenizer manager


def _before_output_is_handled(manager: Any, output: Any) -> None:
    sent = getattr(output, "customized_info", None)
    if not sent or ENTROPY not in sent:
        return
    for row, request in enumerate(output.rids):
        state = manager.rid_to_state.get(request)
        if state is None:
            continue
        so_far = state.__dict__.setdefault(_STATS, {column: [] for column in COLUMNS})
        for column in COLUMNS:
            so_far[column].extend(sent[column][row])
            sent[column][row] = list(so_far[column])


def _after_abort_while_waiting(_none: Any, manager: Any, output: Any) -> None:
    state = manager.rid_to_state.get(output.rid)
    if state is not None and state.out_list:
        so_far = state.__dict__.get(_STATS, {column: [] for column in COLUMNS})
        state.out_list[-1]["meta_info"].update({column: list(values) for column, values in so_far.items()})


def register() -> None:
    """Install the hooks; SGLang applies each in the process that has its target."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    managers = "sglang.srt.managers"
    updates = f"{managers}.scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin.update_weights_from"
    outputs = f"{managers}.scheduler_output_processor_mixin.SchedulerOutputProcessorMixin"
    manager = f"{managers}.tokenizer_manager.TokenizerManager"
    after: dict[str, Any] = {
        "sglang.srt.layers.sampler.Sampler._preprocess_logits": _after_logits_are_final,
        "sglang.srt.layers.sampler.Sampler.forward": _after_sampling,
        f"{managers}.schedule_batch.Req.__init__": _after_request_is_made,
        f"{outputs}.maybe_collect_customized_info": _after_token_is_committed,
        f"{manager}._handle_abort_req": _after_abort_while_waiting,
        **{f"{updates}_{way}": _after_weight_update for way in ("disk", "distributed", "tensor", "ipc")},
    }
    before: dict[str, Any] = {
        f"{managers}.utils.GenerationBatchResult.copy_to_cpu": _before_copy_to_host,
        f"{manager}._handle_batch_output": _before_output_is_handled,
    }
    for target, hook in after.items():
        HookRegistry.register(target, hook, HookType.AFTER)
    for target, hook in before.items():
        HookRegistry.register(target, hook, HookType.BEFORE)
