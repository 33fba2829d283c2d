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
from estr.report.curves import EMA_ALPHA, Panel, curve_data, panel_grid
from estr.report.entropy_ratio import entropy_ratio_data
from estr.report.figures import FIGURES
from estr.report.labels import METHODS, matched
from estr.report.runs import load_runs
from estr.report.tables import TABLES
from estr.report.tokens import entropy_rule, token_runs, with_turns
from estr.report.version_switch import switch_data


def check_image(path: Path) -> None:
    """Something is drawn in every ninth of the picture's middle, and nothing is cut off at its border."""
    pixels = mpl.image.imread(path)[..., :3].mean(axis=-1)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.min() > 0.9
    assert (pixels < 0.9).mean() > 0.01
    assert len(np.unique(pixels)) > 20


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_and_reproducible(study: ResultsFolder, tmp_path: Path, name: str) -> None:
    stems = [tmp_path / "first" / name, tmp_path / "second" / name]
    for stem in stems:
        FIGURES[name](study.run_dirs, stem)
    check_image(stems[0].with_suffix(".png"))
    for suffix in (".pdf", ".png", ".csv"):
        first, second = (stem.with_suffix(suffix).read_bytes() for stem in stems)
        assert first == second and len(first) > 100
    [said] = CAPTIONS[name].measured(pd.read_csv(stems[0].with_suffix(".csv")))
    assert "nan" not in said and any(character.isdigit() for character in said)


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "stability_edge"])
def test_figures_of_three_tasks(three_tasks: ResultsFolder, tmp_path: Path, name: str) -> None:
    FIGURES[name](three_tasks.run_dirs, tmp_path / name)
    check_image(tmp_path / f"{name}.png")
    data = pd.read_csv(tmp_path / f"{name}.csv")
    assert list(data["task"].unique()) == ["browsecomp_plus", "gsm8k", "dapo_math"]
    said = CAPTIONS[name].measured(data)
    judge = " (exact match, no judge model)" if name == "fig07_reward" else ""
    for task, text in zip((f"BrowseComp-Plus{judge}", "GSM8K", "DAPO-Math (AIME)"), said, strict=True):
        assert text.startswith(f"{task}: ") and "nan" not in text


def test_a_caption_speaks_of_each_task_alone(folder: ResultsFolder, tmp_path: Path) -> None:
    """The same method has different numbers in two tasks; the last quarter of 4 steps is the last."""
    for task, last in (("gsm8k", 0.25), ("dapo_math", 0.75)):
        for label, reward in (("sync", 1.0), ("async", 0.0), ("estr", last)):
            folder.write(label, 0, task=task, metrics=flat_metrics([0.5, 0.5, 0.5, reward]))
    FIGURES["fig07_reward"](folder.run_dirs, tmp_path / "fig07_reward")
    said = CAPTIONS["fig07_reward"].measured(pd.read_csv(tmp_path / "fig07_reward.csv"))
    ending = "Highest of the asynchronous methods at published thresholds: ESTR."
    assert said == [
        f"GSM8K: Mean over the last quarter: GRPO (sync) 1.000, GRPO (async) 0.000, ESTR 0.250. {ending}",
        f"DAPO-Math (AIME): Mean over the last quarter: GRPO (sync) 1.000, GRPO (async) 0.000, ESTR 0.750. {ending}",
    ]


def flat_metrics(reward: list[float]) -> dict:
    columns = ("masked_fraction", "masked_entropy", "response_tokens", "ratio_deviation", "kl_to_behavior", "entropy")
    steps = range(1, len(reward) + 1)
    return {"step": list(steps), "reward": reward, **{column: [0.1] * len(reward) for column in columns}}


def grid_of(folder: ResultsFolder, task_labels: dict[str, list[str]], metrics: list[str]) -> list[list[Panel]]:
    for task, labels in task_labels.items():
        for label in labels:
            folder.write(label, 0, task=task)
    return panel_grid(curve_data(load_runs(folder.run_dirs), metrics), metrics)


