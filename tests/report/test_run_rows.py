"""What the tables of training runs share: rows, stability, differences, ranges."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.evaluation.paired import PairedDifference
from estr.report.run_rows import (
    RUN_COLUMNS,
    difference_columns,
    groups_of,
    ordering_columns,
    overridden,
    range_of_avg,
    run_row,
    stability_columns,
)
from estr.report.run_views import ours_note, runs_cell, stable_cell, stable_note
from estr.report.runs import load_runs
from estr.report.scores import Scores


def with_reward(run_dir: Path, reward: list[float]) -> None:
    path = run_dir / "metrics.parquet"
    frame = pd.read_parquet(path)
    frame.assign(reward=reward[: len(frame)]).to_parquet(path)


def test_a_row_has_the_numbers_and_where_they_come_from(folder: ResultsFolder) -> None:
    folder.write("estr", 0, correct=[4, 0])
    folder.write("estr", 1, correct=[4, 4])
    [group] = groups_of(load_runs(folder.run_dirs), lambda run: run.label).values()
    row = run_row(group, bootstrap_seed=0)
    assert set(row) == {"scale", "task", *RUN_COLUMNS}
    assert (row["ours_avg_percent"], row["ours_avg_percent_sd"]) == pytest.approx((75, 50 / math.sqrt(2)))
    assert (row["n_seeds"], row["n_problems"], row["k"], row["n_stable"]) == (2, 2, 4, 2)
    assert row["run_ids"].split() == ["laptop/dapo_math/estr/seed0", "laptop/dapo_math/estr/seed1"]
    assert (row["thresholds"], row["scored_by"]) == ("tau=1.6, eps=0.01", "rule dapo_math v1")


def test_a_collapsed_seed_is_counted_and_named(folder: ResultsFolder) -> None:
    with_reward(folder.write("icepop", 0), [0.4] * 60)
    with_reward(folder.write("icepop", 1), [0.4] * 40 + [0.0] * 20)
    group = groups_of(load_runs(folder.run_dirs), lambda run: run.label)["icepop"]
    row = pd.Series(run_row(group, bootstrap_seed=0))
    assert row["n_stable"] == 1 and stable_cell(row) == "1 of 2"
    # the mean over ten steps falls below 0.2 with the sixth zero, at step 46
    assert row["collapses"] == "seed 1 at step 46"
    assert "Collapsed: icepop/seed{0,1} (seed 1 at step 46)" in stable_note(row.to_frame().T)


def test_a_reward_that_is_none_is_the_files_fault(folder: ResultsFolder) -> None:
    path = folder.write("estr", 0)
    with_reward(path, [0.4] * 59 + [math.nan])
    with pytest.raises(UserError, match=r"seed0/metrics\.parquet: column reward"):
        stability_columns(load_runs(folder.run_dirs))


def test_runs_are_grouped_by_any_setting_but_evaluated_alike(folder: ResultsFolder) -> None:
    for label in ("estr__intra=5", "estr__inter=1__intra=5", "estr"):
        folder.write(label, 0, correct=[1, 2])
    runs = load_runs(folder.run_dirs)
    groups = groups_of(runs, lambda run: run.config["staleness"]["intra"])
    assert {key: [run.label for run in group.runs] for key, group in groups.items()} == {
        8: ["estr"],
        5: ["estr__intra=5", "estr__inter=1__intra=5"],
    }
    assert [overridden(run) for run in runs] == [set(), {"intra"}, {"intra", "inter"}]
    folder.write("estr__intra=7", 0, correct=[1, 2, 3])
    with pytest.raises(UserError, match="not evaluated alike"):
        groups_of(load_runs(folder.run_dirs), lambda run: run.label)


def test_a_difference_has_a_verdict_only_where_the_paper_has_one() -> None:
    ours = PairedDifference(2.0, 1.0, 3.0)
    plain = {"avg_minus_x": 2.0, "avg_minus_x_low": 1.0, "avg_minus_x_high": 3.0}
    assert difference_columns("avg_minus_x", None, ours) == plain == ordering_columns("avg_minus_x", None, ours)
    assert ordering_columns("avg_minus_x", -0.5, ours) == plain | {
        "paper_avg_minus_x": -0.5,
        "avg_vs_x_verdict": "not held",
    }
    assert ordering_columns("avg_minus_x", 0.5, None) == {"paper_avg_minus_x": 0.5, "avg_vs_x_verdict": "not tested"}


def scores(by_seed: dict[int, list[float]]) -> Scores:
    return Scores(tuple(by_seed), {"avg": np.array(list(by_seed.values()))})


def test_the_range_is_over_the_seeds_that_all_settings_have() -> None:
    """Seed 2 of the first would make it the best by far."""
    settings = {
        0.7: scores({0: [0.25, 0.25], 1: [0.25, 0.25], 2: [1.0, 1.0]}),
        1.0: scores({1: [0.75, 0.75], 0: [0.75, 0.75]}),
        1.6: scores({0: [0.5, 0.5], 1: [0.5, 0.5]}),
    }
    found = range_of_avg(settings, bootstrap_seed=0)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((50, 50, 50))
    assert range_of_avg({1.0: settings[1.0]}, 0) is None
    assert range_of_avg({1.0: settings[1.0], 1.6: scores({5: [0.5, 0.5]})}, 0) is None
    assert range_of_avg({}, 0) is None


def test_the_note_says_what_ours_is(folder: ResultsFolder) -> None:
    folder.write("estr", 0)
    [group] = groups_of(load_runs(folder.run_dirs), lambda run: run.label).values()
    frame = pd.DataFrame([run_row(group, 0), {"scale": "laptop", "task": "dapo_math"}])
    note = ours_note(frame)
    assert note.startswith(
        "Ours: laptop counterpart of DAPO-Math (AIME) at laptop scale, embedded engine, scored by rule"
    )
    assert "levels cannot agree" in note and "Run ids start with laptop/dapo_math/." in note
    assert runs_cell(frame.iloc[0]) == "estr/seed0" and runs_cell(frame.iloc[1]) == "-" == stable_cell(frame.iloc[1])
    assert ours_note(frame.iloc[1:]) == "No run of ours yet."
