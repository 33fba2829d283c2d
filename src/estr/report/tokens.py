"""The tokens that the token figures draw: of the ESTR runs of each task, and of a real language model's sample.

Where a task has no ESTR run, vanilla async's tokens are drawn. Tokens with non-finite signals are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from estr.algorithm.calibration import calibrate
from estr.algorithm.rules import EntropyScaled, KeepRule, ThresholdRule, build_rule
from estr.algorithm.signals import TokenSignals
from estr.config import load_method, load_task
from estr.errors import UserError
from estr.report import style
from estr.report.labels import PAPER_SCALE, display, task_name
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.samples import Sample, load_sample
from estr.report.sources import run_folders, sample_folders


@dataclass(frozen=True, eq=False)
class TokenSource:
    """One origin of tokens, drawn in panels of its own.

    key: its name in the figures' CSV, e.g. ``gsm8k`` or ``smollm2_stale``. title: e.g. ``SmolLM2-135M, stale``.
    maker: the method that was trained, or how the language model's two policies differ. rule: ESTR's rule with the
    thresholds of that origin. tokens: the columns of tokens.parquet and log_ratio (nats), run, turn and place (see
    `with_turns`), cluster (int, what belongs together: the step of a run, the responses to one problem of a sample) and
    settled (bool, False while staleness ramps up). runs or sample: whose tokens they are.
    """

    key: str
    title: str
    maker: str
    rule: EntropyScaled
    tokens: pd.DataFrame
    runs: tuple[RunResult, ...] = ()
    sample: Sample | None = None

    @property
    def path(self) -> Path:
        """The (first) file of these tokens."""
        return (self.sample or self.runs[0]).path / "tokens.parquet"

    @property
    def heading(self) -> str:
        """Title of its panels, e.g. ``GSM8K, laptop policy``."""
        if not self.runs:
            return self.title
        scale = self.runs[0].scale
        return self.title if scale == PAPER_SCALE else f"{self.title}, {scale} policy"


def token_sources(folders: Sequence[Path], scenarios: Sequence[str] = ("mismatch", "stale")) -> list[TokenSource]:
    """The given scenarios of the language model's samples, then the runs of each task in display order.

    Raises:
        UserError: nothing to draw, a file cannot be read, or a task has runs of neither estr nor async.
    """
    samples = [load_sample(path) for path in sample_folders(folders)]
    sources = [_of_sample(sample, name) for sample in samples for name in scenarios if name in sample.scenarios]
    runs = run_folders(folders)
    if runs or not sources:
        sources += [_of_runs(chosen) for chosen in token_runs(runs).values()]
    return sources


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
    """The runs' tokens with finite signals; adds run, turn, place, cluster and settled (see `TokenSource`)."""
    parts = []
    for run in runs:
        tokens = with_turns(run.read_tokens())
        finite = np.isfinite(tokens[["log_ratio", "entropy"]]).all(axis=1)
        if not finite.any():
            raise UserError(f"{run.path / 'tokens.parquet'}: holds no token with finite signals")
        parts.append(tokens[finite].assign(run=run.run_id))
    return by_step(pd.concat(parts, ignore_index=True))


def with_turns(tokens: pd.DataFrame, sequence: Sequence[str] = ("step", "sequence")) -> pd.DataFrame:
    """Adds the assistant turn of each token and its place in that turn, both from 0.

    Positions count tool output, of which no token is recorded: a gap in them is the border of two turns.
    `sequence` names the columns that tell sequences apart.
    """
    ordered: pd.DataFrame = tokens.sort_values([*sequence, "position"]).reset_index(drop=True)
    keys = [ordered[name] for name in sequence]
    position = ordered["position"]
    turn = (position.groupby(keys).diff() > 1).groupby(keys).cumsum()
    first = position.groupby([*keys, turn.rename("turn")]).transform("min")
    placed: pd.DataFrame = ordered.assign(turn=turn.astype(int), place=position - first.where(turn > 0, 0))
    return placed


def by_step(tokens: pd.DataFrame) -> pd.DataFrame:
    """Adds cluster, the number of the (run, step) whose sequences switch version at the same positions, and settled.

    A step is settled if its tokens span as many weight versions as those of any step.
    """
    step = [tokens["run"], tokens["step"]]
    version = tokens["weight_version"].groupby(step)
    span = version.transform("max") - version.transform("min")
    grouped: pd.DataFrame = tokens.assign(cluster=tokens.groupby(["run", "step"]).ngroup(), settled=span == span.max())
    return grouped


def entropy_rule(run: RunResult) -> EntropyScaled:
    """The run's own entropy-scaled rule; the task's published one for a run that keeps everything."""
    if run.rule["name"] == EntropyScaled.name:
        rule = build_rule(**run.rule)
    else:
        thresholds = load_method("estr").thresholds | load_task(run.task).thresholds.get("estr", {})
        rule = build_rule(EntropyScaled.name, **thresholds)
    assert isinstance(rule, EntropyScaled)
    return rule


def signals(tokens: pd.DataFrame) -> TokenSignals:
    """The tokens as one batch of a single sequence, [1, tokens]; the advantage is 0."""

    def row(name: str) -> torch.Tensor:
        return torch.from_numpy(tokens[name].to_numpy(copy=True))[None]

    behavior = row("behavior_logprob")
    return TokenSignals(
        behavior,
        row("target_logprob"),
        row("entropy"),
        torch.zeros_like(behavior),
        torch.ones_like(behavior, dtype=torch.bool),
        torch.zeros_like(behavior, dtype=torch.int64),
    )


def masked_by(rule: KeepRule, tokens: pd.DataFrame) -> np.ndarray:
    """Which tokens the rule masks, bool [tokens]."""
    masked: np.ndarray = ~rule.keep(signals(tokens))[0].numpy()
    return masked


def at_equal_budget(source: TokenSource, rule: ThresholdRule) -> ThresholdRule:
    """The rule with the threshold at which it masks as many of the source's tokens as ESTR's does (`calibrate`).

    Raises:
        UserError: no token is off-policy.
    """
    fraction = float(masked_by(source.rule, source.tokens).mean())
    try:
        return calibrate(rule, [signals(source.tokens)], fraction).rule
    except ValueError as error:
        raise UserError(f"the sampled tokens of {source.title}: {error}") from error


def foot(sources: Sequence[TokenSource]) -> str:
    """Whose tokens are drawn, for the figure's foot."""
    trained = [source for source in sources if source.runs]
    lines = [f"{source.title}: {source.maker}" for source in sources if not source.runs]
    if trained:
        names = {source.maker for source in trained}
        listed = names if len(names) == 1 else [f"{source.maker} ({source.title})" for source in trained]
        runs = [run for source in trained for run in source.runs]
        lines.insert(0, f"{style.scale_line(runs)} · tokens of {', '.join(listed)}")
    return " · ".join(lines)


def _of_runs(runs: Sequence[RunResult]) -> TokenSource:
    task = runs[0].task
    name, method, rule = task_name(task), display(runs[0].label), entropy_rule(runs[0])
    return TokenSource(task, name, method, rule, read_tokens(runs), tuple(runs))


def _of_sample(sample: Sample, scenario: str) -> TokenSource:
    tokens = with_turns(sample.read_tokens(scenario), ["sequence"])
    tokens = tokens.assign(run=sample.name, cluster=tokens["sequence"] // sample.group, settled=True)
    key, title = f"{sample.name}_{scenario}", f"{sample.short_model}, {scenario}"
    return TokenSource(key, title, sample.scenarios[scenario].maker, EntropyScaled(), tokens, sample=sample)
