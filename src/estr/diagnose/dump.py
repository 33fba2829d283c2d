"""Read a dump of tokens: one row per token, or one row per sequence with a list per signal."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from tqdm import tqdm

from estr.diagnose.columns import Column, choose_columns
from estr.diagnose.entropy_bounds import NotTopK, entropy_bounds
from estr.errors import UserError

FLOATS = ("behavior_logprob", "target_logprob", "entropy", "advantage")
WHOLE = ("step", "position", "weight_version", "version_first", "version_last", "target_version")
LARGEST = 1 << 53  # of steps and versions, so that their differences are numbers too
LOGPROB_ROUNDING = 1e-3  # nats; a log-prob above this is none
TOKEN_ROWS, SEQUENCE_ROWS = 1 << 17, 64  # read at once, by layout


@dataclass(frozen=True, eq=False)
class Dump:
    """The response tokens of a file, in its order; every array is [tokens] unless it says otherwise.

    Attributes:
        path: the file.
        columns: where each signal came from.
        entropy: the measured entropy, or its lower and its upper bound; float32, nats.
        behavior_logprob, target_logprob, advantage: float32 (nats); advantage may be missing.
        step, position: int64, may be missing.
        sequence: int32 code, equal for the tokens of one trajectory of one step; may be missing.
        weight_version, version_first, version_last, target_version: int64, may be missing.
        response: bool [slots], which of the file's tokens are response tokens.
        lengths: int64 [rows], slots per row of the file; None if every row is a token.
    """

    path: Path
    columns: dict[str, Column]
    behavior_logprob: np.ndarray
    target_logprob: np.ndarray
    entropy: tuple[np.ndarray, ...]
    advantage: np.ndarray | None
    step: np.ndarray | None
    position: np.ndarray | None
    sequence: np.ndarray | None
    weight_version: np.ndarray | None
    version_first: np.ndarray | None
    version_last: np.ndarray | None
    target_version: np.ndarray | None
    response: np.ndarray
    lengths: np.ndarray | None

    def __len__(self) -> int:
        return len(self.behavior_logprob)

    def place(self, token: int) -> str:
        """Where the file holds this response token; rows are counted from 0."""
        slot = int(np.flatnonzero(self.response)[token])
        return _place(slot, self.lengths, 0)


class DumpFile:
    """The table behind a dump, read in batches; parquet is streamed, .csv and .jsonl are read whole.

    Raises:
        UserError: the file does not exist or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        block = min(max(path.stat().st_size, 1) + 1, 2**31 - 1)  # one block: types are inferred from all rows
        self._table: pa.Table | pq.ParquetFile
        try:
            if path.suffix == ".csv":
                self._table = pa.csv.read_csv(path, read_options=pa.csv.ReadOptions(block_size=block))
            elif path.suffix in (".jsonl", ".json"):
                self._table = pa.json.read_json(path, read_options=pa.json.ReadOptions(block_size=block))
            else:
                self._table = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            kind = path.suffix.removeprefix(".") if path.suffix in (".csv", ".jsonl", ".json") else "parquet"
            raise UserError(f"{path}: cannot be read as {kind}: {str(error).splitlines()[0]}") from error
        parquet = isinstance(self._table, pq.ParquetFile)
        self.schema: pa.Schema = self._table.schema_arrow if parquet else self._table.schema
        self.rows: int = self._table.metadata.num_rows if parquet else self._table.num_rows
        twice = {name for name in self.schema.names if self.schema.names.count(name) > 1}
        if twice:
            raise UserError(f"{path}: has several columns named {', '.join(sorted(twice))}")

    def batches(self, columns: list[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
        """Consecutive rows of the named columns, all if None."""
        if isinstance(self._table, pq.ParquetFile):
            try:
                yield from self._table.iter_batches(batch_size=rows, columns=columns)
            except (OSError, pa.ArrowException) as error:
                raise UserError(f"{self.path}: damaged: {str(error).splitlines()[0]}") from error
        else:
            table = self._table if columns is None else self._table.select(columns)
            yield from table.to_batches(max_chunksize=rows)


def read_dump(
    path: Path, mapping: Mapping[str, str] | None = None, topk: str | None = None, vocabulary: int | None = None
) -> Dump:
    """The tokens of a .parquet, .csv or .jsonl file; what its response mask excludes is left out.

    Args:
        path: the file.
        mapping: column of a signal, where the file's own name is not one of `columns.KNOWN`.
        topk: column with the k largest log-probs of each token; its entropy is then bounded.
        vocabulary: number of tokens of the distribution, for the upper bound.

    Raises:
        UserError: the file or a column is missing, of the wrong kind, or its lists do not match; the message names
            file, column and row. Or only one of `topk` and `vocabulary` is given.
    """
    if (topk is None) != (vocabulary is None):
        raise UserError("--entropy-from-topk COLUMN and --vocabulary N go together")
    file = DumpFile(path)
    columns = choose_columns(path, file.schema.names, mapping or {}, topk)
    reader = _Reader(file, columns, vocabulary)
    with tqdm(total=file.rows, unit=" rows", desc=f"reading {path.name}", disable=None, leave=False) as progress:
        for batch in file.batches(list({column.name: None for column in columns.values()}), reader.rows_at_once):
            reader.add(batch)
            progress.update(len(batch))
    return reader.dump()


class _Reader:
    """Turns batches of rows into arrays of response tokens; `vocabulary` is set if the entropy column holds top-k."""

    def __init__(self, file: DumpFile, columns: dict[str, Column], vocabulary: int | None) -> None:
        self._path = file.path
        self._columns = columns
        self._vocabulary = vocabulary
        self._lists = _is_list(file.schema.field(columns["behavior_logprob"].name).type)
        self.rows_at_once = SEQUENCE_ROWS if self._lists else TOKEN_ROWS
        self._row = 0
        self._k: int | None = None
        self._lengths: list[np.ndarray] = []
        self._response: list[np.ndarray] = []
        self._parts: dict[str, list[np.ndarray]] = {field: [] for field in (*FLOATS, *WHOLE, "lower", "upper")}
        self._sequence: list[pa.Array] = []

    def add(self, batch: pa.RecordBatch) -> None:
        lengths = self._list_lengths(batch, "behavior_logprob") if self._lists else None
        if lengths is not None:
            self._lengths.append(lengths)
        tokens = {field: self._tokens(batch, field, lengths) for field in self._columns if field != "sequence"}
        slots = len(tokens["behavior_logprob"])
        response = np.ones(slots, bool)
        if "response_mask" in tokens:
            response = self._numbers("response_mask", tokens["response_mask"], np.arange(slots), lengths) != 0
        self._response.append(response)
        where = np.flatnonzero(response)
        keep = pa.array(response)
        for field, values in tokens.items():
            if field == "response_mask":
                continue
            values = values.filter(keep)
            if field == "entropy" and self._vocabulary is not None:
                lower, upper = self._bounds(values, where, lengths, self._vocabulary)
                self._parts["lower"].append(lower.astype(np.float32))
                self._parts["upper"].append(upper.astype(np.float32))
            else:
                self._parts[field].append(self._numbers(field, values, where, lengths))
        self._add_sequence(batch, lengths, keep)
        self._row += len(batch)

    def dump(self) -> Dump:
        response = np.concatenate(self._response) if self._response else np.empty(0, bool)
        if not response.any():
            raise UserError(f"{self._path}: holds no response token")
        names = {"lower", "upper"} if self._vocabulary is not None else {"entropy"}
        entropy = tuple(self._joined(name) for name in ("entropy", "lower", "upper") if name in names)
        optional = ("advantage", *WHOLE)
        signals = {field: self._joined(field) if field in self._columns else None for field in optional}
        return Dump(
            path=self._path,
            columns=self._columns,
            behavior_logprob=self._joined("behavior_logprob"),
            target_logprob=self._joined("target_logprob"),
            entropy=entropy,
            sequence=self._sequence_codes(signals["step"]),
            response=response,
            lengths=np.concatenate(self._lengths) if self._lists else None,
            **signals,
        )

    def _joined(self, field: str) -> np.ndarray:
        return np.concatenate(self._parts.pop(field))

    def _tokens(self, batch: pa.RecordBatch, field: str, lengths: np.ndarray | None) -> pa.Array:
        """One value per token; a value per row is repeated over the row's tokens."""
        name = self._columns[field].name
        values = batch.column(name)
        topk = field == "entropy" and self._vocabulary is not None
        lists = _is_list(values.type) and not (topk and not _is_list(values.type.value_type))
        if topk and not _is_list(values.type):
            raise self._error(name, "holds no lists of top-k log-probs")
        if topk and self._lists and not lists:
            raise self._error(name, "needs a list of top-k log-probs for every token of a row")
        if not lists:
            if lengths is None:
                return values
            if field in ("target_logprob", "entropy"):
                raise self._error(name, f"holds one value per row, {self._columns['behavior_logprob'].name} a list")
            return values.take(pa.array(np.repeat(np.arange(len(batch)), lengths)))
        if lengths is None:
            raise self._error(name, f"holds lists, {self._columns['behavior_logprob'].name} one value per row")
        found = self._list_lengths(batch, field)
        different = np.flatnonzero(found != lengths)
        if len(different):
            row = int(different[0])
            raise self._error(
                name,
                f"row {self._row + row} has {found[row]} values, "
                f"{self._columns['behavior_logprob'].name} has {lengths[row]}",
            )
        return values.flatten()

    def _list_lengths(self, batch: pa.RecordBatch, field: str) -> np.ndarray:
        name = self._columns[field].name
        lengths = pc.list_value_length(batch.column(name))
        if lengths.null_count:
            raise self._error(name, f"row {self._row + _first(lengths.is_null())} has no list")
        found: np.ndarray = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def _numbers(self, field: str, values: pa.Array, where: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
        """float32, NaN where nothing stands, for `FLOATS`; int64 for everything else."""
        name = self._columns[field].name

        def wrong(index: int, reason: str) -> UserError:
            return self._error(name, f"{_place(int(where[index]), lengths, self._row)}: {reason}")

        kind = values.type
        if pa.types.is_boolean(kind) and field == "response_mask":
            values = values.cast(pa.int8())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            if values.null_count < len(values):
                raise self._not_numbers(name, values, wrong)
            values = pa.nulls(len(values), pa.float32())
        if field in FLOATS:
            numbers: np.ndarray = values.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
            if field.endswith("logprob") and (numbers > LOGPROB_ROUNDING).any():
                index = int((numbers > LOGPROB_ROUNDING).argmax())
                raise wrong(index, f"{numbers[index]:g} is no log-probability, which is at most 0")
            return numbers
        if values.null_count:
            raise wrong(_first(values.is_null()), "no value")
        try:
            whole: np.ndarray = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
            index = int((numbers != np.round(numbers)).argmax())
            raise wrong(index, f"{numbers[index]:g} is not a whole number") from error
        if len(whole) and max(-int(whole.min()), int(whole.max())) > LARGEST:
            index = int(((whole > LARGEST) | (whole < -LARGEST)).argmax())
            raise wrong(index, f"{whole[index]} is no count of anything")
        return whole

    def _not_numbers(self, name: str, values: pa.Array, wrong: Callable[[int, str], UserError]) -> UserError:
        for index, value in enumerate(values):
            try:
                float(str(value.as_py()))
            except ValueError:
                if value.is_valid:
                    return wrong(index, f"{value.as_py()!r} is not a number")
        return self._error(name, f"holds {values.type}, not numbers")

    def _bounds(
        self, values: pa.Array, where: np.ndarray, lengths: np.ndarray | None, vocabulary: int
    ) -> tuple[np.ndarray, np.ndarray]:
        name = self._columns["entropy"].name
        if not len(values):
            return np.empty(0), np.empty(0)
        sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        self._k = int(sizes[0]) if self._k is None else self._k
        if (sizes != self._k).any() or self._k == 0:
            index = int((sizes != self._k).argmax())
            raise self._error(
                name,
                f"{_place(int(where[index]), lengths, self._row)}: {sizes[index]} log-probs, the first token has "
                f"{self._k}; every token needs its k largest, without the sampled token where that is not among them",
            )
        flat = values.flatten()
        if not pa.types.is_floating(flat.type):
            raise self._error(name, f"holds lists of {flat.type}, not of log-probs")
        logprobs = flat.to_numpy(zero_copy_only=False).reshape(-1, self._k)
        try:
            return entropy_bounds(logprobs, vocabulary)
        except NotTopK as error:
            place = _place(int(where[error.token]), lengths, self._row)
            raise self._error(name, f"{place}: {error}") from error
        except ValueError as error:
            raise self._error(name, str(error)) from error

    def _add_sequence(self, batch: pa.RecordBatch, lengths: np.ndarray | None, keep: pa.Array) -> None:
        if lengths is not None:
            rows = np.repeat(np.arange(self._row, self._row + len(batch)), lengths)
            self._sequence.append(pa.array(rows).filter(keep))
        elif "sequence" in self._columns:
            name = self._columns["sequence"].name
            values = batch.column(name)
            if _is_list(values.type):
                raise self._error(name, f"holds lists, {self._columns['behavior_logprob'].name} one value per row")
            if values.null_count:
                raise self._error(name, f"row {self._row + _first(values.is_null())}: no value")
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if not (
                pa.types.is_integer(values.type)
                or pa.types.is_string(values.type)
                or pa.types.is_large_string(values.type)
            ):
                raise self._error(name, f"holds {values.type}; a trajectory has a number or a name")
            self._sequence.append(values.filter(keep))

    def _sequence_codes(self, step: np.ndarray | None) -> np.ndarray | None:
        if not self._sequence:
            return None
        values = pa.chunked_array(self._sequence).combine_chunks()
        self._sequence = []
        codes = values.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if step is not None:
            steps = pa.array(step).dictionary_encode().indices.to_numpy(zero_copy_only=False)
            codes += steps.astype(np.int64) * (codes.max() + 1)
            codes = pa.array(codes).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        small: np.ndarray = codes.astype(np.int32)
        return small

    def _error(self, column: str, reason: str) -> UserError:
        return UserError(f"{self._path}: column {column!r}: {reason}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _first(mask: pa.Array) -> int:
    return int(mask.to_numpy(zero_copy_only=False).argmax())


def _place(slot: int, lengths: np.ndarray | None, first_row: int) -> str:
    """`row 3` or `row 3, token 5` of the slot-th token from row `first_row` on."""
    if lengths is None:
        return f"row {first_row + slot}"
    ends = lengths.cumsum()
    row = int(np.searchsorted(ends, slot, side="right"))
    return f"row {first_row + row}, token {slot - int(ends[row] - lengths[row])}"
