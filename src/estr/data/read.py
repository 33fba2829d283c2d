"""Read the prepared sets of a task. Free of torch, whose import takes longer than all of it."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from estr.errors import UserError
from estr.provenance import check_files
from estr.tasks.base import Message, Problem


def read_problems(path: Path) -> list[Problem]:
    """Problems of a prepared set. Raises `UserError` for a damaged file, naming file and row for anything malformed."""
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
    check_files(path.with_name("data.json"), path.name)
    try:
        rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    except Exception as error:
        raise UserError(f"{path}: not a readable prepared set ({error}); run `estr data prepare`") from error
    return rows
