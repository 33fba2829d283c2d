"""Figures that compare the methods task by task: validation, entropy, KL, reward, masking, and two ablations."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from estr.errors import UserError
from estr.report import style
from estr.report.curves import (
    EVERY,
    Shown,
    bands_note,
    curve_data,
    curves_footer,
    draw_tasks,
    judged_titles,
    panel_grid,
    published_runs,
)
from estr.report.labels import COMPONENTS, KEEP_ALL_METHODS, display, is_matched, split_label
from estr.report.runs import RunResult, load_runs
from estr.report.sources import run_folders

VALIDATION = "validation_accuracy"
REFERENCES = (*KEEP_ALL_METHODS, "estr")  # what the matched-budget variants are compared to


def _at_published_thresholds(labels: Sequence[str]) -> list[str]:
    return [label for label in labels if not split_label(label)[1]]


def _at_matched_budget(labels: Sequence[str]) -> list[str]:
    matched = [label for label in labels if is_matched(label)]
    return [label for label in labels if label in matched or label in REFERENCES] if matched else []


AT_THRESHOLDS: dict[str, Shown] = {
    "published thresholds": _at_published_thresholds,
    "matched budget": _at_matched_budget,
}


def fig04_validation(folders: Sequence[Path], out_stem: Path) -> None:
    """Accuracy on held-out problems during training, unsmoothed; runs that were not validated are named at the foot.

    Of an engine that cannot validate while it trains (verl) the figure says so and has no curves.

    Raises:
        UserError: a run cannot be read, or none was validated although it could have been.
    """
    runs = published_runs(folders)
    validated = [run for run in runs if VALIDATION in run.metrics and run.metrics[VALIDATION].notna().any()]
    if not validated and all(run.engine != "embedded" for run in runs):
        return _without_curves(runs, out_stem)
    if not validated:
        raise UserError(
            f"no run of {runs[0].scale} scale has validation accuracy; set train.validate_every of a task in "
            f"configs/scales/{runs[0].scale}.yaml and train again"
        )
    data = curve_data(validated, [VALIDATION])
    tasks = {run.task for run in validated}
    absent = [run for run in runs if run.task in tasks and run not in validated]
    problems = sorted({run.config["train"].get("validate_problems", 0) for run in validated})
    footer = f"{style.scale_line(validated)}{bands_note(validated)}"
    if problems[0]:
        footer += f" · on {'-'.join(map(str, problems))} problems"
    if absent:
        footer += f" · not validated: {', '.join(dict.fromkeys(f'{display(r.label)} seed {r.seed}' for r in absent))}"
    draw_tasks(data, panel_grid(data, [VALIDATION]), out_stem, footer, judged_titles(validated))


def _without_curves(runs: Sequence[RunResult], out_stem: Path) -> None:
    style.save_data(pd.DataFrame(columns=["task", "metric", "label", "step"]), out_stem)
    engines = ", ".join(sorted({run.engine for run in runs}))
    with style.look():
        fig = plt.figure(figsize=(style.SINGLE, 1.0))
        fig.text(0.5, 0.6, f"The {engines} engine does not validate while it trains.", ha="center")
        style.add_footer(fig, style.scale_line(runs))
        style.save(fig, out_stem)


def fig05a_entropy(folders: Sequence[Path], out_stem: Path) -> None:
    """Mean behavior entropy (nats) over steps."""
    _published(folders, "entropy", out_stem)


def fig05b_kl(folders: Sequence[Path], out_stem: Path) -> None:
    """KL between behavior and target policy (k3, nats) over steps."""
    _published(folders, "kl_to_behavior", out_stem)


def fig06_07_reward(folders: Sequence[Path], out_stem: Path) -> None:
    """Training reward over steps; panels name the judge where the benchmark asks for one."""
    runs = published_runs(folders)
    data = curve_data(runs, ["reward"])
    draw_tasks(data, panel_grid(data, ["reward"]), out_stem, curves_footer(runs), judged_titles(runs))


def fig08_masking(folders: Sequence[Path], out_stem: Path) -> None:
    """Masked fraction (methods with a keep rule only) and ratio deviation over steps, DAPO-Math first.

    Raises:
        UserError: a run cannot be read, or none is of a method that masks tokens.
    """
    matched = [run for run in load_runs(run_folders(folders)) if is_matched(run.label)]
    runs = sorted([*published_runs(folders), *matched], key=lambda run: run.task != "dapo_math")
    if all(run.method in KEEP_ALL_METHODS for run in runs):
        raise UserError("the masking figure needs a run of a method that masks tokens, none was given")
    metrics = ["masked_fraction", "ratio_deviation"]
    data = curve_data(runs, metrics)
    grid = panel_grid(data, metrics, AT_THRESHOLDS if matched else EVERY)
    draw_tasks(data, grid, out_stem, curves_footer(runs))


def matched_budget(folders: Sequence[Path], out_stem: Path) -> None:
    """Masked fraction and reward of the rules calibrated to ESTR's budget, beside ESTR and the unmasked references.

    Raises:
        UserError: a run cannot be read, or none has `thresholds=matched`.
    """
    runs = load_runs(run_folders(folders))
    tasks = {run.task for run in runs if is_matched(run.label)}
    if not tasks:
        raise UserError("the matched-budget figure needs runs with thresholds=matched, none was given")
    chosen = [run for run in runs if run.task in tasks and (is_matched(run.label) or run.label in REFERENCES)]
    _masked_and_reward(chosen, out_stem)


def v2_components(folders: Sequence[Path], out_stem: Path) -> None:
    """Reward and masked fraction of the arms of v2's Table 2; ESTR is both interventions together.

    Raises:
        UserError: a run cannot be read, or there is no arm but ESTR.
    """
    arms = (*COMPONENTS, "estr")
    runs = [run for run in load_runs(run_folders(folders)) if run.label in arms]
    tasks = {run.task for run in runs if run.label in COMPONENTS}
    if not tasks:
        raise UserError(f"the component figure needs runs of {', '.join(COMPONENTS)}, none was given")
    _masked_and_reward([run for run in runs if run.task in tasks], out_stem)


def _published(folders: Sequence[Path], metric: str, out_stem: Path) -> None:
    runs = published_runs(folders)
    data = curve_data(runs, [metric])
    draw_tasks(data, panel_grid(data, [metric]), out_stem, curves_footer(runs))


def _masked_and_reward(runs: Sequence[RunResult], out_stem: Path) -> None:
    metrics = ["masked_fraction", "reward"]
    data = curve_data(runs, metrics)
    draw_tasks(data, panel_grid(data, metrics), out_stem, curves_footer(runs), judged_titles(runs))
