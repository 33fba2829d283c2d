"""Tables 4 to 6: settings and ranges by hand, the paper's sets beside ours, scaled batches."""

import math
from pathlib import Path

import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs
from estr.report.sensitivity import batch_frame, tau_frame
from estr.report.sensitivity_views import batch_views, tau_views


def tau_table(run_dirs: list[Path]) -> pd.DataFrame:
    return tau_frame(load_runs(run_dirs), load_paper_values()).set_index(["task", "tau"], drop=False)


def batch_table(run_dirs: list[Path]) -> pd.DataFrame:
    return batch_frame(load_runs(run_dirs), load_paper_values()).set_index("batch", drop=False)


def write_taus(folder: ResultsFolder, task: str, correct: dict[str, int]) -> None:
    """Thirty problems of which each has so many correct answers; estr's own tau is 1.6."""
    for label, count in correct.items():
        folder.write(label, 0, task=task, correct=[count] * 30)


def test_tau_by_hand(folder: ResultsFolder) -> None:
    write_taus(folder, "dapo_math", {"estr__tau=0.7": 1, "estr__tau=1.0": 4, "estr": 3})
    folder.write("estr__inter=1", 0, correct=[0] * 30)  # changes something else
    folder.write("async", 0, correct=[0] * 30)
    table = tau_table(folder.run_dirs).loc["dapo_math"]
    assert list(table.index) == [0.7, 1.0, 1.6]
    assert table["ours_avg_percent"].tolist() == pytest.approx([25, 100, 75])
    assert table["paper_aime25_percent"].tolist() == [14.33, 16.12, 15.64]
    assert table.loc[0.7, "paper_avg_percent"] == pytest.approx((19.67 + 14.33 + 13.49) / 3)
    assert table["paper_reward_percent"].isna().all()
    assert table["avg_minus_tau1.6"].tolist()[:2] == pytest.approx([-50, 25])
    assert table["verdict"].tolist() == ["< tau 1.0: held; < tau 1.6: held", "", ""]
    # the widest of the paper's columns is AIME26's; ours is 75 points, with no spread at all
    assert table["paper_range"].tolist() == pytest.approx([15.46 - 13.49] * 3)
    assert table["range"].tolist() == pytest.approx([75] * 3)
    assert table["range_outcome"].tolist() == ["not held"] * 3


def test_tau_of_browsecomp_plus_has_the_papers_reward(folder: ResultsFolder) -> None:
    for label in ("estr__tau=0.7", "estr__tau=1.0", "estr"):
        folder.write(label, 0, task="browsecomp_plus", correct=[1, 0, 2, 1] * 10)
    table = tau_table(folder.run_dirs).loc["browsecomp_plus"]
    assert table["paper_avg_percent"].tolist() == [35.97, 37.34, 37.15]
    assert table["paper_reward_percent"].tolist() == [29.87, 32.25, 30.62]
    assert table["paper_range"].iloc[0] == pytest.approx(2.38)
    assert (table["range"].iloc[0], table["range_outcome"].iloc[0]) == (0, "held")
    overview, runs = tau_views(table)
    assert overview.title == "Table 4 (v2: Table 6): tau, BrowseComp-Plus"
    assert not any("AIME" in header for header in overview.headers)
    assert "Our accuracy varies by 0.0 [0.0, 0.0] points" in overview.note
    assert [row[-1] for row in runs.rows] == ["estr__tau=0.7/seed0", "estr__tau=1.0/seed0", "estr/seed0"]


def test_a_range_within_its_own_noise_is_held(folder: ResultsFolder) -> None:
    """5 points apart, but on two problems that differ by plus and minus: the interval is far wider than 2.4."""
    folder.write("estr__tau=0.7", 0, correct=[4, 0, 2, 2, 2])
    folder.write("estr", 0, correct=[0, 4, 2, 2, 3])
    row = tau_table(folder.run_dirs).iloc[0]
    assert row["range"] == pytest.approx(5) and row["range_high"] - row["range_low"] > 10
    assert row["range_outcome"] == "held"


def test_one_tau_alone_is_not_tested(folder: ResultsFolder) -> None:
    folder.write("estr", 0)
    table = tau_table(folder.run_dirs).loc["dapo_math"]
    assert list(table.index) == [0.7, 1.0, 1.6] and table["run_ids"].notna().tolist() == [False, False, True]
    assert table["range"].isna().all() and set(table["range_outcome"]) == {"not tested"}
    assert table.loc[0.7, "verdict"] == "< tau 1.0: not tested; < tau 1.6: not tested"
    assert "ours needs two of them with a common seed: not tested" in tau_views(table)[0].note


def test_batches_are_scaled_by_four_below_paper_scale(folder: ResultsFolder) -> None:
    counts = {"estr__prompts=8": 1, "estr__prompts=16": 1, "estr": 3, "estr__prompts=64": 4}
    for label, count in counts.items():
        folder.write(label, 0, correct=[count] * 30)
    table = batch_table(folder.run_dirs)
    assert table["prompts"].to_dict() == {32: 8, 64: 16, 128: 32, 256: 64}
    assert table["paper_aime24_percent"].tolist() == [16.97, 18.26, 20.03, 19.87]
    assert table["ours_avg_percent"].tolist() == pytest.approx([25, 25, 75, 100])
    assert table["verdict"].tolist() == ["", "> batch 32: within noise", "> batch 32: held", "> batch 32: held"]
    last = table.loc[256]
    assert last["avg_minus_batch128"] == pytest.approx(25) and "avg_vs_batch128_verdict" in table
    assert isinstance(last["avg_vs_batch128_verdict"], float) and math.isnan(last["avg_vs_batch128_verdict"])
    assert last["paper_avg_minus_batch128"] == pytest.approx((19.87 + 15.58 + 16.32 - 20.03 - 15.64 - 15.46) / 3)


def test_the_batch_note_says_what_our_reward_does(folder: ResultsFolder) -> None:
    base = pd.read_parquet(folder.write("sync", 9) / "metrics.parquet")
    rewards = {"estr__prompts=8": 0.2, "estr__prompts=16": 0.3, "estr": 0.5, "estr__prompts=64": 0.6}
    for label, reward in rewards.items():
        folder.write(label, 0, metrics=base.assign(reward=reward, masked_fraction=reward / 100).to_dict("list"))
    [view, _] = batch_views(batch_table(folder.run_dirs))
    assert "Our final reward rises at every step, by +0.300 from 32 to 128 and +0.100 from there to 256" in view.note
    assert "our masked fraction lies between 0.2 and 0.6 %" in view.note and "scaled by 1/4" in view.note
    assert view.headers[:3] == ("Paper: prompts", "Ours: prompts", "Paper AIME24 avg@4 (%)")
    assert [row[:2] for row in view.rows] == [("32", "8"), ("64", "16"), ("128", "32"), ("256", "64")]


def test_without_runs_of_estr_there_is_no_table(folder: ResultsFolder) -> None:
    folder.write("async", 0)
    folder.write("estr__inter=1", 0)
    with pytest.raises(UserError, match="needs runs of estr, with no override but tau"):
        tau_table(folder.run_dirs)
    with pytest.raises(UserError, match="no override but prompts"):
        batch_table(folder.run_dirs)
