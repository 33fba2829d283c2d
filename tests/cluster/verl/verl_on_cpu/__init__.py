"""verl 0.9.1 without a GPU, for tests: a CPU platform, a rollout replica on transformers, weights through shared
memory.

`VERL_USE_EXTERNAL_MODULES=verl_on_cpu` and `VERL_PLATFORM=cpu` in the environment of every process; the trainers,
workers and agent loops are verl's own.
"""

import verl.utils.distributed as distributed
import verl.utils.tokenizer.continuous_token_wiring as wiring

_initialize = distributed.initialize_global_process_group_ray


def _with_one_backend(timeout_second=None, backend=None):  # verl asks for gloo twice, "cpu:gloo,cpu:gloo"
    return _initialize(timeout_second, backend or "cpu:gloo")


# before anything imports the function by name
distributed.initialize_global_process_group_ray = _with_one_backend

# the embedded engine's chat template has no newline, which verl's boundary rule for Qwen2 would look for
wiring._MODEL_TYPE_TO_FAMILY.pop("qwen2", None)

from verl_on_cpu import checkpoint, platform, replica, sglang_http  # noqa: E402

__all__ = ["checkpoint", "platform", "replica", "sglang_http"]
