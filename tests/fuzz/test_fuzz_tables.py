"""Tables and notes of another run: every column and field is checked where it is read."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing import TEXT, accepted_or_refused, cases, mutated, refused
from hypothesis import given
from hypothesis import strategies as st

from estr import diagnose
from estr.config import resolve
from estr.data.checks import PROBLEMS
from estr.data.read import read_demonstrations, read_problems
from estr.evaluation.compare import compare
from estr.files import typed
from estr.files.typed import MOST_BYTES, read_frame
from estr.layout import Layout
from estr.matched_budget import calibrate_matched_budget, with_thresholds
from estr.pipeline.measurement import load_measurement
from estr.report.calibrations import read_calibrations
from estr.report.frontier import frontier_frame, frontier_views
from estr.report.runs import load_run
from estr.report.samples import load_sample
from estr.tasks import prepared_task
from estr.tasks.base import Problem
from estr.tasks.retrieval import open_local
from estr.tools.bm25 import BM25Index
from tests.diagnose.dumps import TOKENS, as_rows

TYPES = [
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.bool_(),
    pa.null(),
    pa.date32(),
]
TYPES += [
    pa.decimal128(10, 2),
    pa.timestamp("us"),
    pa.list_(pa.float32()),
    pa.list_(pa.list_(pa.int64())),
    pa.dictionary(pa.int8(), pa.string()),
]
TYPES += [pa.struct([("a", pa.int64())]), pa.list_(pa.float32(), 2), pa.map_(pa.string(), pa.int64()), pa.duration("s")]
NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**62]) | st.sampled_from(
    [0.5, float("nan"), float("inf"), -float("inf"), 1e300]
)


@st.composite
def changed_table(draw: st.DrawFn, table: pa.Table) -> pa.Table:
    """The table with one or two columns dropped, renamed, doubled, of another type, with gaps or odd values; or cut."""
    for _ in range(draw(st.integers(1, 2))):
        if not table.column_names:
            break
        place = draw(st.integers(0, table.num_columns - 1))
        name, column = table.column_names[place], table.column(place)
        match draw(
            st.sampled_from(["drop", "rename", "double", "type", "type", "gaps", "values", "values", "rows", "order"])
        ):
            case "drop":
                table = table.remove_column(place)
            case "rename":
                new = draw(TEXT.filter(lambda text: "\ud800" not in text and "\udfff" not in text))
                table = table.rename_columns([*table.column_names[:place], new, *table.column_names[place + 1 :]])
            case "double":
                table = table.append_column(name, column)
            case "type":
                kind = draw(st.sampled_from(TYPES))
                table = table.set_column(place, name, _as_type(column, kind))
            case "gaps":
                mask = [draw(st.booleans()) for _ in range(min(len(table), 8))]
                values = column.to_pylist()
                values[: len(mask)] = [None if gap else value for gap, value in zip(mask, values, strict=False)]
                table = table.set_column(place, name, pa.array(values, column.type))
            case "values":
                values = column.to_pylist()
                if values and (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
                    values[draw(st.integers(0, len(values) - 1))] = draw(NUMBERS)
                    table = table.set_column(
                        place, name, pa.array(np.array(values, np.float64)).cast(column.type, safe=False)
                    )
            case "rows":
                table = table.slice(0, draw(st.integers(0, min(len(table), 2))))
            case _:
                table = table.take(pa.array(list(reversed(range(len(table))))))
    return table


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind, safe=False)
    except (pa.ArrowException, OverflowError):
        return pa.nulls(len(column), kind)


@st.composite
def changed_file(draw: st.DrawFn, path: Path, table: pa.Table) -> Path:
    """A file with a changed table; one in ten times with changed bytes instead."""
    if draw(st.integers(0, 9)):
        pq.write_table(draw(changed_table(table)), path)
        return path
    pq.write_table(table, path)
    content = bytearray(path.read_bytes())
    match draw(st.sampled_from(["cut", "empty", "noise", "other"])):
        case "cut":
            del content[draw(st.integers(0, len(content) - 1)) :]
        case "empty":
            content.clear()
        case "noise":
            for _ in range(draw(st.integers(1, 5))):
                content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        case _:
            content[:] = draw(st.binary(max_size=100))
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


PROBLEM = Problem(
    ({"role": "user", "content": "1+1"},), "2", "sums", "math", "eval", 0, question="1+1", evidence=("d1",)
)
PREPARED = pa.Table.from_pylist([PROBLEM.row()] * 3, schema=PROBLEMS)
SHOWN = pa.table({name: [[{"role": "user", "content": "1+1"}]] * 3 for name in ("prompt", "response")})
DOCUMENTS = pa.table({"docid": ["a", "b"], "text": ["the sea", "a town"], "url": ["", ""]})


@cases(2)
@given(st.data())
def test_any_prepared_set(folder: Path, data: st.DataObject) -> None:
    path = data.draw(changed_file(folder / "eval.parquet", PREPARED))
    found = accepted_or_refused(lambda: read_problems(path), str(path))
    if isinstance(found, list):
        for problem in found:
            assert all(isinstance(text, str) for text in (problem.ground_truth, problem.question, *problem.evidence))
    path = data.draw(changed_file(folder / "demonstrations.parquet", SHOWN))
    accepted_or_refused(lambda: read_demonstrations(path), str(path))


@cases(2)
@given(st.data())
def test_any_corpus(folder: Path, data: st.DataObject) -> None:
    path = data.draw(changed_file(folder / "corpus.parquet", DOCUMENTS))
    found = accepted_or_refused(lambda: open_local(path), *([str(path)]))
    if isinstance(found, BM25Index):
        found.search("sea", 3)


ROWS = pa.table(as_rows(TOKENS))
TOP_K = pa.table({"behavior_logprob": [-0.1] * 3, "target_logprob": [-0.2] * 3, "top": [[-0.1, -3.0]] * 3})
DUMPS = [
    (pa.table(TOKENS), None),
    (pa.table(TOKENS | {"weight_version": [1] * 6, "target_version": [2] * 6}), None),
    (ROWS, None),
    (TOP_K, "top"),
]


@cases(4)
@given(st.sampled_from(range(len(DUMPS))), st.data())
def test_any_dump(folder: Path, number: int, data: st.DataObject) -> None:
    table, topk = DUMPS[number]
    path = data.draw(changed_file(folder / "dump.parquet", table))
    accepted_or_refused(lambda: _diagnose(path, topk), "")


def _diagnose(path: Path, topk: str | None) -> dict[str, Any]:
    dump = diagnose.read_dump(path, {}, topk, 100 if topk else None)
    diagnosis = diagnose.examine(dump, (1.6, 1.0), None)
    found = diagnose.record(dump, diagnosis)
    json.dumps(found)
    assert diagnose.text(found)
    diagnose.write_kept(dump, diagnosis, path.with_name("kept.parquet"))
    return found


CELLS = [
    "behavior_logprob",
    "target_logprob",
    "entropy",
    ",",
    "\n",
    "-1",
    "0",
    "nan",
    "x",
    '"',
    "1e999",
    "9" * 30,
    "\0",
    "é",
    "{",
    "}",
    ":",
    "[",
    "]",
]
CELLS += [
    '{"behavior_logprob": -1, "target_logprob": -1, "entropy": 1}',
    "behavior_logprob,target_logprob,entropy\n",
    "-1,-1,1\n",
]


@cases(2)
@given(st.lists(st.sampled_from(CELLS), max_size=15).map("".join), st.sampled_from(["csv", "jsonl"]))
def test_any_text_dump(folder: Path, text: str, suffix: str) -> None:
    path = folder / f"dump.{suffix}"
    path.write_text(text)
    accepted_or_refused(lambda: _diagnose(path, None), "")


def _steps(count: int = 3) -> dict[str, Any]:
    floats = (
        "reward",
        "masked_fraction",
        "masked_entropy",
        "response_tokens",
        "ratio_deviation",
        "kl_to_behavior",
        "entropy",
    )
    return {"step": np.arange(1, count + 1), **{name: np.full(count, 0.5) for name in floats}}


METRICS = pa.table(_steps())
SIGNALS = pa.table(
    {
        **{name: np.zeros(6, np.int64) for name in ("sequence", "weight_version", "switch_offset")},
        **{
            name: np.linspace(-1, -0.5, 6, dtype=np.float32)
            for name in ("behavior_logprob", "target_logprob", "advantage")
        },
        "entropy": np.linspace(0, 1, 6, dtype=np.float32),
        "position": np.arange(6),
        "step": np.ones(6, np.int64),
        "scenario": ["mismatch"] * 6,
    }
)
CONFIG = resolve("smoke", "dapo_math", "async", 0)
RUN: dict[str, Any] = {name: "x" for name in ("run_id", "scale", "task", "method", "label", "config_hash", "commit")}
RUN |= {
    "seed": 0,
    "config": {"engine": "embedded"},
    "packages": {},
    "machine": {},
    "wall_seconds": 1.5,
    "status": "complete",
}
RUN |= {"steps": 3, "rule": {"name": "entropy_scaled", "tau": 1.6, "eps": 0.01}}
CORRECT = [0, 1, 2, 4]
SCORES = {f"{name}@4": 7 / 16 for name in ("avg", "pass", "best")} | {
    f"{name}@4_ci": [0.0, 1.0] for name in ("avg", "pass", "best")
}
AGENT = {"turns": 1.0, "tool_calls": 0.0, "tool_errors": 0.0, "tokens": 5.0, "completed": 1.0, "recall": None}
EVALUATION: dict[str, Any] = SCORES | {
    "k": 4,
    "task": "x",
    "per_problem_correct": CORRECT,
    "problems_sha256": "0",
    "judge": None,
}
EVALUATION |= {
    "rule": {"name": "r", "version": 1},
    "engine": "e",
    "missing": 0,
    "agent": AGENT,
    "warm_start": SCORES | {"agent": AGENT},
}
SAMPLE: dict[str, Any] = {
    "name": "s",
    "model": "m",
    "licence": "l",
    "commit": "c",
    "prompts": 2,
    "settings": {"group": 3},
}
SAMPLE |= {
    "scenarios": {
        "mismatch": {
            "description": "d",
            "tokens": 6,
            "behavior_dtype": "bfloat16",
            "target_dtype": "x",
            "gradient_steps": 0,
        }
    }
}
FRONTIER = {
    "scale": "s",
    "task": "t",
    "label": "estr",
    "axis": "inter",
    "commit": "c",
    "values": [1, 2],
    "probes": [],
    "seeds": [0],
}
FRONTIER |= {"stable_up_to": 1, "collapses_at": None, "rule": {"name": "x", "tau": 1.0}, "steps": 5}
MATCHED = {"icepop": {"name": "ratio_interval", "low": 0.5, "high": 5.0, "achieved": 0.1}}
CALIBRATION = {"budget": 0.1, "tokens": 5, "steps": [1, 2], "source_runs": ["a"], "rules": MATCHED}
THROUGHPUT: dict[str, Any] = {name: "x" for name in ("scale", "task", "label", "method", "title", "commit")}
THROUGHPUT |= {
    "mode": "colocated",
    "seed": 0,
    "cores": 2,
    "steps": 3,
    "wall_seconds": 1.0,
    "config": {"train": {}},
    "machine": {},
}
THROUGHPUT |= {name: 0.5 for name in ("tokens_per_second_per_core", "trainer_idle_fraction", "rollout_idle_fraction")}
THROUGHPUT |= {"settings": {"warmup_steps": 1, "staleness_threshold": 1, "sync_interval": 1, "slots": 1}}
THROUGHPUT |= {"staleness": {name: 1.0 for name in ("intra_mean", "inter_mean", "intra_max", "inter_max")}}
THROUGHPUT |= {"stages": {name: 1.0 for name in ("generate_seconds", "train_seconds", "sync_seconds")}}
THROUGHPUT |= {"objective": {name: 1.0 for name in ("seconds_rule", "seconds_keep_all", "share_of_step")}}
STEPS = pa.table(
    {"step": [1, 2, 3], "measured": [False, True, True]}
    | {name: [1.0] * 3 for name in ("train_seconds", "sync_seconds", "step_seconds", "response_tokens")}
)
TRAJECTORIES = pa.table({"step": [1, 2], "response_tokens": [3, 4], "started": [0.0, 1.0], "finished": [1.0, 2.0]})
DATA = {
    "task": "dapo_math",
    "version": 1,
    "tools": [],
    "counterpart": {"steps": 3, "largest_term": 9, "largest_total": 60, "skip_rate": 0.1, "slip_rate": 0.1},
}


def write(folder: Path, files: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, pa.Table):
            pq.write_table(content, folder / name)
        else:
            (folder / name).write_text(json.dumps(content))


def use_run(folder: Path) -> None:
    run = load_run(folder)
    assert isinstance(run.thresholds, str)
    run.read_evaluation().behaviour["turns"]
    assert run.read_tokens()["log_ratio"].dtype.kind == "f"


def use_sample(folder: Path) -> None:
    sample = load_sample(folder)
    for name, scenario in sample.scenarios.items():
        assert scenario.maker and sample.short_model is not None
        sample.read_tokens(name)


def use_frontier(folder: Path) -> None:
    frontier_views(frontier_frame([folder]))


def use_measurement(folder: Path) -> None:
    assert load_measurement(folder).step_seconds.sum() is not None


def use_calibration(folder: Path) -> None:
    [found] = read_calibrations([folder / "dapo_math.json"], ["dapo_math"]).values()
    assert found.achieved_percent
    layout = Layout(folder.parent / "results", "smoke")
    layout.calibration("dapo_math").parent.mkdir(parents=True, exist_ok=True)
    (folder / "dapo_math.json").rename(layout.calibration("dapo_math"))
    with_thresholds(layout, resolve("smoke", "dapo_math", "icepop__thresholds=matched", 0))


def use_evaluations(folder: Path) -> None:
    compare(folder / "evaluation.json", folder / "other.json")


def use_data(folder: Path) -> None:
    task = prepared_task("dapo_math", folder, None, lambda text, tokens: text)
    assert task.limits.turns and task.rule.name


def use_tokens(folder: Path) -> None:
    layout = Layout(folder.parent / "results", "smoke")
    layout.run(CONFIG).mkdir(parents=True, exist_ok=True)
    (folder / "tokens.parquet").rename(layout.run(CONFIG) / "tokens.parquet")
    calibrate_matched_budget(layout, "dapo_math", CONFIG)


READERS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "run": (
        use_run,
        {"run.json": RUN, "metrics.parquet": METRICS, "tokens.parquet": SIGNALS, "evaluation.json": EVALUATION},
    ),
    "sample": (use_sample, {"sample.json": SAMPLE, "tokens.parquet": SIGNALS}),
    "frontier": (use_frontier, {"frontier.json": FRONTIER}),
    "measurement": (
        use_measurement,
        {"throughput.json": THROUGHPUT, "steps.parquet": STEPS, "trajectories.parquet": TRAJECTORIES},
    ),
    "calibration": (use_calibration, {"dapo_math.json": CALIBRATION}),
    "compare": (use_evaluations, {"evaluation.json": EVALUATION, "other.json": EVALUATION}),
    "data": (use_data, {"data.json": DATA}),
    "matched budget": (use_tokens, {"tokens.parquet": SIGNALS}),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_files_as_they_should_be(folder: Path, reader: str) -> None:
    use, files = READERS[reader]
    write(folder / reader, files)
    if reader == "matched budget":  # six tokens are no budget
        refused(lambda: use(folder / reader), "tokens.parquet: cannot calibrate")
    else:
        use(folder / reader)


@pytest.mark.parametrize("reader", READERS)
@cases(1)
@given(st.data())
def test_any_file_of_a_run(folder: Path, reader: str, data: st.DataObject) -> None:
    use, files = READERS[reader]
    name = data.draw(st.sampled_from(sorted(files)))
    write(folder / reader, files)
    if isinstance(files[name], pa.Table):
        data.draw(changed_file(folder / reader / name, files[name]))
    else:
        (folder / reader / name).write_text(json.dumps(data.draw(mutated(files[name]))))
    accepted_or_refused(partial(use, folder / reader), str(folder))


def test_a_small_file_of_many_rows_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "bomb.parquet"
    schema = pa.schema([("step", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=True) as writer:
        block = pa.table({"step": pa.array(np.zeros(1 << 22, np.int64))})
        for _ in range(4):
            writer.write_table(block)
    assert path.stat().st_size < 100_000
    assert len(read_frame(path, {"step": int}, "again")) == 4 << 22
    monkeypatch.setattr(typed, "MOST_BYTES", 100 << 20)
    refused(lambda: read_frame(path, {"step": int}, "again"), str(path), "GiB in memory")
    refused(lambda: read_problems(path), str(path), "GiB in memory")
    assert MOST_BYTES == 16 << 30


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 100, b"<html>", bytes(range(256)) * 10])
def test_what_is_no_parquet_file(folder: Path, content: bytes) -> None:
    path = folder / "no.parquet"
    path.write_bytes(content)
    for read in (
        read_problems,
        read_demonstrations,
        open_local,
        diagnose.read_dump,
        partial(read_frame, columns={}, again=""),
    ):
        refused(lambda read=read: read(path), str(path))


def test_names_of_the_readers_are_in_the_messages(folder: Path) -> None:
    use, files = READERS["run"]
    for name, field in itertools.product(["run.json"], sorted(RUN)):
        write(folder / "named", files | {name: {key: value for key, value in RUN.items() if key != field}})
        refused(lambda: use(folder / "named"), "run.json", f"field '{field}' is missing or malformed")


VERSIONED = TOKENS | {"weight_version": [1] * 6, "target_version": [2] * 6}


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("weight_version", [1, 1, 1, 1, 1, -(2**63)], "row 5: -9223372036854775808 is no count of anything"),
        ("target_version", [2**60] * 6, "row 0: 1152921504606846976 is no count of anything"),
        ("sequence", np.zeros(6, np.float16), "holds halffloat; a trajectory has a number or a name"),
        ("sequence", [{"a": 1}] * 6, "holds struct<a: int64>; a trajectory has a number or a name"),
    ],
)
def test_dumps_that_once_ended_in_a_traceback(folder: Path, column: str, values: Any, reason: str) -> None:
    path = folder / "dump.parquet"
    pq.write_table(pa.table(VERSIONED | {column: pa.array(values)}), path)
    refused(lambda: _diagnose(path, None), f"{path}: column '{column}'", reason)


def test_the_names_of_columns_are_listed_in_short(folder: Path) -> None:
    path = folder / "dump.parquet"
    pq.write_table(pa.table({"a\nb": [1.0], "x" * 5_000: [1.0], "entropy": [1.0]}), path)
    refused(lambda: _diagnose(path, None), str(path), "there are a b, xxx")


def test_a_budget_of_no_tokens(folder: Path) -> None:
    write(folder / "empty", {"tokens.parquet": SIGNALS.slice(0, 0)})
    refused(lambda: use_tokens(folder / "empty"), "tokens.parquet: holds no token of the first")


@pytest.mark.parametrize(
    ("reader", "name", "change", "reason"),
    [
        ("run", "run.json", {"rule": {"name": "entropy_scaled", "tau": "x"}}, "field 'rule' is missing or malformed"),
        ("run", "evaluation.json", {"avg@4": float("nan")}, "its per-problem counts give 0.4375"),
        ("run", "evaluation.json", {"sets": [1]}, "is missing or malformed"),
        ("compare", "other.json", {"k": 0}, "k is 4 in one, 0 in the other"),
        ("compare", "other.json", {"per_problem_correct": [1]}, "they differ in the number of problems"),
        ("compare", "evaluation.json", {"per_problem_correct": [0, 1, 2, "4"]}, "no list of counts"),
        ("calibration", "dapo_math.json", {"budget": 10**400}, "a field is missing or malformed"),
        ("calibration", "dapo_math.json", {"rules": {"icepop": []}}, "rules.icepop is no JSON object"),
        (
            "calibration",
            "dapo_math.json",
            {"rules": {"icepop": MATCHED["icepop"] | {"low": 9.0}}},
            "ratio_interval: low",
        ),
        ("frontier", "frontier.json", {"axis": "x"}, "field 'axis' is 'x'"),
        ("data", "data.json", {"counterpart": {}}, "counterpart: key 'steps': Field required"),
        ("measurement", "throughput.json", {"stages": {"generate_seconds": "x"}}, "'stages.generate_seconds'"),
    ],
)
def test_notes_that_once_ended_in_a_traceback(folder: Path, reader: str, name: str, change: Any, reason: str) -> None:
    use, files = READERS[reader]
    write(folder / reader, files | {name: files[name] | change})
    refused(lambda: use(folder / reader), str(folder), reason)
