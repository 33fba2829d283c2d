"""Read the prepared sets of a task. Free of torch, whose import takes longer than all of it."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from estr.data.checks import DEMONSTRATIONS, PROBLEMS, mismatch
from estr.errors import UserError
from estr.files.typed import open_table
from estr.provenance import check_files
from estr.tasks.base import Message, Problem

AGAIN = "run `estr data prepare`"


def read_problems(path: Path) -> list[Problem]:
    """Problems of a prepared set. Raises `UserError` for a damaged file, naming file and row for anything malformed."""
    return [
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
        for row in _read(path, PROBLEMS)
    ]


def read_demonstrations(path: Path) -> list[tuple[list[Message], list[Message]]]:
    """(prompt, response) chats."""
    return [(row["prompt"], row["response"]) for row in _read(path, DEMONSTRATIONS)]


def _read(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows, with the columns of the schema; raises `UserError` naming column or row if one does not fit."""
    check_files(path.with_name("data.json"), path.name)
    try:
        file = open_table(path)
        for field in schema:
            index = file.schema_arrow.get_field_index(field.name)
            found = "missing" if index < 0 else mismatch(file.schema_arrow.field(index).type, field.type)
            if found:
                raise UserError(f"{path}: column {field.name!r} is {found[:80]}, not {field.type}; {AGAIN}")
        rows: list[dict[str, Any]] = file.read(columns=schema.names).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: not a readable prepared set ({reason}); {AGAIN}") from error
    if not rows:
        raise UserError(f"{path}: holds no row; {AGAIN}")
    for number, row in enumerate(rows):
        if _has_gap(row):
            raise UserError(f"{path}: row {number}: a value is missing; {AGAIN}")
    return rows


def _has_gap(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_gap, value.values()))
    return any(map(_has_gap, value)) if isinstance(value, list) else value is None
