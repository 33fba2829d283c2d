"""What must not differ between a run that met faults and one that did not."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from processes import RUN

from estr.provenance import read_json
from estr.records import CLOCK_COLUMNS


def assert_same_training(folder: Path, unbroken: Path) -> None:
    """Both tables but for the clock, every file of the policy, and its answers."""
    for name in ("metrics.parquet", "tokens.parquet"):
        assert columns(folder / RUN / name) == columns(unbroken / RUN / name), name
    wanted = sorted((unbroken / RUN / "policy").iterdir())
    assert sorted(path.name for path in (folder / RUN / "policy").iterdir()) == [path.name for path in wanted]
    for path in wanted:
        assert (folder / RUN / "policy" / path.name).read_bytes() == path.read_bytes(), path.name
    assert answers(folder / RUN) == answers(unbroken / RUN)
    assert (
        read_json(folder / RUN / "run.json")["files"].keys() == read_json(unbroken / RUN / "run.json")["files"].keys()
    )
    assert not (folder / RUN / "state").exists()


def assert_same_evaluation(folder: Path, unbroken: Path, of: Path = RUN) -> None:
    assert answers(folder / of) == answers(unbroken / of)
    assert (folder / of / "evaluation.json").read_bytes() == (unbroken / of / "evaluation.json").read_bytes()


def columns(path: Path) -> bytes:
    """A table as bytes, without what the clock decides."""
    return as_bytes(pq.read_table(path))


def as_bytes(table: pa.Table) -> bytes:
    table = table.drop_columns([name for name in CLOCK_COLUMNS if name in table.column_names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def answers(folder: Path) -> dict[int, Any]:
    """The samples of each problem; a later line replaces an earlier one."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_bytes().splitlines()[1:]]
    return {line["index"]: line["samples"] for line in lines}
