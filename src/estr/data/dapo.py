"""DAPO-Math-17k holds every record a hundred times: take each once."""

import hashlib
from collections.abc import Iterator
from typing import Any

from estr.data.sources import Reading
from estr.errors import UserError

BATCH = 10_000  # rows; only digests of earlier records are kept


def distinct_records(reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    """Position and content of each record's first copy, in order. A record is known by its `extra_info.index`.

    Its prompt would not do: 17,917 records have 17,398 distinct prompts.

    Raises `UserError` for a record without index, for copies that differ, and unless there are as many records as
    published.
    """
    seen: dict[str, bytes] = {}
    row_number = 0
    for batch in reading.batches(BATCH):
        for row in batch.to_pylist():
            index = row["extra_info"]["index"]
            if not index:
                raise UserError(f"{reading.place}: row {row_number}: extra_info.index is empty")
            digest = hashlib.sha256(repr((row["prompt"], row["reward_model"])).encode()).digest()
            if index not in seen:
                seen[index] = digest
                yield row_number, row
            elif seen[index] != digest:
                raise UserError(
                    f"{reading.place}: row {row_number}: not the prompt or ground truth of earlier copies of record "
                    f"{index}; get a new copy"
                )
            row_number += 1
    if len(seen) != reading.source.distinct:
        raise UserError(
            f"{reading.place}: {len(seen):,} distinct records, where the published set has {reading.source.distinct:,}"
        )
