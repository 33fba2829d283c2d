"""Figures of training dynamics: which runs each one draws, what it says of them, what it does without some."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from images import check_image
from synthetic import COMPONENT_RULES, MATCHED_LABELS, RULES, ResultsFolder

from estr.errors import UserError
from estr.provenance import write_json
from estr.report import style
from estr.report.captions import CAPTIONS
from estr.report.curves import EMA_ALPHA, EVERY, Panel, curve_data, panel_grid, published_runs, scale_axis
from estr.report.figures import FIGURES
from estr.report.labels import matched
from estr.report.method_curves import AT_THRESHOLDS
from estr.report.runs import load_runs
from estr.report.sweeps_figure import INTER, INTRA, PROMPTS, sweep_data

TASKS = ["browsecomp_plus", "gsm8k", "dapo_math"]
METHODS = list(RULES)
STALENESS = [(1, 1), (5, 1), (9, 1), (1, 5), (1, 15)]
WITHOUT_NUMBERS = {"masked_fraction": 0.1, "masked_entropy": 0.1, "response_tokens": 9.0, "ratio_deviation": 0.1}
DRAWN = {
    "fig04_validation": {"browsecomp_plus": METHODS[1:]},
    "fig05a_entropy": dict.fromkeys(TASKS, METHODS),
    "fig05b_kl": dict.fromkeys(TASKS, METHODS),
    "fig06_07_reward": dict.fromkeys(TASKS, METHODS),
    "fig08_masking": {task: METHODS + MATCHED_LABELS * (task == "gsm8k") for task in ("dapo_math", *TASKS[:2])},
    "fig09_staleness": {"dapo_math": ["sync", *(f"estr__inter={inter}__intra={intra}" for intra, inter in STALENESS)]},
    "fig12_browsecomp_plus": {"browsecomp_plus": METHODS},
    "fig14_gsm8k": {"gsm8k": METHODS},
    "fig15ab_dapo_math": {"dapo_math": METHODS},
    "fig15cd_batch_size": {"dapo_math": ["estr", "estr__prompts=8", "estr__prompts=64"]},
    "matched_budget": {"gsm8k": ["sync", "async", "estr", *MATCHED_LABELS]},
    "v2_components": {"browsecomp_plus": [*COMPONENT_RULES, "estr"]},
}
"""The tasks and labels of each figure, from a folder list that holds the runs of all of them."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    """The runs of all figures, two seeds of ESTR and sync; sync was not validated. Do not change it."""
    results = ResultsFolder(tmp_path_factory.mktemp("everything"))
    for task in TASKS:
        for method in METHODS:
            for seed in range(2 if method in ("sync", "estr") else 1):
                path = results.write(method, seed, task=task)
                if task == "browsecomp_plus" and method != "sync":
                    validate(path, every=10, accuracy=0.25 + 0.1 * seed)
    for label in MATCHED_LABELS:
        results.write(label, 0, task="gsm8k")
    for label in COMPONENT_RULES:
        results.write(label, 0, task="browsecomp_plus")
    for intra, inter in STALENESS:
        for seed in range(2):
            results.write(f"estr__inter={inter}__intra={intra}", seed)
    for label in ("estr__prompts=8", "estr__prompts=64", "estr__tau=0.7"):
        results.write(label, 0)
    (results.scale_dir / "samples" / "lm").mkdir(parents=True)
    (results.scale_dir / "samples" / "lm" / "sample.json").write_text("{}")
    results.run_dirs.append(results.scale_dir / "samples" / "lm")
    return results


def validate(path: Path, every: int, accuracy: float) -> None:
    metrics = pd.read_parquet(path / "metrics.parquet")
    measured = np.where(metrics["step"] % every == 0, accuracy, np.nan)
    metrics.assign(validation_accuracy=measured).to_parquet(path / "metrics.parquet")


def flat(reward: list[float], **columns: float) -> dict:
    """Metrics with these rewards and everything else constant."""
    steps = list(range(1, len(reward) + 1))
    constants = WITHOUT_NUMBERS | {"kl_to_behavior": 0.1, "entropy": 0.1} | columns
    return {"step": steps, "reward": reward, **{name: [value] * len(steps) for name, value in constants.items()}}


def drawn(folder: ResultsFolder, stem: Path) -> tuple[pd.DataFrame, list[str]]:
    """Draw the figure called as the stem; its data and what its caption says, task by task."""
    FIGURES[stem.name](folder.run_dirs, stem)
    check_image(stem.with_suffix(".png"))
    data = pd.read_csv(stem.with_suffix(".csv"))
    return data, CAPTIONS[stem.name].measured(data)


@pytest.mark.parametrize("name", DRAWN)
def test_each_figure_draws_its_own_tasks_and_labels(everything: ResultsFolder, tmp_path: Path, name: str) -> None:
    data, said = drawn(everything, tmp_path / name)
    assert list(data["task"].unique()) == list(DRAWN[name])
    for task, labels in DRAWN[name].items():
        assert set(data.loc[data["task"] == task, "label"]) == set(labels)
    assert len(said) == len(DRAWN[name])
    assert all("nan" not in text and any(character.isdigit() for character in text) for text in said)


@pytest.mark.parametrize("name", ["fig08_masking", "fig09_staleness"])
def test_equal_data_give_equal_files(everything: ResultsFolder, tmp_path: Path, name: str) -> None:
    for attempt in ("first", "second"):
        FIGURES[name](everything.run_dirs, tmp_path / attempt / name)
    for suffix in (".pdf", ".png", ".csv"):
        first, second = ((tmp_path / attempt / name).with_suffix(suffix) for attempt in ("first", "second"))
        assert first.read_bytes() == second.read_bytes() and first.stat().st_size > 100


@pytest.mark.parametrize(
    ("name", "task", "label", "message"),
    [
        ("fig04_validation", "browsecomp_plus", "estr", "set train.validate_every"),
        ("fig05a_entropy", "dapo_math", "estr__tau=0.7", "runs at published thresholds"),
        ("fig06_07_reward", "browsecomp_plus", "fixed_magnitude", "runs at published thresholds"),
        ("fig08_masking", "dapo_math", "async", "a method that masks tokens"),
        ("fig09_staleness", "dapo_math", "estr", "intra 1 or at inter 1"),
        ("fig12_browsecomp_plus", "gsm8k", "estr", "runs of BrowseComp-Plus"),
        ("fig14_gsm8k", "gsm8k", matched("kpop"), "runs of GSM8K at published thresholds"),
        ("fig15ab_dapo_math", "gsm8k", "estr", r"runs of DAPO-Math \(AIME\)"),
        ("fig15cd_batch_size", "dapo_math", "estr", "two or more values of prompts, got estr"),
        ("matched_budget", "gsm8k", "estr", "thresholds=matched"),
        ("v2_components", "browsecomp_plus", "estr", "fixed_magnitude, exploration_preserving, outlier_suppressing"),
    ],
)
def test_what_is_missing_is_said(
    folder: ResultsFolder, tmp_path: Path, name: str, task: str, label: str, message: str
) -> None:
    folder.write(label, 0, task=task)
    with pytest.raises(UserError, match=message):
        FIGURES[name](folder.run_dirs, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "task", "labels"),
    [
        ("fig09_staleness", "dapo_math", ["estr__inter=1__intra=5"]),
        ("fig12_browsecomp_plus", "browsecomp_plus", ["sync"]),
        ("fig14_gsm8k", "gsm8k", ["async"]),
        ("fig15ab_dapo_math", "dapo_math", ["m2po"]),
        ("fig15cd_batch_size", "dapo_math", ["estr", "estr__prompts=8"]),
        ("matched_budget", "gsm8k", [matched("icepop")]),
        ("v2_components", "browsecomp_plus", ["fixed_magnitude"]),
    ],
)
def test_one_seed_of_the_least_is_enough(
    folder: ResultsFolder, tmp_path: Path, name: str, task: str, labels: list[str]
) -> None:
    for label in labels:
        folder.write(label, 3, task=task)
    data, [said] = drawn(folder, tmp_path / name)
    assert set(data["label"]) == set(labels)
    assert "nan" not in said


def test_a_run_without_a_needed_column_is_named(folder: ResultsFolder, tmp_path: Path) -> None:
    path = folder.write("estr", 0, task="browsecomp_plus", metrics=flat([0.5, 0.5]))
    with pytest.raises(UserError, match=f"{path}/metrics.parquet: lacks the column grad_norm"):
        FIGURES["fig12_browsecomp_plus"](folder.run_dirs, tmp_path / "a")


def test_curves_by_hand(folder: ResultsFolder) -> None:
    for seed, reward in ((0, [0.0, 1.0]), (1, [1.0, 1.0])):
        metrics = flat(reward) | {"masked_fraction": reward}
        folder.write("estr", seed, metrics=metrics)
        folder.write("async", seed, metrics=metrics)
    data = curve_data(load_runs(folder.run_dirs), ["reward", "masked_fraction"])
    reward = data[(data["metric"] == "reward") & (data["label"] == "estr")]
    smooth = 1 / (2 - EMA_ALPHA)  # weights 1 - alpha and 1 of the values 0 and 1
    assert reward["raw"].tolist() == [0.5, 1.0]
    assert reward["mean"].tolist() == pytest.approx([0.5, (1 + smooth) / 2])
    assert reward["sd"].tolist() == pytest.approx([math.sqrt(0.5), (1 - smooth) / math.sqrt(2)])
    assert reward["low"].tolist() == pytest.approx([0.0, smooth])
    assert reward["high"].tolist() == [1.0, 1.0]
    assert reward["n_seeds"].tolist() == [2, 2]
    assert set(data.loc[data["metric"] == "masked_fraction", "label"]) == {"estr"}


def test_validation_is_drawn_where_it_was_measured_and_not_smoothed(
    folder: ResultsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footers: list[str] = []
    monkeypatch.setattr(style, "add_footer", lambda fig, text: footers.append(text))
    for label, accuracies in (("estr", [0.2, 0.6]), ("kpop", [0.4, 0.5])):
        for seed, shift in enumerate((0.0, 0.1)):
            metrics = flat([0.5] * 5)
            values = [math.nan, accuracies[0] + shift, math.nan, accuracies[1] + shift, math.nan]
            folder.write(label, seed, task="browsecomp_plus", metrics=metrics | {"validation_accuracy": values})
    folder.write("async", 1, task="browsecomp_plus", metrics=flat([0.5] * 5))
    data, [said] = drawn(folder, tmp_path / "fig04_validation")
    estr = data[data["label"] == "estr"]
    assert estr["step"].tolist() == [2, 4] and estr["n_seeds"].tolist() == [2, 2]
    assert estr["mean"].tolist() == pytest.approx([0.25, 0.65])
    assert estr["sd"].tolist() == pytest.approx([0.1 / math.sqrt(2)] * 2)
    assert "At the last validation (step 4), in %: KPop 55.0 ± 7.1, ESTR 65.0 ± 7.1." in said
    assert "above every other asynchronous method at 1 of 2 validations" in said
    assert footers[0].endswith("on 64 problems · not validated: GRPO (async) seed 1")


def test_an_engine_that_cannot_validate_has_a_figure_that_says_so(folder: ResultsFolder, tmp_path: Path) -> None:
    folder.write("estr", 0, task="browsecomp_plus", metrics=flat([0.5] * 5))
    path = folder.run_dirs[0] / "run.json"
    record = json.loads(path.read_text())
    write_json(path, record | {"config": record["config"] | {"engine": "verl"}})
    data, said = drawn(folder, tmp_path / "fig04_validation")
    assert data.empty and said == []
    assert (tmp_path / "fig04_validation.png").stat().st_size > 1000


def grid_of(folder: ResultsFolder, task_labels: dict[str, list[str]], metrics: list[str]) -> list[list[Panel]]:
    for task, labels in task_labels.items():
        for label in labels:
            folder.write(label, 0, task=task)
    shown = AT_THRESHOLDS if any(matched("kpop") in labels for labels in task_labels.values()) else EVERY
    return panel_grid(curve_data(load_runs(folder.run_dirs), metrics), metrics, shown)


def test_panels_of_one_task_lie_side_by_side(folder: ResultsFolder) -> None:
    grid = grid_of(folder, {"gsm8k": ["sync", "estr"]}, ["masked_fraction", "ratio_deviation"])
    labels = {"masked_fraction": ("estr",), "ratio_deviation": ("sync", "estr")}
    assert grid == [[Panel("gsm8k", metric, labels[metric]) for metric in labels]]


def test_panels_of_one_task_at_both_thresholds_have_a_row_per_metric(folder: ResultsFolder) -> None:
    metrics = ["masked_fraction", "ratio_deviation"]
    grid = grid_of(folder, {"gsm8k": ["estr", "kpop", matched("kpop")]}, metrics)
    published, budget = ("kpop", "estr"), (matched("kpop"), "estr")
    headings = list(AT_THRESHOLDS)
    assert grid[0] == [
        Panel("gsm8k", metrics[0], published, heading=headings[0]),
        Panel("gsm8k", metrics[0], budget, heading=headings[1]),
    ]
    assert grid[1] == [Panel("gsm8k", metrics[1], published), Panel("gsm8k", metrics[1], budget)]


def test_panels_of_several_tasks_have_a_row_each_and_a_gap_where_nothing_was_run(folder: ResultsFolder) -> None:
    labels = {"dapo_math": ["estr", matched("kpop")], "gsm8k": ["sync"]}
    metrics = ["masked_fraction", "ratio_deviation"]
    grid = grid_of(folder, labels, metrics)
    assert [[panel.task for panel in row] for row in grid] == [["gsm8k"] * 4, ["dapo_math"] * 4]
    assert [panel.labels for panel in grid[0]] == [(), (), ("sync",), ()]
    assert [panel.labels for panel in grid[1]] == [("estr",), (matched("kpop"), "estr")] * 2
    published = curve_data(published_runs(folder.run_dirs), ["reward"])
    assert panel_grid(published, ["reward"]) == [
        [Panel("gsm8k", "reward", ("sync",)), Panel("dapo_math", "reward", ("estr",))]
    ]


def test_runs_of_a_sweep_are_known_by_their_configuration(everything: ResultsFolder) -> None:
    runs = load_runs([path for path in everything.run_dirs if "samples" not in path.parts])
    intra, inter, prompts = (
        sorted({(sweep.value(run.config), run.label) for run in sweep.chosen(runs)})
        for sweep in (INTRA, INTER, PROMPTS)
    )
    assert intra == [(value, f"estr__inter=1__intra={value}") for value in (1, 5, 9)]
    assert inter == [(value, f"estr__inter={value}__intra=1") for value in (1, 5, 15)]
    assert prompts == [(8, "estr__prompts=8"), (32, "estr"), (64, "estr__prompts=64")]


def test_outcomes_of_a_sweep_by_hand(folder: ResultsFolder, tmp_path: Path) -> None:
    """The last quarter of 8 steps is 2; at inter 15 seed 0 falls from 0.8 to 0.1 and stays there."""
    rewards = {
        ("estr__inter=1__intra=1", 0): [0.4] * 6 + [0.5, 0.7],
        ("estr__inter=1__intra=1", 1): [0.4] * 6 + [0.8, 0.8],
        ("estr__inter=15__intra=1", 0): [0.8] + [0.1] * 7,
        ("estr__inter=15__intra=1", 1): [0.8] * 6 + [0.5, 0.5],
        ("sync", 0): [0.9] * 8,
    }
    for (label, seed), reward in rewards.items():
        folder.write(label, seed, metrics=flat(reward))
    runs = load_runs(folder.run_dirs)
    data = sweep_data(INTER, "reward", INTER.chosen(runs), [run for run in runs if run.label == "sync"])
    outcomes = data[data["part"] == "run"]
    assert outcomes["setting"].fillna(0).tolist() == [0, 1, 1, 15, 15]
    assert outcomes["mean"].tolist() == pytest.approx([0.9, 0.6, 0.8, 0.1, 0.5])
    assert outcomes["collapsed"].tolist() == [0, 0, 0, 1, 0]
    _, [said] = drawn(folder, tmp_path / "fig09_staleness")
    assert "Intra-trajectory staleness, final reward: 1: 0.700 ± 0.141." in said
    assert "Inter-trajectory staleness, final reward: 1: 0.700 ± 0.141, 15: 0.300 ± 0.283." in said
    assert "Kendall's tau with staleness -1.00, -28.57·10⁻³ per version." in said  # (0.3 - 0.7) / 14
    assert "Sync: 0.900." in said and said.endswith("Collapsed: 1 of 4 ESTR runs.")


def test_batch_sizes_by_hand(folder: ResultsFolder, tmp_path: Path) -> None:
    settings = (("estr__prompts=8", 0.2, 0.01), ("estr", 0.4, 0.02), ("estr__prompts=64", 0.45, 0.02))
    for label, reward, masked in settings:
        folder.write(label, 0, metrics=flat([reward] * 4, masked_fraction=masked))
    _, [said] = drawn(folder, tmp_path / "fig15cd_batch_size")
    assert said == (
        "DAPO-Math (AIME): Final reward by prompts per update: 8: 0.200, 32: 0.400, 64: 0.450. From each to the next: "
        "+0.200, +0.050. Masked over all steps, in %: 8: 1, 32: 2, 64: 2, largest over smallest 2.00."
    )


def test_captions_of_the_methods_by_hand(folder: ResultsFolder, tmp_path: Path) -> None:
    """The last quarter of 4 steps is the last; ± is over two seeds that lie 0.2 apart."""
    for seed in range(2):
        shift = 0.2 * seed
        folder.write("sync", seed, task="gsm8k", metrics=flat([0.7 + shift] * 4))
        folder.write("estr", seed, task="gsm8k", metrics=flat([0.6 + shift] * 4, masked_fraction=0.01))
        folder.write(matched("kpop"), seed, task="gsm8k", metrics=flat([0.1 + shift] * 4, masked_fraction=0.04))
    _, [said] = drawn(folder, tmp_path / "matched_budget")
    assert said == (
        "GSM8K: Masked in the first and in the last quarter, in %: KPop (matched) 4 to 4, ESTR 1 to 1. Reward, mean "
        "over the last quarter (± mean over steps of the smoothed curves' sd over seeds): GRPO (sync) 0.800 ± 0.141, "
        "KPop (matched) 0.200 ± 0.141, ESTR 0.700 ± 0.141."
    )
    _, [said] = drawn(folder, tmp_path / "fig14_gsm8k")
    assert "Highest of the asynchronous methods at published thresholds: ESTR." in said
    assert said.endswith("ESTR minus sync: -10.0 percentage points.")


def test_the_caption_of_browsecomp_plus_tells_the_range_of_the_asynchronous_methods(
    folder: ResultsFolder, tmp_path: Path
) -> None:
    for label, turns in (("sync", 2.0), ("async", 5.0), ("icepop", 3.0), ("estr", 4.0)):
        signals = {"turns": turns, "grad_norm": 1.0, "response_length": 9.0, "log_perplexity": 0.2}
        folder.write(label, 0, task="browsecomp_plus", metrics=flat([0.5] * 4, **signals))
    _, [said] = drawn(folder, tmp_path / "fig12_browsecomp_plus")
    assert said.startswith("BrowseComp-Plus (exact match, no judge model): ")
    assert "turns 3.00 (IcePop) to 5.00 (GRPO (async)), ESTR 4.00, GRPO (sync) 2.00;" in said


def test_sequences_that_are_masked_by_hand(folder: ResultsFolder, tmp_path: Path) -> None:
    metrics = flat([0.5] * 4) | {"sequences_masked_fraction": [0.0, 0.1, 0.5, 0.2]}
    folder.write("icepop", 0, metrics=metrics)
    _, [said] = drawn(folder, tmp_path / "fig15ab_dapo_math")
    assert "Sequences with a masked token, mean over all steps in %: IcePop 20 (at most 50)." in said


def test_a_caption_speaks_of_each_task_alone(folder: ResultsFolder, tmp_path: Path) -> None:
    """The same method has different numbers in two tasks; the last quarter of 4 steps is the last."""
    for task, last in (("gsm8k", 0.25), ("dapo_math", 0.75)):
        for label, reward in (("sync", 1.0), ("async", 0.0), ("estr", last)):
            folder.write(label, 0, task=task, metrics=flat([0.5, 0.5, 0.5, reward]))
    _, said = drawn(folder, tmp_path / "fig06_07_reward")
    ending = "Highest of the asynchronous methods at published thresholds: ESTR."
    assert said == [
        f"GSM8K: Mean over the last quarter: GRPO (sync) 1.000, GRPO (async) 0.000, ESTR 0.250. {ending}",
        f"DAPO-Math (AIME): Mean over the last quarter: GRPO (sync) 1.000, GRPO (async) 0.000, ESTR 0.750. {ending}",
    ]


@pytest.mark.parametrize(("metric", "peak", "scale"), [("grad_norm", 29.0, "linear"), ("grad_norm", 99.0, "log")])
def test_an_axis_is_logarithmic_where_a_spike_would_flatten_the_rest(metric: str, peak: float, scale: str) -> None:
    values = [1.0, 1.0, 1.0, peak]
    curves = pd.DataFrame({"metric": metric, "label": "estr", "step": [1, 2, 3, 4], "mean": values, "high": values})
    with style.look():
        _, ax = plt.subplots()
        scale_axis(ax, metric, curves)
        assert ax.get_yscale() == scale
        assert ax.get_ylim()[0] < 1 and ax.get_ylim()[1] > peak


def test_the_axis_of_a_masked_fraction_goes_on_to_zero() -> None:
    curves = pd.DataFrame({"mean": [0.0, 3e-9, 0.02], "high": [0.0, 3e-9, 0.02]})
    with style.look():
        _, ax = plt.subplots()
        scale_axis(ax, "masked_fraction", curves)
        assert ax.get_yscale() == "symlog" and ax.get_ylim()[0] < 0
        assert ax.yaxis.get_transform().linthresh == pytest.approx(1e-5)  # three decades below 0.02, rounded down


def test_settings_of_a_sweep_go_from_light_to_dark() -> None:
    for count in range(1, 6):
        looks = style.sweep_styles(count)
        brightness = [sum(int(look["color"][i : i + 2], 16) for i in (1, 3, 5)) for look in looks]
        assert brightness == sorted(brightness, reverse=True)
        assert len(set(brightness)) == len({look["marker"] for look in looks}) == count
