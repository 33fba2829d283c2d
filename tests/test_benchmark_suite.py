"""Every benchmark at a tiny size: it runs, and its ratios are finite and positive."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import load, mlflow_share, objective, recording, sampling, step, tables
from benchmarks.growth import around, growth
from benchmarks.policies import Load
from benchmarks.step import StepSizes
from benchmarks.timing import Measurement, ProcessSpent, Spent, measured, take_turns
from estr.layout import Layout

LOAD = Load(prompts=2, group=2, prompt_length=3, max_tokens=4, vocabulary=11)
STEP = StepSizes(prompts=2, group=2, max_tokens=5, pretrain_steps=2, problems=16)


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    with step.started(STEP) as layout:
        yield layout


def check(found: list[Measurement], arms: int) -> None:
    assert len(found) == arms
    for each in found:
        for spread in (each.wall, each.cpu, each.seconds, each.baseline_seconds):
            assert all(0 < value < math.inf for value in spread)
            assert spread.low <= spread.median <= spread.high


def test_turns_alternate_and_ratios_pair_them() -> None:
    order: list[str] = []
    took = iter([Spent(9, 9), Spent(9, 9), Spent(6, 2), Spent(3, 1), Spent(2, 1), Spent(8, 6)])

    def arm(name: str) -> Spent:
        order.append(name)
        return next(took)

    spent = take_turns({"a": lambda: arm("a"), "b": lambda: arm("b")}, 2)
    assert order == ["a", "b", "a", "b", "b", "a"]  # the first two are not timed
    ratio = measured("x", "y", "a", "b", spent["a"], spent["b"])
    assert ratio.wall == (2.5, 3, 3.5)
    assert ratio.cpu == (3, 4, 5)
    assert ratio.aim(at_most=4).verdict == ratio.aim(at_least=4).verdict == "met"
    assert ratio.aim(at_most=3.9).verdict == ratio.aim(at_least=4.1).verdict == "missed"


def test_objective() -> None:
    check(objective.alone(4, 16, turns=2), len(objective.RULES) + 2)
    check(objective.in_a_step(4, 16, rows=2, turns=2), len(objective.RULES))


def test_the_plain_loss_is_the_objective_of_a_rule_that_keeps_all() -> None:
    signals = objective.draw_signals(4, 16)
    ours = objective.objective(signals, objective.RULES["keep_all"]).loss
    assert torch.allclose(ours, objective.plain_loss(signals))


def test_samplers() -> None:
    check(recording.per_step(LOAD, turns=2), 2)
    check(sampling.equal_lengths(LOAD, turns=2), 2)
    check(sampling.skewed_lengths(Load(2, 2, 3, 20, 11), spread=1.0, waves=3, turns=2), 1)


def test_generate_samples_as_many_tokens_as_asked_for() -> None:
    model = sampling.as_transformers(LOAD.policy())
    prompts = LOAD.tokens()
    assert sampling.generate(model, prompts, 4).shape == (2, 3 + 4)
    assert sampling.generate(model, prompts, 4, sampling.StopAt(3, [1, 2])).shape == (2, 3 + 2)


def test_whole_step(layout: Layout) -> None:
    check(step.whole_step(layout, STEP, steps=1, turns=1), 3)


def test_mlflow_share(layout: Layout) -> None:
    check(mlflow_share.mlflow_share(layout, STEP, steps=2, turns=1, runs=2), 3)


def test_growth_has_no_targets(layout: Layout) -> None:
    found = growth([(2, 8)], [LOAD], [], layout, turns=1)
    check(found, 3 + 2 + 2)
    assert {each.verdict for each in found} == {""}
    assert [load.rows for load in around(Load())] == [32, 512, 128, 128, 128, 128]


def test_results_of_the_load_are_written_by_name() -> None:
    spent = [ProcessSpent(2.0, 1.0, 100.0), ProcessSpent(4.0, 4.0, 110.0)]
    stage = load.Stage("table 1", "runs", (15, 60), spent)
    found = json.loads(json.dumps(load.content([stage], {"laptop": spent[0]})))
    assert found["plans"] == {"laptop": {"wall": 2.0, "cpu": 1.0, "memory": 100.0}}
    [written] = found["stages"]
    assert (written["sizes"], written["spent"][1]) == ([15, 60], {"wall": 4.0, "cpu": 4.0, "memory": 110.0})
    assert load.table([stage]).endswith("| 15 / 60 runs | 2.0 / 4.0 | 1.0 / 4.0 | 100 / 110 | size^1.00 |")


def test_tables_replace_what_stands_between_the_marks(tmp_path: Path) -> None:
    row = measured("objective", "[1, 2]", "rule", "plain", [Spent(2, 3)], [Spent(1, 2)]).aim(at_most=1.3)
    content = {
        "date": "2000-01-01",
        "commit": "c",
        "machine": {"processor": "p", "cores": 2, "python": "3.11"},
        "packages": {"torch": "1", "transformers": "2", "trl": "3", "mlflow": "4"},
        "load_average": {"before": 0, "after": 1},
        "seconds": {"objective": 60},
        "note": "",
        "measurements": {"objective": [asdict(row) | {"verdict": row.verdict}]},
    }
    assert tables.render(content, "r.json").endswith(
        "| [1, 2] | rule | plain | **1.50 (1.50-1.50)** | 2.00 (2.00-2.00) | 3000 | 2000 | at most 1.3 | missed |\n"
    )
