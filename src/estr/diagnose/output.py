"""The findings as one record for machines, as text for people, and as columns beside the input rows."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from estr.diagnose.dump import SEQUENCE_ROWS, TOKEN_ROWS, Dump, DumpFile
from estr.diagnose.facts import plausibility, staleness_summary
from estr.diagnose.verdicts import Diagnosis, Reading
from estr.errors import UserError


def record(dump: Dump, diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything that was found, ready for JSON; with bounds of the entropy a number may be [low, high].

    Raises:
        UserError: the versions of a trajectory contradict each other.
    """
    staleness, missing = staleness_summary(dump)
    notes = plausibility(dump, diagnosis.usable)
    if dump.step is None:
        notes.append("no step column: the whole file is one update, which matters to M2PO alone")
    if dump.sequence is None:
        notes.append("no sequence column: sequences are not counted")
    readings = [_reading(reading) for reading in diagnosis.readings]
    merged = readings[0] if len(readings) == 1 else _merge(readings[0], readings[1])
    problems = dict.fromkeys(problem for reading in diagnosis.readings for problem in reading.problems)
    problems |= dict.fromkeys(_of_one_bound(diagnosis.readings))
    return {
        "file": str(dump.path),
        "columns": {field: column.name for field, column in dump.columns.items()},
        "tokens": len(dump),
        "outside_response_mask": len(dump.response) - len(dump),
        "sequences": None if dump.sequence is None else len(np.unique(dump.sequence)),
        "steps": None if dump.step is None else len(np.unique(dump.step)),
        "nonfinite": {"tokens": int((~diagnosis.usable).sum()), "first": diagnosis.first_nonfinite},
        "staleness": {kind: asdict(spread) for kind, spread in staleness.items()},
        "entropy_from": "column" if len(diagnosis.readings) == 1 else "top-k bounds",
        **merged,
        "undecided": diagnosis.undecided if len(diagnosis.readings) > 1 else None,
        "notes": [*notes, *missing, *problems],
    }


def text(found: dict[str, Any]) -> str:
    """The record in at most 110 columns, except where a note or a column name is longer."""
    sequences = "" if found["sequences"] is None else f", {found['sequences']:,} sequences"
    steps = "" if found["steps"] is None else f", {found['steps']:,} steps"
    outside = found["outside_response_mask"]
    lines = [
        f"{found['file']}: {found['tokens']:,} response tokens{sequences}{steps}"
        + (f" ({outside:,} tokens outside the response mask)" if outside else ""),
        "columns: "
        + ", ".join(field if field == name else f"{field} <- {name}" for field, name in found["columns"].items()),
        *(_staleness_line(kind, spread) for kind, spread in found["staleness"].items()),
        f"mean entropy {_number(found['mean_entropy'], '.4f')} nats"
        + (", bounded from top-k" if found["undecided"] is not None else ""),
    ]
    nonfinite = found["nonfinite"]
    if nonfinite["tokens"]:
        they = "it, and it is" if nonfinite["tokens"] == 1 else "them, and they are"
        lines.append(
            f"non-finite signals on {nonfinite['tokens']:,} of the tokens: every rule drops {they} left out below; "
            f"the first: {nonfinite['first']}"
        )
    lines += ["", "At published thresholds:", *_table(found["rules"])]
    if found["undecided"] is not None:
        undecided = ", ".join(
            f"{found['rules'][key]['title']}: {count:,}" for key, count in found["undecided"].items() if count
        )
        lines.append(f"  tokens whose verdict depends on the bound of the entropy: {undecided or 'none'}")
    if found["matched"]:
        lines += ["", f"At a budget of {_percent(found['budget'])} masked tokens:", *_table(found["matched"])]
    lines += ["", _fit_line(found["entropy_ratio"])]
    if found["notes"]:
        lines += ["", "Notes:", *(f"  - {note}" for note in found["notes"])]
    lines += ["", "These are the tokens that a rule would drop; whether learning gains by it, only training can tell."]
    return "\n".join(lines)


def kept_columns(diagnosis: Diagnosis) -> dict[str, np.ndarray]:
    """The columns that `write_kept` adds, bool [tokens].

    With bounds of the entropy, `keep_estr` drops what both bounds drop, so that no token goes on a guess.
    """
    columns = {}
    for key, masks in diagnosis.keep.items():
        columns[f"keep_{key}"] = np.logical_or.reduce(masks)
        if len(masks) > 1 and key.startswith("estr"):
            columns[f"keep_{key}_if_entropy_low"], columns[f"keep_{key}_if_entropy_high"] = masks
    return columns


