"""Intervals and spreads over seeds and steps, and how they are written in a statistic."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from estr.errors import UserError
from estr.evaluation.paired import PairedDifference, paired_difference_interval
from estr.report.claims.outcome import NoData, NotComputable
from estr.report.runs import RunResult

SEED = 0
RESAMPLES = 5_000


Share = Annotated[str, Field(pattern=r"^[1-9]\d*/[1-9]\d*$")]
"""A fraction as a predicate writes it, e.g. ``1/3``."""

Series = Callable[[RunResult], np.ndarray]
"""The values of a run that are averaged, one per step."""


def training(column: str) -> Series:
    """A column of metrics.parquet at every step."""

    def values(run: RunResult) -> np.ndarray:
        if column not in run.metrics:
            raise UserError(f"{run.path / 'metrics.parquet'}: lacks the column {column}")
        return run.metrics[column].to_numpy(np.float64)

    return values


def last_quarter(column: str) -> Series:
    """A column of metrics.parquet in the last quarter of the steps, as the tables take it."""
    whole = training(column)
    return lambda run: whole(run)[run.metrics["step"].to_numpy() > 0.75 * run.steps]


def mean_of(runs: Sequence[RunResult], values: Series) -> float:
    """Mean over runs of each run's mean."""
    return float(np.mean([values(run).mean() for run in runs]))


def difference(a: Sequence[RunResult], b: Sequence[RunResult], values: Series) -> PairedDifference:
    """Mean of a - b over the seeds that both have and over steps, with its two-way bootstrap interval."""
    return paired_difference_interval(*_paired(a, b, values), seed=SEED)


def ratio(a: Sequence[RunResult], b: Sequence[RunResult], values: Series) -> tuple[float, float, float]:
    """Mean of a over mean of b with its 95 % interval: seeds and steps drawn with replacement, the same of both.

    Raises:
        NotComputable: both means are 0.
    """
    over, under = _paired(a, b, values)
    n_seeds, n_steps = over.shape
    rng = np.random.default_rng(SEED)
    seeds = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=RESAMPLES)
    steps = rng.multinomial(n_steps, np.full(n_steps, 1 / n_steps), size=RESAMPLES)
    drawn = quotient(*(((seeds @ part) * steps).sum(axis=1) for part in (over, under)))
    observed = float(quotient(over.mean(), under.mean()))
    if np.isnan(observed):
        raise NotComputable("both means are 0, their ratio is undefined")
    return (observed, *interval(drawn))


def quotient(over: np.ndarray | float, under: np.ndarray | float) -> np.ndarray:
    """Elementwise; x / 0 is infinite, 0 / 0 NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(over, np.float64) / np.asarray(under, np.float64)


def interval(drawn: np.ndarray) -> tuple[float, float]:
    """2.5th and 97.5th percentile of resampled values; NaN ones (0 / 0) are left out, infinite ones stay."""
    low, high = np.quantile(drawn[~np.isnan(drawn)], [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def common_seeds(a: Sequence[RunResult], b: Sequence[RunResult]) -> list[int]:
    """The seeds that both have."""
    return sorted({run.seed for run in a} & {run.seed for run in b})


def seeds_text(runs: Sequence[object]) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{len(runs)} {'seed' if len(runs) == 1 else 'seeds'}"


def seeds_range(groups: Iterable[Sequence[object]]) -> str:
    """``2 seeds``, or ``2 to 3 seeds`` where settings differ."""
    counts = [len(group) for group in groups]
    return seeds_text(range(max(counts))) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} seeds"


def with_interval(
    mean: float, low: float, high: float, spec: str = ".3g", unit: str = "", border: float | None = None
) -> str:
    """``2.31 [2.10, 2.52] points``. border: what a predicate about the mean compares it with."""
    text = f"{mean:{spec}} [{low:{spec}}, {high:{spec}}]{f' {unit}' if unit else ''}"
    return text if border is None or not low <= border <= high else f"{text} (the interval includes the border)"


def single_seeds(values: Sequence[float], spec: str = ".3g") -> str:
    """`` (single seeds 0.91 to 0.97)``; nothing for one seed."""
    return f" (single seeds {min(values):{spec}} to {max(values):{spec}})" if len(values) > 1 else ""


def _paired(a: Sequence[RunResult], b: Sequence[RunResult], values: Series) -> tuple[np.ndarray, np.ndarray]:
    """Both as [seeds, steps], over common seeds in ascending order."""
    common = common_seeds(a, b)
    if not common:
        raise NoData(f"{a[0].label} and {b[0].label} share no seed")
    by_seed = [{run.seed: values(run) for run in runs if run.seed in common} for runs in (a, b)]
    if len({len(array) for side in by_seed for array in side.values()}) > 1:
        raise NoData(f"runs of {a[0].label} and {b[0].label} differ in their number of steps")
    over, under = (np.stack([side[seed] for seed in common]) for side in by_seed)
    return over, under
