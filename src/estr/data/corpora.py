"""Document collections to search: streamed into one parquet file, so that 21 million passages need little memory."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from estr.data.checks import CORPUS, ContentHash
from estr.data.sources import Reading
from estr.errors import UserError

BATCH = 2_000  # documents; those of BrowseComp-Plus are long

Document = Callable[[Mapping[str, Any]], dict[str, str]]


def write_corpus(reading: Reading, document: Document, path: Path, needed: set[str]) -> dict[str, Any]:
    """Write every row as `document` makes it, with the columns docid, text and url; returns rows and content hash.

    Raises `UserError` for a docid that occurs twice, and if a docid of `needed` (the evidence) is not there.
    """
    digest, missing = ContentHash(), set(needed)
    hashes: list[np.ndarray] = []
    with pq.ParquetWriter(path, CORPUS, compression="zstd") as writer:
        for batch in reading.batches(BATCH):
            documents = [document(row) for row in batch.to_pylist()]
            docids = [entry["docid"] for entry in documents]
            hashes.append(pd.util.hash_array(np.array(docids, dtype=object), categorize=False))
            missing.difference_update(docids)
            digest.update(documents)
            writer.write_table(pa.Table.from_pylist(documents, schema=CORPUS))
    # eight bytes a docid: the docids themselves would not fit; a chance collision among 21 million is 1 in 80,000
    every = np.concatenate(hashes)
    if len(np.unique(every)) < len(every):
        raise UserError(f"{reading.place}: a docid occurs twice; get a new copy")
    if missing:
        raise UserError(
            f"{reading.place}: {len(missing)} evidence documents of the questions are not in it, for example "
            f"{min(missing)!r}; do questions and corpus belong together?"
        )
    return {"rows": len(every), "sha256": digest.hexdigest(), "sources": [reading.note()]}


def browsecomp_document(row: Mapping[str, Any]) -> dict[str, str]:
    return {"docid": row["docid"], "text": row["text"] or "", "url": row["url"] or ""}


def wikipedia_document(row: Mapping[str, Any]) -> dict[str, str]:
    """A passage of Search-R1's Wikipedia: its title in quotes, a line break, about a hundred words."""
    return {"docid": row["id"], "text": row["contents"], "url": ""}
