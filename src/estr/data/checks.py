"""The schemas of what is prepared, and the checks that a published set must pass."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from estr.errors import UserError

TOLERATED = 0.001
"""A published set may repeat a question now and then; a larger share of its rows means a wrong copy."""

_MESSAGE = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])
PROBLEMS = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(_MESSAGE)),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("agent_name", pa.string()),
        (
            "extra_info",
            pa.struct(
                [
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("question", pa.string()),
                    ("id", pa.string()),
                    ("evidence", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)
"""Train and evaluation sets, whatever their rows hold: the columns of `Problem.row()`."""

DEMONSTRATIONS = pa.schema([("prompt", pa.list_(_MESSAGE)), ("response", pa.list_(_MESSAGE))])
"""Worked dialogues for the warm start."""

CORPUS = pa.schema([("docid", pa.string()), ("text", pa.string()), ("url", pa.string())])
"""Documents to search; `url` is empty where a corpus has none."""

Kind: TypeAlias = "pa.DataType | tuple[pa.DataType, ...]"
"""A type wanted of a column, or several to choose from. A struct may have further fields."""


def mismatch(actual: pa.DataType, wanted: Kind) -> str | None:
    """`actual` in words if it is none of the wanted types, up to width (32, 64 bits) and offset size."""
    options = wanted if isinstance(wanted, tuple) else (wanted,)
    return None if any(_conforms(actual, option) for option in options) else str(actual)


def describe(wanted: Kind) -> str:
    return " or ".join(map(str, wanted)) if isinstance(wanted, tuple) else str(wanted)


def _conforms(actual: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(actual) or pa.types.is_large_string(actual))
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(actual))
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(actual) or pa.types.is_large_list(actual)
        return bool(is_list and _conforms(actual.value_type, wanted.value_type))
    if pa.types.is_struct(wanted):
        return bool(
            pa.types.is_struct(actual)
            and all(
                actual.get_field_index(field.name) >= 0 and _conforms(actual.field(field.name).type, field.type)
                for field in wanted
            )
        )
    return bool(actual == wanted)


def tolerated(rows: int) -> int:
    return int(TOLERATED * rows)


def normalized(question: str) -> str:
    """What two questions are compared by: case, width and spacing do not count."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())


def first_blank(column: pa.ChunkedArray) -> int | None:
    """Position of the first value that is null, or text of nothing but white space."""
    blank = pc.is_null(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        length = pc.utf8_length(pc.utf8_trim_whitespace(column))
        blank = pc.or_(blank, pc.fill_null(pc.equal(length, 0), False))
    row = pc.index(blank, True).as_py()
    return None if row < 0 else int(row)


def check_unique(ids: Iterable[Any], place: str) -> None:
    """Raises `UserError` naming two rows that have the same id."""
    repeated = _first_repeated(ids)
    if repeated:
        key, first, second = repeated
        raise UserError(f"{place}: rows {first} and {second} have the same id {key!r}; get a new copy")


def repeated_questions(table: pa.Table, place: str, may_repeat: bool, may_disagree: bool) -> dict[str, int]:
    """How many rows repeat the question of an earlier one, and how many questions have more than one answer.

    Raises `UserError` if either is above what is tolerated and not known of the published set.
    """
    questions = [normalized(question) for question in _info(table, "question").to_pylist()]
    keys = list(zip(table["data_source"].to_pylist(), questions, strict=True))
    answers: dict[tuple[str, str], set[str]] = {}
    for key, answer in zip(keys, pc.struct_field(table["reward_model"], "ground_truth").to_pylist(), strict=True):
        answers.setdefault(key, set()).add(answer)
    repeats = len(keys) - len(answers)
    disagreements = sum(len(texts) > 1 for texts in answers.values())
    for count, allowed, what in (
        (repeats, may_repeat, "repeat the question of an earlier row"),
        (disagreements, may_disagree, "ask a question that another row answers differently"),
    ):
        if count > tolerated(len(table)) and not allowed:
            repeated = _first_repeated(keys)
            where = f", the first are rows {repeated[1]} and {repeated[2]}" if repeated else ""
            raise UserError(f"{place}: {count} of {len(table)} rows {what}{where}; get a new copy")
    return {"repeated_questions": repeats, "questions_with_several_answers": disagreements}


def without_overlap(train: pa.Table, evaluation: pa.Table, place: str) -> tuple[pa.Table, int]:
    """The training rows whose question is not in the evaluation set, and how many were left out.

    Raises `UserError` if these are more than tolerated: then a file is in the wrong place.
    """
    held_out = {normalized(question) for question in _info(evaluation, "question").to_pylist()}
    shared = [normalized(question) in held_out for question in _info(train, "question").to_pylist()]
    count = sum(shared)
    if count > tolerated(len(train)):
        row = shared.index(True)
        raise UserError(
            f"{place}: {count} of {len(train)} training questions are in the evaluation set too (the first is row "
            f"{row}); is a file in the wrong place?"
        )
    return (train.filter(pa.array([not s for s in shared])) if count else train), count


def check_parts(column: pa.ChunkedArray, parts: Mapping[str, int], place: str) -> None:
    """Raises `UserError` unless `column` holds each name of `parts` as often as it says."""
    found = Counter(column.to_pylist())
    for name in {**parts, **found}:
        if found[name] != parts.get(name, 0):
            raise UserError(
                f"{place}: {found[name]:,} rows of {name!r}, where the published set has {parts.get(name, 0):,}"
            )


class ContentHash:
    """SHA-256 of rows in order, whatever file format and encoding they are kept in: one JSON line each."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._hash.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def content_hash(table: pa.Table) -> str:
    digest = ContentHash()
    for batch in table.to_batches(max_chunksize=1_000):
        digest.update(batch.to_pylist())
    return digest.hexdigest()


def _info(table: pa.Table, field: str) -> pa.ChunkedArray:
    return pc.struct_field(table["extra_info"], field)


def _first_repeated(keys: Iterable[Any]) -> tuple[Any, int, int] | None:
    first: dict[Any, int] = {}
    for row, key in enumerate(keys):
        if key in first:
            return key, first[key], row
        first[key] = row
    return None
