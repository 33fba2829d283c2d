"""Write and read the prepared sets of a task: `train.parquet`, `eval.parquet`, `demonstrations.parquet`."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from estr.config import DataSizes
from estr.data.checks import PROBLEMS
from estr.errors import UserError
from estr.provenance import write_json
from estr.records import write_table
from estr.tasks.base import Message, Problem, TrainableFromScratch

DATA_SEED = 0


def prepare(task: TrainableFromScratch, counterpart: dict[str, Any], sizes: DataSizes, folder: Path) -> None:
    """Generate the sets of a laptop counterpart, check them, and write `data.json` with counts and hashes.

    `counterpart` are the sizes that made `task`.
    """
    folder.mkdir(parents=True, exist_ok=True)
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
    write_json(folder / "data.json", note)


def read_problems(path: Path) -> list[Problem]:
    """Problems of a prepared set. Raises `UserError` naming file and row for anything malformed."""
    problems = []
    for number, row in enumerate(_read(path)):
        try:
            problems.append(
                Problem(
                    prompt=tuple({"role": m["role"], "content": m["content"]} for m in row["prompt"]),
                    ground_truth=row["reward_model"]["ground_truth"],
                    data_source=row["data_source"],
                    ability=row["ability"],
                    split=row["extra_info"]["split"],
                    index=row["extra_info"]["index"],
                    agent=row["agent_name"],
                    question=row["extra_info"]["question"],
                    id=row["extra_info"]["id"],
                    evidence=tuple(row["extra_info"]["evidence"]),
                )
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: row {number}: not in the schema of a prepared set ({error!r})") from error
    return problems


def read_demonstrations(path: Path) -> list[tuple[list[Message], list[Message]]]:
    """(prompt, response) chats."""
    return [(row["prompt"], row["response"]) for row in _read(path)]


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    except Exception as error:
        raise UserError(f"{path}: not a readable prepared set ({error}); run `estr data prepare`") from error
    return rows
