"""Prepare the real benchmarks: read what is published, check it, write it in the one schema that verl reads.

    estr data prepare <task> --scale paper [--from DIR]

leaves `train.parquet`, `eval.parquet`, `corpus.parquet` where there is one, and `data.json`, which says what they hold
and where it came from. Either all of them are written or none.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from estr.data.browsecomp import SPLIT_NOTE, WARNING, canary_text, decrypted, held_out, require_ignored
from estr.data.checks import PROBLEMS, check_parts, check_unique, content_hash, repeated_questions, without_overlap
from estr.data.corpora import Document, browsecomp_document, wikipedia_document, write_corpus
from estr.data.dapo import distinct_records
from estr.data.published import SOURCES
from estr.data.sources import Reading, Source, open_source
from estr.errors import UserError
from estr.provenance import file_digests, write_json
from estr.tasks.base import Problem
from estr.tasks.benchmarks import BENCHMARKS
from estr.tasks.browsecomp_plus import browsecomp_problem
from estr.tasks.dapo_math import AIME, aime_problem, dapo_problem
from estr.tasks.gsm8k import gsm8k_problem
from estr.tasks.search_r1 import data_source, search_r1_problem

Row = Mapping[str, Any]
Readings = Mapping[str, Reading]

ORACLE_NOTE = (
    "The tool calc_gsm8k_reward tells the policy whether its answer is right before it commits to it: scores are those "
    "of verl's multi-turn recipe (and of the paper), not plain GSM8K scores."
)
_DOCUMENTS: dict[str, Document] = {"browsecomp_plus": browsecomp_document, "search_r1": wikipedia_document}
_CHUNK = 1_000  # problems


def prepare_benchmark(
    name: str,
    folder: Path,
    source: Path | None = None,
    *,
    oracle: bool = True,
    get_document: bool = False,
    corpus: bool | None = None,
    canary: str | None = None,
    sources: Mapping[str, Source] | None = None,
) -> None:
    """Write the sets of a benchmark into `folder`, from the Hugging Face Hub or from copies below `source`.

    `oracle` (gsm8k) and `get_document` (browsecomp_plus) pick the tools that the prompts name. `corpus` adds the
    documents to search; by default those of browsecomp_plus only, since search_r1's are 21 million. `canary` decrypts
    browsecomp_plus; by default it is read from `ESTR_BROWSECOMP_PLUS_CANARY`. `sources` replaces the published sets
    (`estr.data.published.SOURCES[name]`) by others of the same form.

    Raises `UserError` for a set that cannot be had, or is not what was published; `folder` stays as it was then.
    """
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; the benchmarks are {', '.join(BENCHMARKS)}")
    with_corpus = name == "browsecomp_plus" if corpus is None else corpus
    if with_corpus and name not in _DOCUMENTS:
        raise UserError(f"{name} has no corpus to search; leave out --corpus")
    key = ""
    if name == "browsecomp_plus":
        require_ignored(folder)
        key = canary_text(canary)
    wanted = sources or SOURCES[name]
    readings = {part: open_source(wanted[part], source) for part in wanted if part != "corpus" or with_corpus}
    match name:
        case "dapo_math":
            train, evaluation = _dapo_math(readings)
        case "gsm8k":
            train, evaluation = _gsm8k(readings, oracle)
        case "browsecomp_plus":
            train, evaluation = _browsecomp_plus(readings["questions"], key, get_document)
        case _:
            train, evaluation = _search_r1(readings)
    train.table, removed = without_overlap(train.table, evaluation.table, train.place)
    train.counts["left_out_as_in_eval"] = removed
    with _staged(folder) as staged:
        note: dict[str, Any] = {
            "task": name,
            "version": BENCHMARKS[name]().version,
            "tools": _tools(name, oracle, get_document),
            "sets": {"train": train.write(staged / "train.parquet"), "eval": evaluation.write(staged / "eval.parquet")},
        }
        if with_corpus:
            evidence = pc.struct_field(pa.concat_tables([train.table, evaluation.table])["extra_info"], "evidence")
            needed = set(pc.list_flatten(evidence).to_pylist())
            note["sets"]["corpus"] = write_corpus(
                readings["corpus"], _DOCUMENTS[name], staged / "corpus.parquet", needed
            )
        if name == "browsecomp_plus":
            note |= {"split_note": SPLIT_NOTE, "warning": WARNING}
            for split in ("train", "eval"):
                (staged / f"{split}.parquet").chmod(0o600)
        if name == "gsm8k" and oracle:
            note["oracle_note"] = ORACLE_NOTE
        write_json(staged / "data.json", note | {"files": file_digests(staged, ["*.parquet"])})


@dataclass
class _Set:
    """Problems on their way to a file; `place` is for messages."""

    table: pa.Table
    place: str
    counts: dict[str, Any]
    sources: list[dict[str, Any]]

    def write(self, path: Path) -> dict[str, Any]:
        pq.write_table(self.table, path, compression="zstd")
        parts = pc.value_counts(self.table["data_source"]).to_pylist()
        return {
            "rows": len(self.table),
            "sha256": content_hash(self.table),
            "parts": {part["values"]: part["counts"] for part in parts},
            **self.counts,
            "sources": self.sources,
        }


def _collect(reading: Reading, rows: Iterable[tuple[int, Row]], build: Callable[[Row, int], Problem]) -> _Set:
    """The problems that `build(row, index)` makes of (number in the source, row), checked on their own."""
    tables: list[pa.Table] = []
    pending: list[dict[str, Any]] = []
    for index, (number, row) in enumerate(rows):
        try:
            pending.append(build(row, index).row())
        except ValueError as error:
            raise UserError(f"{reading.place}: row {number}: {error}") from error
        if len(pending) == _CHUNK:
            tables.append(pa.Table.from_pylist(pending, schema=PROBLEMS))
            pending = []
    table = pa.concat_tables([*tables, pa.Table.from_pylist(pending, schema=PROBLEMS)])
    ids = pc.struct_field(table["extra_info"], "id").to_pylist()
    check_unique(zip(table["data_source"].to_pylist(), ids, strict=True), reading.place)
    counts = repeated_questions(table, reading.place, reading.source.repeats, reading.source.disagrees)
    return _Set(table, reading.place, counts, [reading.note()])


def _gsm8k(readings: Readings, oracle: bool) -> tuple[_Set, _Set]:
    train, evaluation = (
        _collect(readings[split], readings[split].rows(), partial(gsm8k_problem, split=split, oracle=oracle))
        for split in ("train", "eval")
    )
    return train, evaluation


def _dapo_math(readings: Readings) -> tuple[_Set, _Set]:
    train = _collect(readings["train"], distinct_records(readings["train"]), dapo_problem)
    parts: list[_Set] = []
    for name in AIME:
        start = sum(len(part.table) for part in parts)
        parts.append(_collect(readings[name], readings[name].rows(), partial(aime_problem, name=name, start=start)))
    return train, _merged(parts)


def _browsecomp_plus(reading: Reading, canary: str, get_document: bool) -> tuple[_Set, _Set]:
    rows = []
    for number, row in reading.rows():
        try:
            rows.append((number, decrypted(row, canary)))
        except ValueError as error:
            raise UserError(f"{reading.place}: row {number}: {error}") from error
    query_ids = [row["query_id"] for _, row in rows]
    check_unique(query_ids, reading.place)
    evaluated = held_out(query_ids)
    train, evaluation = (
        _collect(
            reading,
            [(number, row) for number, row in rows if (row["query_id"] in evaluated) == (split == "eval")],
            partial(browsecomp_problem, split=split, get_document=get_document),
        )
        for split in ("train", "eval")
    )
    return train, evaluation


def _search_r1(readings: Readings) -> tuple[_Set, _Set]:
    train, evaluation = (
        _collect(readings[split], readings[split].rows(), partial(search_r1_problem, split=split))
        for split in ("train", "eval")
    )
    for prepared, reading in ((train, readings["train"]), (evaluation, readings["eval"])):
        published = {data_source(part): rows for part, rows in reading.source.parts.items()}
        check_parts(prepared.table["data_source"], published, prepared.place)
    return train, evaluation


def _merged(parts: Sequence[_Set]) -> _Set:
    table = pa.concat_tables([part.table for part in parts])
    place = " and ".join(part.place for part in parts)
    counts = repeated_questions(table, place, may_repeat=False, may_disagree=False)
    return _Set(table, place, counts, [note for part in parts for note in part.sources])


def _tools(name: str, oracle: bool, get_document: bool) -> list[str]:
    """What the prompts name; `estr.tasks.benchmarks.benchmark` offers the same."""
    match name:
        case "gsm8k":
            return ["calc_gsm8k_reward" if oracle else "calculator"]
        case "browsecomp_plus":
            return ["search", "get_document"] if get_document else ["search"]
        case "search_r1":
            return ["search"]
    return []


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A folder whose files move into `folder` at the end, `data.json` last, or vanish with an exception."""
    new = not folder.exists()
    staged = folder / ".partial"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        yield staged
        (folder / "data.json").unlink(missing_ok=True)
        for file in sorted(staged.iterdir(), key=lambda file: file.name == "data.json"):
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        if new and not any(folder.iterdir()):
            folder.rmdir()
