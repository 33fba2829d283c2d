"""Truncated and bit-flipped files: found by their checksum, named, and never taken for what was written."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from processes import EVALUATE, EVALUATE_WARM_START, RUN, SCALE, TASK, TRAIN, WARM_START, finish, said, start
from same import assert_same_evaluation, assert_same_training

from estr.data.read import read_problems
from estr.embedded.checkpoint import TrainingState, load_state, save_state
from estr.errors import UserError
from estr.evaluation.journal import Journal
from estr.provenance import check_files, read_json, write_json
from estr.report.runs import load_run


def damages(seed: str, content: bytes, cases: int) -> Iterator[bytes]:
    """The content with a bit flipped, cut off somewhere, or with a block of zeros, in turn."""
    rng = random.Random(seed)
    for case in range(cases):
        place = rng.randrange(len(content))
        flipped = bytes([content[place] ^ 1 << rng.randrange(8)])
        zeros = b"\0" * min(64, len(content) - place)
        if case % 3 == 0:
            yield content[:place] + flipped + content[place + 1 :]
        elif case % 3 == 1:
            yield content[:place]
        elif content[place : place + len(zeros)] != zeros:
            yield content[:place] + zeros + content[place + len(zeros) :]


def test_every_bit_of_a_json_file_is_guarded(tmp_path: Path) -> None:
    path, content = tmp_path / "a.json", {"number": 1.5, "text": "ab", "list": [1, None, True], "sha256": "0" * 8}
    write_json(path, content)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert damaged_or_equal(path, content), (place, bit)
        path.write_bytes(whole[:place])
        assert damaged_or_equal(path, content), place


def damaged_or_equal(path: Path, content: dict) -> bool:
    try:
        return read_json(path) == content
    except UserError as error:
        return str(error).startswith(f"{path}: not readable (")


@pytest.mark.parametrize("name", ["run.json", "evaluation.json"])
def test_a_json_file_of_a_run_is_read_as_it_was_written_or_not_at_all(finished: Path, name: str) -> None:
    path = finished / RUN / name
    content, whole = read_json(path), path.read_bytes()
    for damaged in damages(name, whole, 1500):
        path.write_bytes(damaged)
        assert damaged_or_equal(path, content)


def test_json_without_a_checksum_is_of_an_older_version(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1, "b": {"c": 2}}')
    assert read_json(path) == {"a": 1, "b": {"c": 2}}
    path.write_text("[1]")
    with pytest.raises(UserError, match="no JSON object"):
        read_json(path)


def test_every_bit_of_a_journal_is_guarded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, entries = tmp_path / "a.jsonl", [{"number": number} for number in range(3)]
    journal = Journal(path)
    for entry in entries:
        journal.append(entry)
    journal.close()
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            caplog.clear()
            opened = Journal(path)
            opened.close()
            lost = [entry for entry in entries if entry not in opened.lines]
            assert [entry for entry in opened.lines if entry not in entries] == []
            # a newline of two lines costs both; that of the last one looks like a line cut off
            assert len(lost) <= 2 and ("is damaged" in caplog.text or lost in ([], [entries[-1]]))


@pytest.mark.parametrize("kind", ["safetensors", "metrics.parquet", "tokens.parquet", "json"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (3, 6):
        weights = {"a": torch.full((8, 8), float(step))}
        save_state(TrainingState(step, weights, {}, {}, *[pa.table({"step": range(step)})] * 2), tmp_path)
    path = tmp_path / f"step0000006.{kind}"
    for damaged in damages(kind, path.read_bytes(), 300):
        path.write_bytes(damaged)
        caplog.clear()
        state = load_state(tmp_path)
        assert state is not None
        if state.step == 3:
            assert "step0000006.json is damaged" in caplog.text
        else:  # a bit of the checksum's own name, or the line's end
            assert kind == "json"
        assert set(state.weights["a"].flatten().tolist()) == {state.step}
        assert state.metrics.num_rows == state.tokens.num_rows == state.step


def files_of(folder: Path) -> list[str]:
    return sorted(read_json(folder / "run.json")["files"])


def test_every_output_of_a_run_is_guarded(finished: Path) -> None:
    run = finished / RUN
    assert set(files_of(run)) == {"metrics.parquet", "tokens.parquet"} | {
        f"policy/{path.name}" for path in (run / "policy").iterdir()
    }
    for name in files_of(run):
        path = run / name
        whole = path.read_bytes()
        for damaged in damages(name, whole, 60):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{path.name}: damaged .*; delete it and rerun"):
                check_files(run / "run.json")
        path.write_bytes(whole)
    check_files(run / "run.json")


def test_the_report_reads_no_damaged_table(finished: Path) -> None:
    run = finished / RUN
    readers = {"metrics.parquet": load_run, "tokens.parquet": lambda folder: load_run(folder).read_tokens()}
    for name, read in readers.items():
        path = run / name
        whole = path.read_bytes()
        read(run)
        for damaged in damages(f"report {name}", whole, 60):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{name}: damaged"):
                read(run)
        path.write_bytes(whole)


def test_no_damaged_problem_set_is_read(finished: Path) -> None:
    path = finished / "results" / SCALE / "data" / TASK / "eval.parquet"
    problems = read_problems(path)
    for damaged in damages("eval.parquet", path.read_bytes(), 60):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"eval.parquet: damaged"):
            read_problems(path)
    assert len(problems) == 300


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "metrics.parquet", "policy/model.safetensors"])
def test_a_run_of_which_a_file_is_damaged_is_made_again(name: str, finished: Path, unbroken: Path) -> None:
    assert "is complete" in finish(finished, *TRAIN)
    flip(finished / RUN / name)
    code = 0 if name == "metrics.parquet" else 2  # an evaluation reads no table
    if code:
        assert Path(name).name in said(finish(finished, *EVALUATE, code=code))
    printed = finish(finished, *TRAIN)
    assert "is complete" not in printed
    assert f"{Path(name).name}: damaged" in printed or "run.json: not readable" in printed
    assert_same_training(finished, unbroken)
    finish(finished, *EVALUATE)
    assert_same_evaluation(finished, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "metrics.parquet", "tokens.parquet"])
def test_training_goes_on_from_the_last_intact_checkpoint(kind: str, prepared: Path, unbroken: Path) -> None:
    training = start(prepared, *TRAIN)
    training.until(lambda: any((prepared / RUN).glob("state/*/step0000009.json")))
    training.process.kill()
    training.wait()
    newest = sorted((prepared / RUN).glob("state/*/step*.json"))[-1]
    flip(newest.with_suffix(f".{kind}"))
    printed = finish(prepared, *TRAIN)
    assert f"{newest.name} is damaged" in printed and "trying the one before it" in printed
    assert_same_training(prepared, unbroken)


@pytest.mark.slow
def test_damaged_answers_are_sampled_again(finished: Path, unbroken: Path) -> None:
    path = finished / RUN / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    changed = lines[200].replace(b'"tokens": 1', b'"tokens": 2', 1)
    assert changed != lines[200] and json.loads(changed)
    path.write_bytes(b"".join([*lines[:200], changed, *lines[201:]]))
    assert "line 201 is damaged" in finish(finished, *EVALUATE)
    assert_same_evaluation(finished, unbroken)


@pytest.mark.parametrize("place", ["train.parquet", "model.safetensors"])
def test_training_does_not_begin_from_what_is_damaged(place: str, prepared: Path) -> None:
    [path] = (prepared / "results").rglob(place)
    flip(path)
    assert f"{path.relative_to(prepared)}: damaged" in said(finish(prepared, *TRAIN, code=2))


def test_a_damaged_warm_start_is_not_evaluated(prepared: Path) -> None:
    flip(prepared / WARM_START / "model.safetensors")
    assert "model.safetensors: damaged" in said(finish(prepared, *EVALUATE_WARM_START, code=2))
