"""The numbers of Figure 9: asked and measured staleness, trends by hand and against SciPy."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.report.runs import load_runs
from estr.report.staleness_table import COLUMNS, kendall_tau, staleness_frame, staleness_views

INTRA = {"estr__inter=1__intra=1": 0.9, "estr__inter=1__intra=5": 0.8, "estr__inter=1__intra=7": 0.7}
INTER = {"estr__inter=5__intra=1": 0.6, "estr__inter=15__intra=1": 0.5}


def write(folder: ResultsFolder, label: str, reward: float, seed: int = 0, **columns: float | list[float]) -> Path:
    """Eight steps of one reward; the staleness of the first half says nothing about the last."""
    steps = 8
    table = {
        "step": list(range(1, steps + 1)),
        "masked_entropy": math.nan,
        "response_tokens": 100.0,
        "staleness_intra": [0.0] * 4 + [4.0] * 4,
        "staleness_inter": [0.0] * 4 + [2.0, 4.0] * 2,
        "reward": reward,
        **dict.fromkeys(("masked_fraction", "ratio_deviation", "kl_to_behavior", "entropy"), 0.0),
        **columns,
    }
    return folder.write(label, seed, metrics=pd.DataFrame(table).to_dict("list"), correct=[2, 2])


def build(folder: ResultsFolder) -> pd.DataFrame:
    frame = staleness_frame(load_runs(folder.run_dirs))
    assert list(frame.columns) == COLUMNS
    return frame


def test_two_sweeps_share_their_smallest_setting(folder: ResultsFolder) -> None:
    for label, reward in {"sync": 1.0, **INTRA, **INTER, "estr": 0.1, "estr__tau=1.0": 0.1, "async": 0.1}.items():
        write(folder, label, reward)
    frame = build(folder)
    rows = frame[["sweep", "asked_intra", "asked_inter", "reward_last_quarter"]].values.tolist()
    assert rows[1:] == [
        ["intra", 1, 1, 0.9],
        ["intra", 5, 1, 0.8],
        ["intra", 7, 1, 0.7],
        ["inter", 1, 1, 0.9],
        ["inter", 1, 5, 0.6],
        ["inter", 1, 15, 0.5],
    ]
    assert frame["sweep"].iloc[0] == "sync" and math.isnan(frame["reward_kendall_tau"].iloc[0])
    assert frame["reward_kendall_tau"].tolist()[1:] == pytest.approx([-1] * 6)
    intra, inter = (frame[frame["sweep"] == sweep].iloc[0] for sweep in ("intra", "inter"))
    # least squares through (1, .9), (5, .8), (7, .7) and through (1, .9), (5, .6), (15, .5)
    assert intra["reward_slope_per_version"] == pytest.approx(-0.6 / (56 / 3))
    assert inter["reward_slope_per_version"] == pytest.approx(-2.6 / 104)


def test_staleness_is_measured_over_the_last_half(folder: ResultsFolder) -> None:
    write(folder, "estr__inter=1__intra=5", 0.5)
    write(folder, "estr__inter=1__intra=5", 0.5, seed=1, staleness_intra=5.0)
    [row] = build(folder).to_dict("records")
    assert (row["measured_intra"], row["measured_intra_sd"]) == pytest.approx((4.5, math.sqrt(0.5)))
    assert (row["measured_inter"], row["measured_inter_sd"]) == (3, 0)
    assert math.isnan(row["reward_kendall_tau"])  # of one setting


def test_the_trend_of_every_seed_is_told(folder: ResultsFolder) -> None:
    """Seed 0 falls and seed 1 rises, less; a third seed of one setting counts in its mean only."""
    rewards = {"estr__inter=1__intra=1": (0.9, 0.4, 0.8), "estr__inter=1__intra=9": (0.5, 0.5)}
    for label, values in rewards.items():
        for seed, reward in enumerate(values):
            write(folder, label, reward, seed=seed)
    frame = build(folder)
    row = frame[frame["sweep"] == "intra"].iloc[0]
    assert (row["reward_kendall_tau"], row["reward_kendall_tau_low"], row["reward_kendall_tau_high"]) == (-1, -1, 1)
    assert row["reward_slope_per_version_high"] == pytest.approx(0.1 / 8)
    assert row["reward_slope_per_version"] == pytest.approx((0.5 - 0.7) / 8)
    view, *_ = staleness_views(frame)
    assert view.title == "Figure 9 in numbers: intra-trajectory staleness, DAPO-Math (AIME)"
    assert "staleness: -1.00 (single seeds -1.00 to +1.00)" in view.note
    assert [row[0] for row in view.rows] == ["1", "9"]


def test_a_run_without_staleness_or_a_sweep_is_refused(folder: ResultsFolder) -> None:
    write(folder, "sync", 0.5)
    write(folder, "estr", 0.5)
    with pytest.raises(UserError, match="needs runs of estr with intra or inter at 1"):
        build(folder)
    path = write(folder, "estr__inter=1", 0.5) / "metrics.parquet"
    pd.read_parquet(path).drop(columns="staleness_inter").to_parquet(path)
    with pytest.raises(UserError, match=r"metrics\.parquet: lacks the column staleness_inter"):
        build(folder)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8))
def test_kendalls_tau_is_scipys(pairs: list[tuple[int, int]]) -> None:
    x, y = map(list, zip(*pairs, strict=True))
    np.testing.assert_allclose(kendall_tau(x, y), kendalltau(x, y).statistic, atol=1e-12, equal_nan=True)
