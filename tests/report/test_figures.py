"""Figures: written in three formats, not blank, equal bytes for equal data; the plotted numbers by hand."""

import itertools
import json
import math
from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.algorithm.rules import EntropyScaled
from estr.errors import UserError
from estr.report import style
from estr.report.captions import CAPTIONS
from estr.report.curves import EMA_ALPHA, curve_data
from estr.report.figures import FIGURES
from estr.report.labels import METHODS, matched
from estr.report.runs import load_runs
from estr.report.tables import TABLES
from estr.report.token_figures import entropy_ratio_data, switch_data


def check_image(path: Path) -> None:
    """Something is drawn in every ninth of the picture's middle, and nothing is cut off at its border."""
    pixels = mpl.image.imread(path)[..., :3].mean(axis=-1)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.min() > 0.9
    assert (pixels < 0.9).mean() > 0.01
    assert len(np.unique(pixels)) > 20


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_and_reproducible(study, tmp_path: Path, name: str) -> None:
    stems = [tmp_path / "first" / name, tmp_path / "second" / name]
    for stem in stems:
        FIGURES[name](study.run_dirs, stem)
    check_image(stems[0].with_suffix(".png"))
    for suffix in (".pdf", ".png", ".csv"):
        first, second = (stem.with_suffix(suffix).read_bytes() for stem in stems)
        assert first == second and len(first) > 100
    said = CAPTIONS[name].measured(pd.read_csv(stems[0].with_suffix(".csv")))
    assert "nan" not in said and any(character.isdigit() for character in said)


def test_one_seed_and_one_method_are_enough(folder, tmp_path: Path) -> None:
    folder.write("async", 3)
    with pytest.raises(UserError, match="a method that masks tokens"):
        FIGURES["fig08_masking"](folder.run_dirs, tmp_path / "fig08_masking")
    for name in ("fig01_entropy_ratio", "fig03_version_switch", "fig07_reward"):
        FIGURES[name](folder.run_dirs, tmp_path / name)
        check_image(tmp_path / f"{name}.png")
        assert "nan" not in CAPTIONS[name].measured(pd.read_csv(tmp_path / f"{name}.csv"))


def test_methods_keep_their_look() -> None:
    looks = [style.line_style(method) for method in METHODS]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(METHODS)
    for method in METHODS:
        published, variant = style.line_style(method), style.line_style(matched(method))
        assert published["color"] == variant["color"] and published["marker"] == variant["marker"]
        assert published["linestyle"] == "-" != variant["linestyle"]
        assert variant["markerfacecolor"] == "white"


def test_the_scale_line_says_scale_seeds_and_engine(study) -> None:
    runs = load_runs(study.run_dirs)
    assert style.scale_line(runs) == "laptop scale · 2 seeds · embedded engine"
    assert style.scale_line(runs[:3]) == "laptop scale · 1-2 seeds · embedded engine"
    assert style.scale_line(runs[:1]) == "laptop scale · 1 seed · embedded engine"


def test_curves_by_hand(folder) -> None:
    for seed, reward in ((0, [0.0, 1.0]), (1, [1.0, 1.0])):
        columns = ("masked_entropy", "response_tokens", "ratio_deviation", "kl_to_behavior")
        values = {
            "step": [1, 2],
            "reward": reward,
            "masked_fraction": reward,
            **{column: [0.0, 0.0] for column in columns},
        }
        folder.write("estr", seed, metrics=values)
        folder.write("async", seed, metrics=values)
    data = curve_data(load_runs(folder.run_dirs), ["reward", "masked_fraction"])
    reward = data[(data["metric"] == "reward") & (data["label"] == "estr")]
    smooth = 1 / (2 - EMA_ALPHA)  # weights 1 - alpha and 1 of the values 0 and 1
    assert reward["raw"].tolist() == [0.5, 1.0]
    assert reward["mean"].tolist() == pytest.approx([0.5, (1 + smooth) / 2])
    assert reward["sd"].tolist() == pytest.approx([math.sqrt(0.5), (1 - smooth) / math.sqrt(2)])
    assert reward["n_seeds"].tolist() == [2, 2]
    assert set(data.loc[data["metric"] == "masked_fraction", "label"]) == {"estr"}


def test_fixed_threshold_spends_the_budget_of_the_entropy_rule() -> None:
    """Bounds 0.1 at H = 0 and 1.005 at H = 1 mask the third token alone, so c = 0.8."""
    tokens = pd.DataFrame({"entropy": [0.0, 1.0, 0.0, 1.0], "log_ratio": [0.05, 0.8, -0.3, 0.9]})
    data = entropy_ratio_data(tokens, EntropyScaled(tau=1.0, eps=0.01))
    points = data[data["series"].isin(["estr_only", "fixed_only", "both"])].set_index("series")["log_ratio_abs"]
    assert points.to_dict() == {"estr_only": 0.3, "fixed_only": 0.9}
    assert data.loc[data["series"] == "boundary_fixed", "log_ratio_abs"].unique() == [0.8]
    assert data.loc[data["series"] == "kept_by_both", "count"].sum() == 2
    solid = data[data["series"] == "boundary_estr"]
    assert solid["log_ratio_abs"].to_numpy() == pytest.approx(np.sqrt(solid["entropy"] + 0.01))