def test_panels_of_one_task_lie_side_by_side(folder: ResultsFolder) -> None:
    grid = grid_of(folder, {"gsm8k": ["sync", "estr"]}, ["masked_fraction", "ratio_deviation"])
    assert grid == [[Panel("gsm8k", "masked_fraction", False), Panel("gsm8k", "ratio_deviation", False)]]


def test_panels_of_one_task_at_both_thresholds_have_a_row_per_metric(folder: ResultsFolder) -> None:
    metrics = ["masked_fraction", "ratio_deviation"]
    grid = grid_of(folder, {"gsm8k": ["estr", matched("kpop")]}, metrics)
    assert grid == [[Panel("gsm8k", metric, variant) for variant in (False, True)] for metric in metrics]


def test_panels_of_several_tasks_have_a_row_each_and_a_gap_where_nothing_was_run(folder: ResultsFolder) -> None:
    labels = {"dapo_math": ["estr", matched("kpop")], "gsm8k": ["sync"]}
    metrics = ["masked_fraction", "ratio_deviation"]
    grid = grid_of(folder, labels, metrics)
    assert grid[0] == [
        Panel("gsm8k", "masked_fraction", False, empty=True),
        Panel("gsm8k", "masked_fraction", True, empty=True),
        Panel("gsm8k", "ratio_deviation", False),
        Panel("gsm8k", "ratio_deviation", True, empty=True),
    ]
    assert grid[1] == [Panel("dapo_math", metric, variant) for metric in metrics for variant in (False, True)]
    published = curve_data(load_runs(folder.run_dirs), ["reward"]).query("label in ('sync', 'estr')")
    shown = panel_grid(published, ["reward"])
    assert shown == [[Panel("gsm8k", "reward", False), Panel("dapo_math", "reward", False)]]


def test_one_seed_and_one_method_are_enough(folder: ResultsFolder, tmp_path: Path) -> None:
    folder.write("async", 3)
    with pytest.raises(UserError, match="a method that masks tokens"):
        FIGURES["fig08_masking"](folder.run_dirs, tmp_path / "fig08_masking")
    for name in ("fig01_entropy_ratio", "fig03_version_switch", "fig07_reward"):
        FIGURES[name](folder.run_dirs, tmp_path / name)
        check_image(tmp_path / f"{name}.png")
        [said] = CAPTIONS[name].measured(pd.read_csv(tmp_path / f"{name}.csv"))
        assert "nan" not in said


def test_methods_keep_their_look() -> None:
    looks = [style.line_style(method) for method in METHODS]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(METHODS)
    for method in METHODS:
        published, variant = style.line_style(method), style.line_style(matched(method))
        assert published["color"] == variant["color"] and published["marker"] == variant["marker"]
        assert published["linestyle"] == "-" != variant["linestyle"]
        assert variant["markerfacecolor"] == "white"


def test_the_scale_line_says_scale_seeds_and_engine(study: ResultsFolder) -> None:
    runs = load_runs(study.run_dirs)
    assert style.scale_line(runs) == "laptop scale · 2 seeds · embedded engine"
    assert style.scale_line(runs[:3]) == "laptop scale · 1-2 seeds · embedded engine"
    assert style.scale_line(runs[:1]) == "laptop scale · 1 seed · embedded engine"


def test_seeds_of_different_tasks_are_not_added_up(folder: ResultsFolder) -> None:
    folder.write("estr", 0, task="gsm8k")
    folder.write("estr", 0, task="dapo_math")
    assert style.scale_line(load_runs(folder.run_dirs)) == "laptop scale · 1 seed · embedded engine"


def test_curves_by_hand(folder: ResultsFolder) -> None:
    for seed, reward in ((0, [0.0, 1.0]), (1, [1.0, 1.0])):
        columns = ("masked_entropy", "response_tokens", "ratio_deviation", "kl_to_behavior", "entropy")
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
        frame = {"run": "r", "step": step, "turn": 0, "place": position, "entropy": entropy}
        frame["log_ratio"] = -0.1 * entropy
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


