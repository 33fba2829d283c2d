"""The two tables of a run: `metrics.parquet` (a row per step) and `tokens.parquet` (a sample of tokens).

Both engines write them with this module. A table grows in memory and is rewritten atomically, so that a reader
always finds a whole file. `docs/metrics.md` describes the columns.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from estr.algorithm.signals import TokenSignals
from estr.errors import UserError

NO_SWITCH = 10_000
CLOCK_COLUMNS = ("time_generate", "time_train", "wall_time")

TOKEN_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("step", "sequence", "position", "token", "weight_version", "target_version")]
    + [(name, pa.float32()) for name in ("behavior_logprob", "target_logprob", "entropy", "advantage", "reward")]
    + [("kept", pa.bool_()), ("switch_offset", pa.int64())]
)


class GrowingTable:
    """Rows in memory that `flush` writes to one parquet file; every table has an int64 column `step`.

    A table of known schema may stay empty; without one, the first rows decide it.
    """

    def __init__(self, path: Path, schema: pa.Schema | None = None) -> None:
        self.path = path
        self._parts: list[pa.Table] = [] if schema is None else [schema.empty_table()]
        self._dirty = schema is not None

    def resume(self, last_step: int) -> None:
        """Take over the rows up to `last_step` from disk and drop later ones. Raises `UserError` if unreadable."""
        if last_step == 0:
            return
        try:
            table = pq.read_table(self.path)
        except Exception as error:
            raise UserError(
                f"{self.path}: not a readable table ({error}); delete the run's state/ to start over"
            ) from error
        self._parts = [table.filter(pc.less_equal(table["step"], last_step))]

    def add(self, rows: pa.Table) -> None:
        self._parts.append(rows)
        self._dirty = True

    def table(self) -> pa.Table:
        return pa.concat_tables(self._parts)

    def flush(self) -> None:
        if self._dirty:
            self._parts = [self.table().combine_chunks()]
            write_table(self._parts[0], self.path)
            self._dirty = False


def write_table(table: pa.Table, path: Path) -> None:
    """Write a parquet file that either is whole or does not exist."""
    partial = path.with_name(path.name + ".partial")
    pq.write_table(table, partial, compression="zstd")
    os.replace(partial, path)


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
    """Signed distance of each token to the nearest version switch of its sequence, int64 `[batch, length]`.

    0 is the first token of a new version, -1 the last one before it. Of two equally near switches the later counts.
    Tokens of a sequence without a switch get `NO_SWITCH`.
    """
    length = weight_version.shape[1]
    switched = torch.zeros_like(mask)
    switched[:, 1:] = mask[:, 1:] & mask[:, :-1] & (weight_version[:, 1:] != weight_version[:, :-1])
    position = torch.arange(length)
    offsets = position[None, :, None] - position[None, None, :]
    order = (2 * offsets.abs() + (offsets > 0)).masked_fill(~switched[:, None, :], 2 * NO_SWITCH)
    nearest = order.argmin(dim=2)
    result = offsets.expand(len(mask), -1, -1).gather(2, nearest[..., None])[..., 0]
    return torch.where(switched.any(dim=1, keepdim=True), result, NO_SWITCH)