def switching_tokens(steps: int, effect: float) -> pd.DataFrame:
    """One switch per step at a random position; odd positions are certain, and step means fall by a factor."""
    rng = np.random.default_rng(0)
    length, parts = 8, []
    for step in range(steps):
        switch = rng.integers(1, length)
        position = np.tile(np.arange(length), 20)
        base = np.where(position % 2, 0.0, 1.0 + position) * 0.9995**step
        entropy = base * np.where(position == switch, effect, 1.0)
        frame = {"run": "r", "step": step, "position": position, "entropy": entropy, "log_ratio": -0.1 * entropy}
        parts.append(pd.DataFrame(frame | {"switch_offset": position - switch, "weight_version": position >= switch}))
    tokens = pd.concat(parts, ignore_index=True)
    return tokens.assign(weight_version=tokens["weight_version"].astype(int))


def test_switch_curve_is_flat_without_an_effect_however_much_positions_differ() -> None:
    tokens = switching_tokens(steps=400, effect=1.0)
    data = switch_data(tokens, eps=0.01)
    for quantity, column in (("entropy", tokens["entropy"]), ("log_ratio_abs", tokens["log_ratio"].abs())):
        curve = data[data["quantity"] == quantity]
        assert len(curve) > 10
        assert curve["mean"].to_numpy() == pytest.approx(column.mean(), rel=0.05)
    naive = tokens.groupby("switch_offset")["entropy"].mean()
    assert naive.max() > 2 * naive.min()


def test_switch_curve_finds_an_effect_at_the_switch_and_nowhere_else() -> None:
    data = switch_data(switching_tokens(steps=400, effect=2.0), eps=0.01)
    curve = data[data["quantity"] == "entropy"].set_index("offset")["mean"]
    assert curve[0] / curve.drop(0).mean() == pytest.approx(2.0, rel=0.1)
    assert curve.drop(0).std() < 0.15 * curve.drop(0).mean()


def test_steps_in_which_staleness_ramps_up_are_left_out_and_one_step_has_no_band() -> None:
    tokens = switching_tokens(steps=2, effect=1.0)
    tokens.loc[tokens["step"] == 0, ["weight_version", "entropy"]] = (0, 77.0)
    data = switch_data(tokens, eps=0.01)
    assert data["n_steps"].eq(1).all() and data["n_tokens"].eq(20).all()
    assert data["mean"].max() < 10 and data["low"].isna().all()


def test_token_figures_complain_about_what_is_absent(folder, tmp_path: Path) -> None:
    sync = folder.write("sync", 0)
    with pytest.raises(UserError, match="need runs of estr or async"):
        FIGURES["fig01_entropy_ratio"]([sync], tmp_path / "a")
    run_dir = folder.write("async", 0)
    tokens = pd.read_parquet(run_dir / "tokens.parquet").assign(switch_offset=10_000)
    tokens.to_parquet(run_dir / "tokens.parquet")
    with pytest.raises(UserError, match="no sampled sequence switches version"):
        FIGURES["fig03_version_switch"]([run_dir], tmp_path / "b")
    tokens.assign(entropy=math.nan).to_parquet(run_dir / "tokens.parquet")
    with pytest.raises(UserError, match="no token with finite signals"):
        FIGURES["fig01_entropy_ratio"]([run_dir], tmp_path / "c")


def write_scan(folder: ResultsFolder) -> list[Path]:
    """Two learning rates by two staleness settings; the hottest, stalest one collapses."""
    runs = []
    for rate, intra in itertools.product((1e-5, 1e-3), (1, 4)):
        label = f"async__intra={intra}__learning_rate={rate}"
        final = 0.05 if rate * intra > 2e-3 else 0.4
        reward = np.concatenate([np.full(20, 0.3), np.full(20, 0.5), np.full(20, final)])
        if rate > 1e-4 and intra == 1:  # falls within the first window
            reward = np.concatenate([[0.3], np.full(59, 0.1)])
        path = folder.write(label, 0)
        base = pd.read_parquet(path / "metrics.parquet")
        base.assign(reward=reward, probe_estr_masked_fraction=2e-3).to_parquet(path / "metrics.parquet")
        record = json.loads((path / "run.json").read_text())
        record["config"] |= {"train": {"learning_rate": rate}, "staleness": {"intra": intra, "inter": 3}}
        (path / "run.json").write_text(json.dumps(record))
        runs.append(path)
    return runs


def test_stability_edge(folder: ResultsFolder, tmp_path: Path) -> None:
    runs = write_scan(folder)
    FIGURES["stability_edge"](runs, tmp_path / "edge")
    check_image(tmp_path / "edge.png")
    data = pd.read_csv(tmp_path / "edge.csv")
    assert len(data) == 4 and (data["n_seeds"] == 1).all()
    assert "2 of 4 settings collapsed" in CAPTIONS["stability_edge"].measured(data)
    TABLES["stability_edge"](runs, None, tmp_path / "scan")
    table = pd.read_csv(tmp_path / "scan.csv").set_index(["learning_rate", "intra"])
    assert table["collapsed"].to_dict() == {(1e-5, 1): 0, (1e-5, 4): 0, (1e-3, 1): 1, (1e-3, 4): 1}
    row = table.loc[(1e-3, 4)]
    rewards = (row["reward_first"], row["reward_max"], row["reward_last"])
    assert rewards == pytest.approx((0.3, 0.5, 0.05))
    assert row["estr_would_mask_percent_first50"] == pytest.approx(0.2)
    assert "no token was masked" in (tmp_path / "scan.md").read_text()


def test_a_stability_scan_without_async_is_refused(folder: ResultsFolder, tmp_path: Path) -> None:
    run = write_scan(folder)[0]
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"method": "estr"}))
    with pytest.raises(UserError, match="needs runs of vanilla async"):
        FIGURES["stability_edge"]([run], tmp_path / "edge")
