"""Files of a run that somebody else may have written: tables and JSON objects whose columns and fields have types."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from estr.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

MOST_BYTES = 16 << 30
"""What a table may take in memory by its own footer: a file of a few kilobytes can hold any number of equal rows."""

_HALF = re.compile("[\ud800-\udfff]")
Kind = type | tuple[type | None, ...]
"""`int`, `float` (finite; integers as well), `bool`, `str`, `list`, `dict`, or several of them, None for null."""


def open_table(path: Path) -> pq.ParquetFile:
    """A parquet file that is not larger in memory than `MOST_BYTES`.

    Raises `OSError`, `ValueError` or `pa.ArrowException` for a file that is none, `UserError` for a larger one.
    """
    file = pq.ParquetFile(path)
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    size = sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in chunks)
    if size > MOST_BYTES:
        raise UserError(f"{path}: takes {size >> 30:,} GiB in memory; at most {MOST_BYTES >> 30} are read")
    return file


def read_frame(path: Path, columns: Mapping[str, type], again: str) -> "pd.DataFrame":
    """Read a table that must have these columns, and may have others.

    An `int` or `bool` column has a value in every row, a `float` column takes integers and may have gaps (NaN), a
    `str` column may have gaps. Raises `UserError` naming file and column; `again` says what to do.
    """
    try:
        file = open_table(path)
        schema, table = file.schema_arrow, file.read()
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: does not exist") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as parquet, perhaps truncated; {again}") from error
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}")
    for name, kind in columns.items():
        if schema.names.count(name) > 1 or not _holds(schema.field(name).type, kind):
            found = "there twice" if schema.names.count(name) > 1 else str(schema.field(name).type)[:80]
            raise UserError(f"{path}: column '{name}' is {found}, not {kind.__name__}; {again}")
        if kind in (int, bool) and table[name].null_count:
            raise UserError(f"{path}: column '{name}': row {table[name].is_null().index(True)} has no value; {again}")
    return frame


def _holds(found: pa.DataType, kind: type) -> bool:
    types = pa.types
    if kind is int:
        return bool(types.is_integer(found))
    if kind is float:
        return bool(types.is_integer(found) or types.is_floating(found))
    if kind is bool:
        return bool(types.is_boolean(found))
    values = found.value_type if types.is_dictionary(found) else found
    return bool(types.is_string(values) or types.is_large_string(values))


def require_fields(path: Path, record: Any, fields: Mapping[str, Kind], place: str = "") -> dict[str, Any]:
    """`record` if it is a JSON object with these fields, others aside.

    Raises `UserError` naming file and field, with `place` (`config.`) in front of it.
    """
    if not isinstance(record, dict):
        raise UserError(f"{path}: {place.rstrip('.') or 'what it holds'} is no JSON object")
    if not place and _HALF.search(json.dumps(record, ensure_ascii=False)):
        raise UserError(f"{path}: holds half of a surrogate pair, which is no text")
    for name, kind in fields.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if name not in record or not any(_is(record[name], kind) for kind in kinds):
            raise UserError(f"{path}: field '{place}{name}' is missing or malformed")
    return record


def _is(value: Any, kind: type | None) -> bool:
    if kind is None:
        return value is None
    if isinstance(value, bool) or kind is not float:
        return type(value) is kind
    return (type(value) is int and abs(value) < 1 << 63) or (isinstance(value, float) and math.isfinite(value))