def test_turns_are_read_from_the_gaps_that_tool_output_leaves() -> None:
    """Two sequences of one step: three turns with tool output of 3 and 1 tokens between, and a single turn."""
    position = [0, 1, 5, 6, 8, 0, 1, 2]
    tokens = pd.DataFrame({"step": 1, "sequence": [0] * 5 + [1] * 3, "position": position}).iloc[::-1]
    placed = with_turns(tokens)
    assert placed["position"].tolist() == position
    assert placed["turn"].tolist() == [0, 0, 1, 1, 2, 0, 0, 0]
    assert placed["place"].tolist() == [0, 1, 0, 1, 0, 0, 1, 2]


def test_positions_of_a_dialogue_are_matched_by_turn_and_place() -> None:
    """The first token of every turn is uncertain, the others are not, and versions switch at a turn's first token.

    Tool output of random length lies before the turns: by stream position the switch would look like a jump of H.
    """
    rng = np.random.default_rng(0)
    parts = []
    for step, sequence in itertools.product(range(60), range(10)):
        switch_turn = 1 + step % 3
        starts = np.cumsum([0, *(4 + rng.integers(1, 30, 3))])
        turn, place = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)
        entropy = np.where(place == 0, 2.0, 0.1)
        columns = {"run": "r", "step": step, "sequence": sequence, "position": starts[turn] + place}
        columns |= {"entropy": entropy, "log_ratio": 0.1 * entropy, "switch_offset": 4 * (turn - switch_turn) + place}
        parts.append(pd.DataFrame(columns | {"weight_version": (turn >= switch_turn).astype(int)}))
    tokens = pd.concat(parts, ignore_index=True)
    curve = switch_data(with_turns(tokens), eps=0.01)
    curve = curve[curve["quantity"] == "entropy"].set_index("offset")["mean"]
    assert {-1, 0, 1} < set(curve.index)
    assert curve.to_numpy() == pytest.approx(tokens["entropy"].mean())
    by_position = tokens.assign(turn=0, place=tokens["position"])
    naive = switch_data(by_position, eps=0.01)
    naive = naive[naive["quantity"] == "entropy"].set_index("offset")["mean"]
    assert naive[0] > 2 * naive[1]


def test_a_task_without_version_switches_has_no_row_and_is_named(
    folder: ResultsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("estr", 0, task="gsm8k")
    path = folder.write("estr", 0) / "tokens.parquet"
    pd.read_parquet(path).assign(switch_offset=10_000).to_parquet(path)
    foot: list[str] = []
    monkeypatch.setattr(style, "add_footer", lambda figure, text: foot.append(text))
    FIGURES["fig03_version_switch"](folder.run_dirs, tmp_path / "fig03")
    assert set(pd.read_csv(tmp_path / "fig03.csv")["task"]) == {"gsm8k"}
    assert foot[0].endswith("no version switch sampled: DAPO-Math (AIME)")


def test_tokens_come_from_estr_or_async_of_each_task(folder: ResultsFolder) -> None:
    folder.write("estr", 0, task="gsm8k")
    folder.write("async", 0, task="gsm8k")
    folder.write("async", 0)
    chosen = token_runs(folder.run_dirs)
    assert {task: [run.label for run in runs] for task, runs in chosen.items()} == {
        "gsm8k": ["estr"],
        "dapo_math": ["async"],
    }
    assert entropy_rule(chosen["dapo_math"][0]) == EntropyScaled(tau=1.6, eps=0.01)
    folder.write("kpop", 0, task="browsecomp_plus")
    with pytest.raises(UserError, match="browsecomp_plus has none"):
        token_runs(folder.run_dirs)


def test_token_figures_complain_about_what_is_absent(folder: ResultsFolder, tmp_path: Path) -> None:
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
    [said] = CAPTIONS["stability_edge"].measured(data)
    assert "2 of 4 settings collapsed" in said
    TABLES["stability_edge"](runs, [], tmp_path / "scan")
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


def test_a_stability_scan_of_two_tasks_is_refused(folder: ResultsFolder, tmp_path: Path) -> None:
    runs = write_scan(folder)
    with pytest.raises(UserError, match="the runs of one task, got gsm8k, dapo_math"):
        TABLES["stability_edge"]([*runs, folder.write("async", 0, task="gsm8k")], [], tmp_path / "scan")
