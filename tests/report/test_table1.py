"""Table 1 as a frame: numbers by hand, verdicts, several tasks, missing seeds, methods and tasks."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.evaluation.paired import PairedDifference
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs
from estr.report.table1 import table1_frame
from estr.report.verdicts import margin_verdict, ordering_verdict


def build(run_dirs: list[Path], *calibrations: Path) -> pd.DataFrame:
    """Table 1 by label; by (task, label) if there are several tasks."""
    frame = table1_frame(load_runs(run_dirs), calibrations, load_paper_values(), bootstrap_seed=0)
    several = frame["task"].nunique() > 1
    return frame.set_index(["task", "label"] if several else "label", drop=False)


def metrics(masked: list[float], entropy: list[float], tokens: list[float], reward: list[float]) -> dict:
    return {
        "step": list(range(1, len(masked) + 1)),
        "masked_fraction": masked,
        "masked_entropy": entropy,
        "response_tokens": tokens,
        "reward": reward,
        "ratio_deviation": [0.0] * len(masked),
        "kl_to_behavior": [0.0] * len(masked),
        "entropy": [0.5] * len(masked),
    }


def test_accuracies_spreads_and_differences_by_hand(folder: ResultsFolder) -> None:
    folder.write("sync", 0, correct=[4, 4, 2, 2])  # avg 75 %, pass 100 %
    folder.write("sync", 1, correct=[4, 2, 2, 0])  # avg 50 %, pass 75 %
    folder.write("async", 0, correct=[2, 2, 0, 0])  # avg 25 %, pass 50 %
    folder.write("async", 1, correct=[2, 0, 0, 0])  # avg 12.5 %, pass 25 %
    table = build(folder.run_dirs)
    sync = table.loc["sync"]
    assert sync["ours_avg_percent"] == 62.5 and sync["ours_pass_percent"] == 87.5
    assert sync["ours_avg_percent_sd"] == pytest.approx(25 / math.sqrt(2))
    assert 37.5 <= sync["ours_avg_percent_low"] < 62.5 < sync["ours_avg_percent_high"] <= 100
    assert (sync["n_seeds"], sync["n_problems"], sync["seeds"]) == (2, 4, "0 1")
    assert sync["avg_minus_async"] == pytest.approx(62.5 - 18.75)
    assert sync["paper_avg_minus_async"] == pytest.approx(17.54 - 13.61)
    assert sync["ours_best_percent"] == pytest.approx(100 * (2 + 2 * 15 / 16 + 1 + 2 * 15 / 16) / 8)
    assert sync["verdict"] == "> async: held"
    warm = table.loc["warm_start"]
    assert (warm["ours_avg_percent"], warm["ours_pass_percent"], warm["n_seeds"]) == pytest.approx((31, 55, 1))
    assert math.isnan(warm["ours_avg_percent_sd"])
    assert (warm["ours_best_percent"], warm["ours_best_percent_high"]) == pytest.approx((52, 57))
    assert (warm["ours_avg_percent_low"], warm["ours_avg_percent_high"]) == pytest.approx((28, 34))


def test_masking_and_reward_by_hand(folder: ResultsFolder) -> None:
    """The entropy weighs 2 masked tokens of 100 and 6 of 200; a step that masks nothing does not count."""
    curves = metrics([0.02, 0.0, 0.03, 0.03], [1.0, math.nan, 3.0, 3.0], [100, 100, 200, 0], [0.1, 0.2, 0.3, 0.4])
    folder.write("icepop", 0, metrics=curves)
    long = metrics([0.01] * 50 + [0.05] * 50, [0.5] * 50 + [9.0] * 50, [10.0] * 100, [0.0] * 75 + [0.8] * 25)
    folder.write("estr", 0, metrics=long)
    table = build(folder.run_dirs)
    icepop, estr = table.loc["icepop"], table.loc["estr"]
    assert icepop["masked_entropy_first50_nats"] == pytest.approx((2 * 1 + 6 * 3) / 8)
    assert icepop["masked_fraction_mean_percent"] == pytest.approx(2)
    assert icepop["reward_last_quarter"] == pytest.approx(0.4)
    assert estr["masked_fraction_first50_percent"] == pytest.approx(1)
    assert estr["masked_fraction_mean_percent"] == pytest.approx(3)
    assert estr["masked_entropy_first50_nats"] == pytest.approx(0.5)
    assert estr["reward_last_quarter"] == pytest.approx(0.8)
    assert (icepop["thresholds"], estr["thresholds"]) == ("low=0.5, high=5", "tau=1.6, eps=0.01")


def test_the_papers_numbers_stand_beside_ours(study: ResultsFolder) -> None:
    table = build(study.run_dirs, study.write_calibration())
    estr, m2po, matched = (table.loc[label] for label in ("estr", "m2po", "kpop__thresholds=matched"))
    assert (estr["paper_avg_percent"], estr["paper_pass_percent"], estr["paper_pass_basis"]) == (
        17.04,
        28.38,
        "v1 table",
    )
    assert (m2po["paper_avg_percent"], m2po["paper_avg_basis"]) == (16.29, "v2 prose")
    assert math.isnan(matched["paper_avg_percent"])
    assert matched["calibrated_masked_percent"] == pytest.approx(0.05)
    assert matched["verdict"] == "" and not math.isnan(matched["avg_minus_async"])
    assert estr["run_ids"].split() == ["laptop/dapo_math/estr/seed0", "laptop/dapo_math/estr/seed1"]


def test_methods_without_runs_show_the_paper_only(folder: ResultsFolder) -> None:
    folder.write("async", 0)
    table = build(folder.run_dirs)
    assert list(table.index) == ["warm_start", "sync", "async", "icepop", "kpop", "m2po", "estr"]
    assert math.isnan(table.loc["estr", "ours_avg_percent"])
    assert table.loc["estr", "verdict"] == "> async: not tested; ≈ sync: not tested"


def test_differences_use_the_seeds_that_both_have(folder: ResultsFolder) -> None:
    folder.write("estr", 0, correct=[4, 4])
    folder.write("estr", 1, correct=[0, 0])
    folder.write("async", 1, correct=[0, 0])
    folder.write("sync", 5, correct=[2, 2])
    table = build(folder.run_dirs)
    assert table.loc["estr", "avg_minus_async"] == 0
    assert math.isnan(table.loc["estr", "avg_minus_sync"])
    assert math.isnan(table.loc["sync", "ours_avg_percent_sd"])


@pytest.mark.parametrize(
    ("paper", "low", "high", "verdict"),
    [
        (1.0, 0.5, 2.0, "held"),
        (1.0, -2.0, -0.5, "not held"),
        (1.0, -0.5, 2.0, "within noise"),
        (-1.0, -2.0, -0.5, "held"),
        (-1.0, 0.5, 2.0, "not held"),
        (-1.0, 0.0, 2.0, "within noise"),
    ],
)
def test_ordering_verdicts(paper: float, low: float, high: float, verdict: str) -> None:
    assert ordering_verdict(paper, PairedDifference((low + high) / 2, low, high)) == verdict
    assert ordering_verdict(paper, None) == "not tested"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-1.5, 3, "held"), (-1.6, 3, "within noise"), (-9, -1.5, "within noise"), (-9, -1.6, "not held")],
)
def test_margin_verdicts(low: float, high: float, verdict: str) -> None:
    assert margin_verdict(1.5, PairedDifference((low + high) / 2, low, high)) == verdict


def test_labels_and_evaluations_that_do_not_fit_are_refused(folder: ResultsFolder) -> None:
    folder.write("estr", 0, correct=[4, 4])
    folder.write("async", 0, correct=[4, 4, 4])
    with pytest.raises(UserError, match=r"not evaluated alike .*3 problems"):
        build(folder.run_dirs)
    path = folder.write("icepop", 0, correct=[4, 4]) / "evaluation.json"
    record = json.loads(path.read_text())
    for change in ({"rule": {"name": "dapo_math", "version": 2}}, {"problems_sha256": "of other problems"}):
        path.write_text(json.dumps(record | change))
        with pytest.raises(UserError, match="not evaluated alike"):
            build([folder.run_dirs[0], path.parent])
    with pytest.raises(UserError, match=r"'estr__tau=0\.7' has no row"):
        build([folder.run_dirs[0], folder.write("estr__tau=0.7", 0)])


def test_matched_runs_must_carry_the_calibrated_thresholds(folder: ResultsFolder) -> None:
    run_dir = folder.write("kpop__thresholds=matched", 0)
    with pytest.raises(UserError, match="needs the calibration file"):
        build(folder.run_dirs)
    calibration = folder.write_calibration()
    assert build(folder.run_dirs, calibration).loc["kpop__thresholds=matched", "thresholds"] == "phi=0.31"
    record = json.loads((run_dir / "run.json").read_text())
    record["rule"]["phi"] = 0.32
    (run_dir / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"phi=0\.32 is not the calibrated 0\.31"):
        build(folder.run_dirs, calibration)


def test_a_task_is_compared_within_itself_only(folder: ResultsFolder) -> None:
    """k, problems, seeds and the scoring rule differ between the tasks."""
    folder.write("sync", 0, task="browsecomp_plus", correct=[2, 2, 1])  # avg 5/6, pass 1, best 11/12
    folder.write("async", 0, task="browsecomp_plus", correct=[1, 0, 0])  # avg 1/6
    for seed in (0, 1):
        folder.write("async", seed, task="gsm8k", correct=[4, 0])
    table = build(folder.run_dirs)
    assert list(table.index.unique(level=0)) == ["browsecomp_plus", "gsm8k"]
    search, gsm8k = table.loc["browsecomp_plus"], table.loc["gsm8k"]
    assert (search["k"].unique().tolist(), gsm8k["k"].unique().tolist()) == ([2], [4])
    sync = search.loc["sync"]
    assert sync["ours_avg_percent"] == pytest.approx(100 * 5 / 6)
    assert sync["ours_pass_percent"] == pytest.approx(100)
    assert sync["ours_best_percent"] == pytest.approx(100 * (1 + 1 + 3 / 4) / 3)
    assert sync["avg_minus_async"] == pytest.approx(100 * 2 / 3)
    assert (sync["rule"], sync["rule_version"], sync["judge"]) == ("browsecomp_plus_exact", 1, None)
    assert math.isnan(gsm8k.loc["sync", "avg_minus_async"])
    assert gsm8k.loc["sync", "verdict"] == "> async: not tested"
    assert (search.loc["async", "n_seeds"], gsm8k.loc["async", "n_seeds"]) == (1, 2)


def test_the_paper_reports_other_metrics_per_task(folder: ResultsFolder) -> None:
    for task in ("browsecomp_plus", "gsm8k", "dapo_math"):
        folder.write("estr", 0, task=task)
    table = build(folder.run_dirs)
    search, gsm8k = table.loc[("browsecomp_plus", "estr")], table.loc[("gsm8k", "estr")]
    assert (search["paper_avg_percent"], search["paper_avg_basis"]) == (37.34, "v1 table")  # its avg@1 beside our avg@2
    assert math.isnan(search["paper_pass_percent"])
    assert (gsm8k["paper_avg_percent"], gsm8k["paper_avg_basis"]) == (95.69, "v1 table")
    assert (gsm8k["paper_pass_percent"], gsm8k["paper_pass_basis"]) == (98.87, "v2 prose")
    assert gsm8k["paper_pass_minus_sync"] == pytest.approx(98.87 - 98.49)
    assert math.isnan(gsm8k["paper_pass_minus_async"])
    assert table.loc[("dapo_math", "estr"), "paper_pass_percent"] == 28.38


def test_the_papers_matched_budgets_stand_beside_gsm8k_only(folder: ResultsFolder) -> None:
    for task in ("gsm8k", "dapo_math"):
        for label in ("estr", "kpop__thresholds=matched", "m2po__thresholds=matched"):
            folder.write(label, 0, task=task)
    table = build(folder.run_dirs, folder.write_calibration("dapo_math"), folder.write_calibration("gsm8k"))
    masked = table["paper_masked_fraction_mean_percent"].dropna()
    assert masked.to_dict() == {
        ("gsm8k", "kpop__thresholds=matched"): 0.25,
        ("gsm8k", "m2po__thresholds=matched"): 0.24,
        ("gsm8k", "estr"): 0.12,
    }
    entropy = table["paper_masked_entropy_first50_nats"].dropna()
    assert entropy.tolist() == [1.67, 1.89, 0.11]


def test_how_the_agent_acted_by_hand(folder: ResultsFolder) -> None:
    for seed in (0, 1):
        folder.write("estr", seed, task="browsecomp_plus")
    row = build(folder.run_dirs).loc["estr"]
    assert (row["agent_turns"], row["agent_tool_calls"], row["agent_tool_errors"]) == (4, 3, 0)
    assert (row["agent_tokens"], row["agent_tokens_sd"]) == pytest.approx((41.5, math.sqrt(0.5)))
    assert (row["agent_completed_percent"], row["agent_recall_percent"]) == pytest.approx((90, 60))
    assert math.isnan(row["agent_calibration_error_percent"])
    assert build(folder.run_dirs).loc["warm_start", "agent_tokens"] == 40


def test_missing_answers_are_added_up(folder: ResultsFolder) -> None:
    for seed in (0, 1):
        path = folder.write("estr", seed) / "evaluation.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"missing": 3 + seed}))
    assert build(folder.run_dirs).loc["estr", "missing"] == 7


def test_calibrations_belong_to_their_tasks(folder: ResultsFolder) -> None:
    run_dir = folder.write("kpop__thresholds=matched", 0, task="gsm8k")
    folder.write("estr", 0)
    gsm8k, dapo_math = folder.write_calibration("gsm8k"), folder.write_calibration("dapo_math")
    with pytest.raises(UserError, match=r"gsm8k.*needs the calibration file of its task"):
        build(folder.run_dirs, dapo_math)
    assert len(build(folder.run_dirs, gsm8k)) == len(build(folder.run_dirs, dapo_math, gsm8k))
    with pytest.raises(UserError, match="no run of a task 'browsecomp_plus'"):
        build(folder.run_dirs, gsm8k, folder.write_calibration("browsecomp_plus"))
    with pytest.raises(UserError, match="calibrations of one task"):
        build(folder.run_dirs, gsm8k, gsm8k)
    record = json.loads((run_dir / "run.json").read_text())
    record["rule"]["phi"] = 0.32
    (run_dir / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"phi=0\.32 is not the calibrated 0\.31"):
        build(folder.run_dirs, gsm8k)
