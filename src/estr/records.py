"""The two tables of a run: `metrics.parquet` (a row per step) and `tokens.parquet` (a sample of tokens).

Both engines write them with this module, whole or not at all. `docs/metrics.md` describes the columns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from estr.algorithm.signals import TokenSignals
from estr.files.atomic import replacing

NO_SWITCH = 10_000
CLOCK_COLUMNS = ("time_generate", "time_train", "wall_time")

TOKEN_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("step", "sequence", "position", "token", "weight_version", "target_version")]
    + [(name, pa.float32()) for name in ("behavior_logprob", "target_logprob", "entropy", "advantage", "reward")]
    + [("kept", pa.bool_()), ("switch_offset", pa.int64())]
)


class GrowingTable:
    """Rows in memory; a table of known schema may stay empty, without one the first rows decide it."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self._parts: list[pa.Table] = [] if schema is None else [schema.empty_table()]

    def add(self, rows: pa.Table) -> None:
        self._parts.append(rows)

    def table(self) -> pa.Table:
        self._parts = [pa.concat_tables(self._parts).combine_chunks()]
        return self._parts[0]


def write_table(table: pa.Table, path: Path) -> None:
    """Write a parquet file that either is whole or does not exist."""
    with replacing(path) as partial:
        pq.write_table(table, partial, compression="zstd")


def metrics_row(values: Mapping[str, Any]) -> pa.Table:
    """One row: `step` and `target_version` are int64, everything else float64."""
    whole = ("step", "target_version")
    return pa.table({k: pa.array([v], pa.int64() if k in whole else pa.float64()) for k, v in values.items()})


def token_rows(
    step: int, target_version: int, signals: TokenSignals, tokens: Tensor, keep: Tensor, reward: Tensor
) -> pa.Table:
    """Every response token of a batch: `signals`, `tokens`, `keep` are `[batch, length]`, `reward` `[batch]`."""
    mask = signals.response_mask
    rows, positions = mask.nonzero(as_tuple=True)
    columns = {
        "step": torch.full_like(rows, step),
        "sequence": rows,
        "position": positions,
        "token": tokens[mask],
        "weight_version": signals.weight_version[mask],
        "target_version": torch.full_like(rows, target_version),
        "behavior_logprob": signals.behavior_logprob[mask],
        "target_logprob": signals.target_logprob.detach()[mask],
        "entropy": signals.entropy[mask],
        "advantage": signals.advantage[mask],
        "reward": reward[rows],
        "kept": keep[mask],
        "switch_offset": switch_offset(signals.weight_version, mask)[mask],
    }
    return pa.table({name: column.numpy() for name, column in columns.items()}).cast(TOKEN_SCHEMA)


def switch_offset(weight_version: Tensor, mask: Tensor) -> Tensor:
    """Signed distance of each response token to the nearest version switch of its sequence, int64 `[batch, length]`.

    0 is the first token of a new version, -1 the last one before it. Of two equally near switches the later counts.
    Distances are in response tokens: tool output (False in `mask`) is no distance; longer ones than `NO_SWITCH` - 1 are
    cut to that. Tokens of a sequence without a switch get `NO_SWITCH`, and so does everything outside the mask.
    """
    order = torch.where(mask, mask.cumsum(1) - 1, -1)  # place among the sequence's response tokens
    packed = torch.full_like(weight_version, -1)
    rows, positions = mask.nonzero(as_tuple=True)
    packed[rows, order[rows, positions]] = weight_version[rows, positions]
    switched = torch.zeros_like(mask)
    switched[:, 1:] = (packed[:, 1:] >= 0) & (packed[:, 1:] != packed[:, :-1])
    place = torch.arange(mask.shape[1]).expand_as(packed)
    before = torch.where(switched, place, -(NO_SWITCH**2)).cummax(1).values
    after = torch.where(switched, place, NO_SWITCH**2).flip(1).cummin(1).values.flip(1)
    nearest = torch.where(after - place <= place - before, place - after, place - before)
    nearest = nearest.clamp(1 - NO_SWITCH, NO_SWITCH - 1)
    nearest = torch.where(switched.any(dim=1, keepdim=True), nearest, NO_SWITCH)
    result = torch.full_like(nearest, NO_SWITCH)
    result[rows, positions] = nearest[rows, order[rows, positions]]
    return result
