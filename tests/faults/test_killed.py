"""`estr train` and `estr evaluate`, ended by signals at random moments and begun again until they are done."""

import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from processes import EVALUATE_WARM_START, RUN, SCALE, TRAIN, WARM_START, finish, start
from same import as_bytes, assert_same_evaluation, assert_same_training

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
PROBLEMS = 300


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def training_has_reached(folder: Path, place: str | int) -> bool:
    """`place` is a file of the run, a step with a checkpoint, or "line N": so many answers."""
    if isinstance(place, int):
        return any((folder / RUN).glob(f"state/*/step{place:07d}.safetensors"))
    if place.startswith("line "):
        return lines(folder / RUN / "samples.jsonl") > int(place.removeprefix("line "))
    return (folder / RUN / place).exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(14))
def test_a_training_that_is_killed_ends_as_if_it_was_not(seed: int, prepared: Path, unbroken: Path) -> None:
    rng = random.Random(f"train/{seed}")
    for _ in range(rng.randint(1, 3)):
        answered = f"line {rng.randrange(PROBLEMS)}"
        place = rng.choice([".lock", 3, 3, 6, 9, "metrics.parquet", "policy/model.safetensors", answered, "run.json"])
        training = start(prepared, *TRAIN)
        training.until(lambda place=place: training_has_reached(prepared, place))
        time.sleep(rng.choice([0, rng.uniform(0, 0.02), rng.uniform(0, 0.4)]))
        training.send(rng.choice(SIGNALS))
        training.wait()
        assert "Traceback" not in training.log.read_text()
    finish(prepared, *TRAIN)
    assert_same_training(prepared, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(14))
def test_an_evaluation_that_is_killed_ends_as_if_it_was_not(seed: int, prepared: Path, unbroken: Path) -> None:
    rng = random.Random(f"evaluate/{seed}")
    journal = prepared / WARM_START / "samples.jsonl"
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(PROBLEMS)
        evaluation = start(prepared, *EVALUATE_WARM_START)
        evaluation.until(lambda place=place: lines(journal) > place)
        time.sleep(rng.choice([0, rng.uniform(0, 0.005), rng.uniform(0, 0.4)]))
        evaluation.send(rng.choice(SIGNALS))
        evaluation.wait()
        assert "Traceback" not in evaluation.log.read_text()
    finish(prepared, *EVALUATE_WARM_START)
    assert_same_evaluation(prepared, unbroken, WARM_START)


@pytest.mark.parametrize("kept", [1, 100, 128, 200, 299])
def test_an_evaluation_that_ended_within_a_chunk_gives_the_same_answers(
    kept: int, prepared: Path, unbroken: Path
) -> None:
    """The embedded engine samples 128 problems at a time; what it is asked for later must not shift that."""
    whole = (unbroken / WARM_START / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (prepared / WARM_START / "samples.jsonl").write_bytes(b"".join(whole[: 1 + kept]))
    finish(prepared, *EVALUATE_WARM_START)
    assert_same_evaluation(prepared, unbroken, WARM_START)
    assert lines(prepared / WARM_START / "samples.jsonl") == 1 + PROBLEMS


def caught(process: int, number: signal.Signals) -> bool:
    """Has the process a handler of its own for the signal?"""
    [mask] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.slow
def test_the_warning_before_a_wall_time_leaves_a_checkpoint_that_no_interval_was_due_for(
    prepared: Path, unbroken: Path
) -> None:
    """SIGTERM, as Slurm sends it some time before it kills: the run loses no step."""
    path = prepared / f"configs/scales/{SCALE}.yaml"
    scale = path.read_text().replace("checkpoint_every: 3", "checkpoint_every: 100000")
    path.write_text(scale.replace("  steps: 12\n", "  steps: 100000\n"))
    before = 0
    for _ in range(2):
        training = start(prepared, *TRAIN)
        training.until(partial(caught, training.pid, signal.SIGTERM))
        time.sleep(0.3)
        training.send(signal.SIGTERM)
        assert training.wait() == 130
        newest = max((prepared / RUN).glob("state/*/step*.json"))
        step = int(newest.stem.removeprefix("step"))
        assert f"stopped after step {step}; the same command resumes from there" in training.log.read_text()
        assert step > before
        before = step
        metrics = pq.read_table(newest.with_suffix(".metrics.parquet"))
        whole = pq.read_table(unbroken / RUN / "metrics.parquet")
        assert metrics["step"].to_pylist() == list(range(1, step + 1))
        shared = list(range(min(step, 12)))
        assert as_bytes(metrics.take(shared)) == as_bytes(whole.take(shared))
