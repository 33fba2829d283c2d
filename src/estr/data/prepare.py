"""Write the prepared sets of a laptop counterpart: `train.parquet`, `eval.parquet`, `demonstrations.parquet`."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from estr.config import DataSizes
from estr.data.checks import PROBLEMS
from estr.errors import UserError
from estr.provenance import file_digests, write_json
from estr.records import write_table
from estr.tasks.base import TrainableFromScratch

DATA_SEED = 0


def prepare(task: TrainableFromScratch, counterpart: dict[str, Any], sizes: DataSizes, folder: Path) -> None:
    """Generate the sets of a laptop counterpart, check them, and write `data.json` with counts and hashes.

    `counterpart` are the sizes that made `task`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").unlink(missing_ok=True)
    train = task.problems("train", sizes.train_problems, DATA_SEED)
    evaluation = task.problems("eval", sizes.eval_problems, DATA_SEED)
    shared = {p.prompt[-1]["content"] for p in train} & {p.prompt[-1]["content"] for p in evaluation}
    if shared:
        raise UserError(f"{task.name}: {len(shared)} evaluation problems are also in the training set")
    rng = random.Random(f"demonstrations/{DATA_SEED}")
    shown = task.problems("train", sizes.demonstrations, DATA_SEED + 1)
    pairs = [{"prompt": list(p.prompt), "response": task.demonstration(p, rng)} for p in shown]
    tables = {
        "train": [problem.row() for problem in train],
        "eval": [problem.row() for problem in evaluation],
        "demonstrations": pairs,
    }
    summary = {}
    for name, rows in tables.items():
        schema = None if name == "demonstrations" else PROBLEMS
        write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet")
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        summary[name] = {"rows": len(rows), "sha256": digest}
    note = {"task": task.name, "version": task.version, "counterpart": counterpart, "sets": summary}
    write_json(folder / "data.json", note | {"files": file_digests(folder, ["*.parquet"])})
