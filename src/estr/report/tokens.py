"""The sampled tokens behind Figures 1 and 3: those of the ESTR runs, or of vanilla async where a task has none.

Tokens with non-finite signals are left out.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from estr.algorithm.rules import EntropyScaled, build_rule
from estr.config import load_method, load_task
from estr.errors import UserError
from estr.report.labels import display, task_name
from estr.report.runs import RunResult, by_task, load_runs


def token_runs(run_dirs: Sequence[Path]) -> dict[str, list[RunResult]]:
    """Per task, in display order, the runs whose tokens are drawn.

    Raises:
        UserError: a run cannot be read, or a task has runs of neither estr nor async.
    """
    chosen = {}
    for task, runs in by_task(load_runs(run_dirs)).items():
        labels = {run.label for run in runs}
        label = next((label for label in ("estr", "async") if label in labels), None)
        if label is None:
            raise UserError(f"the token figures need runs of estr or async, {task} has none")
        chosen[task] = [run for run in runs if run.label == label]
    return chosen


def read_tokens(runs: Sequence[RunResult]) -> pd.DataFrame:
    """The runs' tokens with finite signals; adds run, turn and place (see `with_turns`)."""
    parts = []
    for run in runs:
        tokens = with_turns(run.read_tokens())
        finite = np.isfinite(tokens[["log_ratio", "entropy"]]).all(axis=1)
        if not finite.any():
            raise UserError(f"{run.path / 'tokens.parquet'}: holds no token with finite signals")
        parts.append(tokens[finite].assign(run=run.run_id))
    joined: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return joined


def with_turns(tokens: pd.DataFrame) -> pd.DataFrame:
    """Adds the assistant turn of each token and its place in that turn, both from 0.

    Positions count tool output, of which no token is recorded: a gap in them is the border of two turns.
    """
    ordered: pd.DataFrame = tokens.sort_values(["step", "sequence", "position"]).reset_index(drop=True)
    sequence = [ordered["step"], ordered["sequence"]]
    position = ordered["position"]
    turn = (position.groupby(sequence).diff() > 1).groupby(sequence).cumsum()
    first = position.groupby([*sequence, turn.rename("turn")]).transform("min")
    placed: pd.DataFrame = ordered.assign(turn=turn.astype(int), place=position - first.where(turn > 0, 0))
    return placed


def entropy_rule(run: RunResult) -> EntropyScaled:
    """The run's own entropy-scaled rule; the task's published one for a run that keeps everything."""
    if run.rule["name"] == EntropyScaled.name:
        rule = build_rule(**run.rule)
    else:
        thresholds = load_method("estr").thresholds | load_task(run.task).thresholds.get("estr", {})
        rule = build_rule(EntropyScaled.name, **thresholds)
    assert isinstance(rule, EntropyScaled)
    return rule


def source_line(chosen: dict[str, list[RunResult]]) -> str:
    """Whose tokens are drawn, for the figure's foot."""
    names = {task: display(runs[0].label) for task, runs in chosen.items()}
    if len(set(names.values())) == 1:
        return f"tokens of {next(iter(names.values()))}"
    return "tokens of " + ", ".join(f"{name} ({task_name(task)})" for task, name in names.items())