def write_kept(dump: Dump, diagnosis: Diagnosis, out: Path) -> None:
    """Write the dump's rows, unchanged and in order, with one column of verdicts per rule, as parquet.

    A column is bool where a row is a token, and a list of bool, as long as the row's lists, where a row is a
    sequence. Tokens outside the response mask, and non-finite ones, are not kept.

    Raises:
        UserError: `out` is the dump itself, or a column exists already.
    """
    file = DumpFile(dump.path)
    columns = kept_columns(diagnosis)
    refuse_the_dump(out, dump.path)
    known = [name for name in columns if name in file.schema.names]
    if known:
        raise UserError(f"{dump.path}: has a column {known[0]!r} already, which would be written")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    kind = pa.bool_() if dump.lengths is None else pa.list_(pa.bool_())
    schema = file.schema
    for name in columns:
        schema = schema.append(pa.field(name, kind))
    slots = np.flatnonzero(dump.response)
    row = slot = 0
    rows = TOKEN_ROWS if dump.lengths is None else SEQUENCE_ROWS
    with (
        pq.ParquetWriter(partial, schema, compression="zstd") as writer,
        tqdm(total=file.rows, unit=" rows", desc=f"writing {out.name}", disable=None, leave=False) as progress,
    ):
        for batch in file.batches(None, rows):
            lengths = None if dump.lengths is None else dump.lengths[row : row + len(batch)]
            size = len(batch) if lengths is None else int(lengths.sum())
            first, last = np.searchsorted(slots, (slot, slot + size))
            arrays = []
            for keep in columns.values():
                verdict = np.zeros(size, bool)
                verdict[slots[first:last] - slot] = keep[first:last]
                arrays.append(_as_rows(verdict, lengths))
            writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=schema))
            row, slot = row + len(batch), slot + size
            progress.update(len(batch))
    os.replace(partial, out)


def refuse_the_dump(out: Path, dump: Path) -> None:
    """Raises `UserError` if the file that would be written is the dump."""
    if out.exists() and dump.exists() and out.samefile(dump):
        raise UserError(f"{out}: this is the dump itself; write to another file")


def _as_rows(verdict: np.ndarray, lengths: np.ndarray | None) -> pa.Array:
    if lengths is None:
        return pa.array(verdict)
    offsets = np.r_[0, lengths.cumsum()].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(verdict))


def _reading(reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = _without_nan(asdict(reading))
    fit = {name: found.pop(name) for name in ("coefficient", "r_squared", "bins")}
    del found["problems"]
    return found | {"entropy_ratio": fit}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _merge(first: Any, second: Any) -> Any:
    """Equal values as they are, numbers that differ as [low, high]; what only one has as it has it."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = list(first) + [name for name in second if name not in first]
        return {name: _merge(first.get(name), second.get(name)) for name in names}
    if first is None or second is None or first == second:
        return second if first is None else first
    return sorted((first, second))


def _of_one_bound(readings: list[Reading]) -> list[str]:
    """What stands in `matched` although only one bound of the entropy has it."""
    if len(readings) == 1:
        return []
    low, high = (reading.matched for reading in readings)
    return [
        f"matched budget, {reading[key].title}: with the {name} bound of the entropy only"
        for name, reading, other in (("lower", low, high), ("upper", high, low))
        for key in reading
        if key not in other
    ]


def _number(value: Any, form: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "[" + ", ".join(format(one, form) for one in value) + "]"
    return format(value, form)


def _percent(value: Any) -> str:
    return _number([100 * one for one in value] if isinstance(value, list) else 100 * value, ".4g") + " %"


def _table(verdicts: dict[str, dict[str, Any]]) -> list[str]:
    rows = [["", "thresholds", "masked", "fraction", "sequences", "mean H", "only ESTR", "only it", "both"]]
    for key, verdict in verdicts.items():
        agreement = [_number(verdict[name], ",") for name in ("only_estr", "only_rule", "both")]
        rows.append(
            [
                verdict["title"],
                _thresholds(verdict["thresholds"]),
                _number(verdict["masked"], ","),
                _percent(verdict["fraction"]),
                _number(verdict["sequences_masked"], ","),
                _number(verdict["masked_entropy"], ".3f"),
                *(["", "", ""] if key == "estr" else agreement),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append(f"  {row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {'  '.join(cells)}".rstrip())
    return lines


def _thresholds(values: dict[str, Any]) -> str:
    """As `low 0.5, high 5`, without what never changes here."""
    shown = {name: value for name, value in values.items() if name not in ("eps", "eligible")}
    return ", ".join(f"{name} {_number(value, '.4g')}" for name, value in shown.items())


def _staleness_line(kind: str, spread: dict[str, Any]) -> str:
    return f"{kind}-trajectory staleness: mean {spread['mean']:.2f}, from {spread['low']} to {spread['high']} versions"


def _fit_line(fit: dict[str, Any]) -> str:
    if fit["coefficient"] is None:
        return "E[delta^2] = a_B H: too few bins of entropy hold tokens for a fit"
    return (
        f"E[delta^2] = a_B H over {_number(fit['bins'], 'd')} bins of entropy: "
        f"a_B {_number(fit['coefficient'], '.4g')} per nat, R^2 {_number(fit['r_squared'], '.3f')}"
    )
