"""What a trainer process writes about each micro-batch, for `metrics.parquet` and `tokens.parquet` of the run.

One JSON line per micro-batch in `sums-rank<r>.jsonl`, and the tokens of chosen updates in `tokens-rank<r>-<n>.parquet`.
`estr.cluster.launch.export` joins them. A line carries the attempt, so that an update which was done again after a
crash counts once.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from estr.algorithm import TokenSignals
from estr.provenance import seal
from estr.records import token_rows, write_table

SCORES = ("rm_scores", "token_level_scores", "token_level_rewards")


class Recorder:
    """Writes what one process sees, if it is one that computes a part of the loss which no other computes."""

    def __init__(self, folder: Path, attempt: int, tokens_first: int, tokens_every: int) -> None:
        self.folder, self.attempt = folder, attempt
        self.tokens_first, self.tokens_every = tokens_first, tokens_every
        self.rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(cls, settings: Any) -> Recorder | None:
        """The recorder of a `KeepRuleConfig`, or None if it asks for none."""
        folder = settings.get("record", "")
        if not folder or not computes_its_own_part():
            return None
        return _recorder(folder, settings.attempt, settings.tokens_first, settings.tokens_every)

    def add(
        self,
        step: int,
        target_version: int,
        signals: TokenSignals,
        keep: Tensor,
        data: TensorDict,
        sums: dict[str, float],
    ) -> None:
        """Append one micro-batch; `sums` are over its tokens and trajectories."""
        rows = signals.response_mask.any(1).cpu()
        reward = rewards(data)
        line = {
            "attempt": self.attempt,
            "step": step,
            "target_version": target_version,
            "response_tokens": signals.response_tokens,
            "trajectories": int(rows.sum()),
            "time": time.time(),
            "rewards": reward[rows].tolist(),
            "turns": [count for count, real in zip(turns(data), rows.tolist(), strict=True) if real],
            "groups": [group for group, real in zip(groups(data), rows.tolist(), strict=True) if real],
            **sums,
        }
        name = f"rank{self.rank}-attempt{self.attempt}"
        with (self.folder / f"sums-{name}.jsonl").open("a") as file:
            file.write(json.dumps(seal(line)) + "\n")
        if step <= self.tokens_first or (self.tokens_every and step % self.tokens_every == 0):
            on_cpu = TokenSignals(*(getattr(signals, field).detach().cpu() for field in TokenSignals.__annotations__))
            tokens = padded(data, "responses").cpu()[:, : keep.shape[1]]
            table = token_rows(step, target_version, on_cpu, tokens, keep.cpu(), reward)
            write_table(table, self.folder / f"tokens-{name}-{self.count:06d}.parquet")
        self.count += 1


_recorder = cache(lambda folder, attempt, first, every: Recorder(Path(folder), attempt, first, every))


def computes_its_own_part() -> bool:
    """False on the tensor- and context-parallel ranks of Megatron whose loss repeats that of rank 0."""
    if "megatron.core.parallel_state" not in sys.modules:
        return True
    state = sys.modules["megatron.core.parallel_state"]
    return bool(state.get_tensor_model_parallel_rank() == 0 and state.get_context_parallel_rank() == 0)


def rewards(data: TensorDict) -> Tensor:
    """Reward of each trajectory, float32 [batch], NaN if the batch has none."""
    for name in SCORES:
        if name in data.keys():
            return padded(data, name).sum(1).float().cpu()
    return torch.full((len(data),), torch.nan)


def groups(data: TensorDict) -> list[str]:
    """The problem that each trajectory answers, by verl's `uid`."""
    return [str(value) for value in _values(data, "uid", "")]


def turns(data: TensorDict) -> list[int]:
    """Assistant turns of each trajectory; verl counts the user's and the tools' with them."""
    name = "num_turns" if "num_turns" in data.keys() else "__num_turns__"
    return [int(value) // 2 for value in _values(data, name, 0)]


def _values(data: TensorDict, name: str, default: Any) -> list[Any]:
    return per_trajectory(data, name) if name in data.keys() else [default] * len(data)


def per_trajectory(data: TensorDict, name: str) -> list[Any]:
    """A field that is no tensor, or one number per trajectory, as a list."""
    values = data.get(name)
    return list(values.tolist()) if hasattr(values, "tolist") else [values.data] * len(data)


def padded(data: TensorDict, name: str) -> Tensor:
    """A field [batch, length], padded if trajectories differ in length."""
    return data.select(name).to_padded_tensor()[name]
