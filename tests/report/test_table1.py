"""Table 1: numbers by hand, verdicts, missing seeds and methods, and the three formats."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from estr.errors import UserError
from estr.evaluation.paired import PairedDifference
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs
from estr.report.table1 import COLUMNS, margin_verdict, ordering_verdict, table1_frame
from estr.report.tables import View, latex, latex_escape, markdown, read_table, table1_views, write_table1


def build(run_dirs: list[Path], calibration: Path | None = None) -> pd.DataFrame:
    frame = table1_frame(load_runs(run_dirs), calibration, load_paper_values(), bootstrap_seed=0)
    return frame.set_index("label", drop=False)


def metrics(masked: list[float], entropy: list[float], tokens: list[float], reward: list[float]) -> dict:
    return {
        "step": list(range(1, len(masked) + 1)),
        "masked_fraction": masked,
        "masked_entropy": entropy,
        "response_tokens": tokens,
        "reward": reward,
        "ratio_deviation": [0.0] * len(masked),
        "kl_to_behavior": [0.0] * len(masked),
    }


def test_accuracies_spreads_and_differences_by_hand(folder) -> None:
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
    assert sync["verdict"] == "above async: held"
    warm = table.loc["warm_start"]
    assert (warm["ours_avg_percent"], warm["ours_pass_percent"], warm["n_seeds"]) == pytest.approx((31, 55, 1))
    assert math.isnan(warm["ours_avg_percent_sd"])
    assert (warm["ours_avg_percent_low"], warm["ours_avg_percent_high"]) == pytest.approx((28, 34))


def test_masking_and_reward_by_hand(folder) -> None:
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


def test_the_papers_numbers_stand_beside_ours(study) -> None:
    table = build(study.run_dirs, study.write_calibration())
    estr, m2po, matched = (table.loc[label] for label in ("estr", "m2po", "kpop__thresholds=matched"))
    assert (estr["paper_avg_percent"], estr["paper_pass_percent"], estr["paper_basis"]) == (
        17.04,
        28.38,
        "v1 table",
    )
    assert (m2po["paper_avg_percent"], m2po["paper_basis"]) == (16.29, "v2 prose")
    assert math.isnan(matched["paper_avg_percent"])
    assert matched["paper_gsm8k_masked_fraction_mean_percent"] == 0.25
    assert matched["calibrated_masked_percent"] == pytest.approx(0.05)
    assert matched["verdict"] == "" and not math.isnan(matched["avg_minus_async"])
    assert estr["run_ids"].split() == ["laptop/dapo_math/estr/seed0", "laptop/dapo_math/estr/seed1"]


def test_methods_without_runs_show_the_paper_only(folder) -> None:
    folder.write("async", 0)
    table = build(folder.run_dirs)
    assert list(table.index) == ["warm_start", "sync", "async", "icepop", "kpop", "m2po", "estr"]
    assert math.isnan(table.loc["estr", "ours_avg_percent"])
    assert table.loc["estr", "verdict"] == "above async: not tested; within 1.5 points of sync: not tested"


def test_differences_use_the_seeds_that_both_have(folder) -> None:
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


def test_labels_and_evaluations_that_do_not_fit_are_refused(folder) -> None:
    folder.write("estr", 0, correct=[4, 4])
    folder.write("async", 0, correct=[4, 4, 4])
    with pytest.raises(UserError, match=r"not evaluated on the same problems .*3 problems"):
        build(folder.run_dirs)
    with pytest.raises(UserError, match=r"'estr__tau=0\.7' has no row"):
        build([folder.run_dirs[0], folder.write("estr__tau=0.7", 0)])


def test_matched_runs_must_carry_the_calibrated_thresholds(folder) -> None:
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


def test_three_formats_say_the_same(study, tmp_path: Path) -> None:
    stem = tmp_path / "tables" / "table1"
    write_table1(study.run_dirs, study.write_calibration(), stem)
    frame = read_table(stem.with_suffix(".csv"))
    assert list(frame.columns) == COLUMNS
    built = build(study.run_dirs, study.write_calibration()).reset_index(drop=True)
    numbers = built.select_dtypes("number").columns
    pd.testing.assert_frame_equal(frame[numbers], built[numbers], check_dtype=False, check_exact=True)
    views = table1_views(frame)
    assert [view.title for view in views] == [view.title for view in table1_views(built)]
    text, tex = stem.with_suffix(".md").read_text(), stem.with_suffix(".tex").read_text()
    for view in views:
        assert all(len(row) == len(view.headers) for row in view.rows)
        assert markdown(view) in text and latex(view) in tex
    assert "laptop scale" in views[0].headers[4]
    assert "icepop__thresholds=matched/seed{0,1}" in text
    assert r"icepop\_\_thresholds=matched/seed\{0,1\}" in tex
    assert tex.count(r"\toprule") == tex.count(r"\end{table*}") == len(views)
    first = {suffix: stem.with_suffix(suffix).read_bytes() for suffix in (".csv", ".md", ".tex")}
    write_table1(study.run_dirs, study.write_calibration(), stem)
    assert first == {suffix: stem.with_suffix(suffix).read_bytes() for suffix in first}


def test_special_characters_are_escaped() -> None:
    assert latex_escape(r"50 % & $x_1 {a} #2 ~ ^ \ < ±") == (
        r"50 \% \& \$x\_1 \{a\} \#2 \textasciitilde{} \textasciicircum{} \textbackslash{} $<$ $\pm$"
    )
    view = View("A", "", ("x|y",), (("1|2",),))
    assert r"| x\|y |" in markdown(view) and r"| 1\|2 |" in markdown(view)
