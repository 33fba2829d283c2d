"""v2 Table 2: each arm against the fixed threshold and against both together."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.report.components import COLUMNS, components_frame, components_views
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs

ARMS = ["fixed_magnitude", "exploration_preserving", "outlier_suppressing", "estr"]
CORRECT = dict(zip(ARMS, ([0] * 30, [1] * 30, [0] * 30, [2] * 30), strict=True))  # of 2


def build(run_dirs: list[Path]) -> pd.DataFrame:
    frame = components_frame(load_runs(run_dirs), load_paper_values())
    assert list(frame.columns) == COLUMNS
    return frame.set_index("label", drop=False)


def test_paper_ours_and_the_order_of_the_arms(folder: ResultsFolder) -> None:
    for label, correct in CORRECT.items():
        folder.write(label, 0, task="browsecomp_plus", correct=correct)
    folder.write("icepop", 0, task="browsecomp_plus", correct=[0] * 30)  # has no row
    table = build(folder.run_dirs)
    assert list(table.index) == ARMS
    assert table["paper_avg_percent"].tolist() == [32.53, 35.08, 34.73, 37.34]
    assert table["ours_avg_percent"].tolist() == pytest.approx([0, 50, 0, 100])
    assert table["avg_minus_fixed_magnitude"].dropna().to_dict() == pytest.approx(
        {"exploration_preserving": 50, "outlier_suppressing": 0, "estr": 100}
    )
    assert table["paper_avg_minus_fixed_magnitude"].dropna().tolist() == pytest.approx([2.55, 2.20, 4.81])
    assert table["verdict"].tolist() == [
        "",
        "> Fixed magnitude: held; < ESTR: held",
        "> Fixed magnitude: within noise; < ESTR: held",
        "> Fixed magnitude: held",
    ]
    assert table.loc["fixed_magnitude", "thresholds"] == "c=0.6931"


def test_a_missing_arm_shows_the_paper_only(folder: ResultsFolder) -> None:
    for seed in (0, 1):
        folder.write("outlier_suppressing", seed, task="browsecomp_plus")
    table = build(folder.run_dirs)
    assert table["verdict"].tolist()[1:] == [
        "> Fixed magnitude: not tested; < ESTR: not tested",
        "> Fixed magnitude: not tested; < ESTR: not tested",
        "> Fixed magnitude: not tested",
    ]
    overview, runs = components_views(table)
    assert overview.title == "Table 2 of v2: components, BrowseComp-Plus"
    shown = {row[0]: row for row in overview.rows}
    assert list(shown) == ["Fixed magnitude", "+ exploration preservation", "+ outlier suppression", "ESTR (both)"]
    assert shown["ESTR (both)"][1] == "37.34" and set(shown["ESTR (both)"][2:-1]) == {"-"}
    assert "It does not state its fixed threshold" in " ".join(overview.note.split())
    assert [row[-1] for row in runs.rows] == ["-", "-", "outlier_suppressing/seed{0,1}", "-"]


def test_runs_of_no_arm_are_refused(folder: ResultsFolder) -> None:
    folder.write("async", 0, task="browsecomp_plus")
    with pytest.raises(UserError, match="component ablation needs runs of fixed_magnitude"):
        build(folder.run_dirs)
