"""Table 7 (v2: Table 3): budgets by hand, both versions of the paper, missing runs."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from synthetic import MATCHED_LABELS, RULES, ResultsFolder

from estr.errors import UserError
from estr.report.matched_budget import COLUMNS, matched_budget_frame, matched_budget_views
from estr.report.paper import load_paper_values
from estr.report.runs import load_runs
from estr.report.views import EMPTY

LABELS = ["sync", "async", *MATCHED_LABELS, "estr"]


def build(run_dirs: list[Path], *calibrations: Path) -> pd.DataFrame:
    frame = matched_budget_frame(load_runs(run_dirs), calibrations, load_paper_values())
    assert list(frame.columns) == COLUMNS
    return frame.set_index("label", drop=False)


def curves(masked: float) -> dict:
    """Four steps of which the second masks nothing, so that the mean over training is 3/4 of `masked`."""
    fractions = [masked, 0.0, masked, masked]
    return {
        "step": [1, 2, 3, 4],
        "reward": [0.5] * 4,
        "masked_fraction": fractions,
        "masked_entropy": [0.5 if fraction else math.nan for fraction in fractions],
        "response_tokens": [100.0] * 4,
        "ratio_deviation": [0.0] * 4,
        "kl_to_behavior": [0.0] * 4,
        "entropy": [0.5] * 4,
    }


def test_the_drift_is_training_over_calibration(folder: ResultsFolder) -> None:
    """The file's baselines mask 0.05 % of the shared batch, ESTR (the budget) 0.06 %."""
    folder.write("icepop__thresholds=matched", 0, task="gsm8k", metrics=curves(0.04))
    folder.write("estr", 0, task="gsm8k", metrics=curves(0.0008))
    table = build(folder.run_dirs, folder.write_calibration("gsm8k"))
    icepop, estr = table.loc["icepop__thresholds=matched"], table.loc["estr"]
    assert (icepop["calibrated_masked_percent"], estr["calibrated_masked_percent"]) == pytest.approx((0.05, 0.06))
    assert (icepop["masked_fraction_mean_percent"], icepop["drift_ratio"]) == pytest.approx((3, 60))
    assert estr["drift_ratio"] == pytest.approx(1)
    assert icepop["masked_entropy_first50_nats"] == pytest.approx(0.5)
    assert (estr["budget_percent"], estr["calibration_tokens"]) == pytest.approx((0.06, 50_000))
    assert (estr["calibration_steps"], estr["calibration_runs"]) == ("1 to 50", "laptop/gsm8k/async/seed0")


def test_the_papers_order_is_tested_on_the_seeds_of_both(folder: ResultsFolder) -> None:
    for label, correct in (("kpop__thresholds=matched", [0] * 20), ("m2po__thresholds=matched", [4] * 20)):
        folder.write(label, 0, task="gsm8k", correct=correct)
    folder.write("estr", 0, task="gsm8k", correct=[2] * 20)
    folder.write("sync", 0, task="gsm8k", correct=[4] * 20)
    table = build(folder.run_dirs, folder.write_calibration("gsm8k"))
    kpop, m2po = table.loc["kpop__thresholds=matched"], table.loc["m2po__thresholds=matched"]
    assert (kpop["avg_minus_estr"], m2po["avg_minus_estr"]) == pytest.approx((-50, 50))
    assert (kpop["paper_avg_minus_estr"], m2po["paper_avg_minus_estr"]) == pytest.approx((70.5 - 95.7, 94.4 - 95.7))
    assert (kpop["verdict"], m2po["verdict"]) == ("< ESTR: held", "< ESTR: not held")
    assert table.loc["icepop__thresholds=matched", "verdict"] == "< ESTR: not tested"
    sync = table.loc["sync"]
    assert sync["avg_minus_estr"] == pytest.approx(50) and math.isnan(sync["paper_avg_minus_estr"])
    assert (sync["verdict"], table.loc["estr", "verdict"]) == ("", "")


def test_both_versions_stand_beside_ours(folder: ResultsFolder) -> None:
    for label in LABELS:
        folder.write(label, 0, task="gsm8k")
    frame = matched_budget_frame(load_runs(folder.run_dirs), [folder.write_calibration("gsm8k")], load_paper_values())
    view, differences, calibration = matched_budget_views(frame)
    rows = {row[0]: dict(zip(view.headers, row, strict=True)) for row in view.rows}
    masked = {name: row["Paper: masked (%), calibration → training"] for name, row in rows.items()}
    assert masked == {
        "GRPO (sync)": EMPTY,
        "GRPO (async)": EMPTY,
        "IcePop (matched)": "v1: 0.07 → 19.16; v2: 0.07 → above 17",
        "KPop (matched)": "v1: 0.07 → 0.25; v2: 0.07 → above 17",
        "M2PO (matched)": "v2: 0.07 → 0.24",
        "ESTR": "v1: 0.07 → 0.12; v2: 0.07 → not reported",
    }
    assert rows["KPop (matched)"]["Paper: accuracy (%)"] == "v1: 70.5; v2: below 71"
    assert rows["KPop (matched)"]["Paper: stable"] == "v1: no; v2: not reported"
    assert rows["ESTR"]["Paper: stable"] == "v1: yes; v2: not reported"
    assert rows["M2PO (matched)"]["Paper: entropy of masked (nats)"] == "v2: 1.89"
    assert rows["ESTR"]["Ours: stable"] == "1 of 1"
    said = "one step-0 rollout batch; ours on the 50000 tokens of updates 1 to 50 of laptop/gsm8k/async/seed0"
    assert said in view.note and said in calibration.note
    assert [row[0] for row in calibration.rows] == [name for name in rows if "GRPO" not in name]
    assert dict(row[:2] for row in calibration.rows)["KPop (matched)"] == "phi=0.31"
    assert {row[-1] for row in differences.rows} == {f"{label}/seed0" for label in LABELS}


def test_published_baselines_have_no_row(folder: ResultsFolder) -> None:
    for label in RULES:
        folder.write(label, 0, task="gsm8k")
    table = build(folder.run_dirs)
    assert list(table.index) == LABELS
    assert table["run_ids"].dropna().index.tolist() == ["sync", "async", "estr"]
    assert len(matched_budget_views(table)) == 2  # no calibration to show


def test_a_table_of_nothing_is_refused(folder: ResultsFolder) -> None:
    folder.write("async", 0, task="gsm8k")
    folder.write("icepop", 0, task="gsm8k")
    with pytest.raises(UserError, match="thresholds=matched"):
        build(folder.run_dirs)


def test_thresholds_and_calibration_must_belong_together(folder: ResultsFolder) -> None:
    folder.write("kpop__thresholds=matched", 0, task="gsm8k")
    with pytest.raises(UserError, match="needs the calibration file"):
        build(folder.run_dirs)
    path = folder.write_calibration("gsm8k")
    record = json.loads(path.read_text())
    record["rules"]["kpop"]["phi"] = 0.3
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"phi=0\.31 is not the calibrated 0\.3 "):
        build(folder.run_dirs, path)
    for broken in ({"steps": [1]}, {"rules": [1]}, {"tokens": None}):
        path.write_text(json.dumps(record | broken))
        with pytest.raises(UserError, match=r"gsm8k\.json: a field is missing or malformed"):
            build(folder.run_dirs, path)
