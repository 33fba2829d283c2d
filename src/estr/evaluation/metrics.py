"""avg@k, pass@k and best@k over problems with bootstrap intervals; calibration and recall of an agent's samples."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
BINS = 10
_BLOCK = 4_000_000  # resampled values held at once


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased chance that k of `samples` answers hold a correct one: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021).

    Raises:
        ValueError: fewer samples than k, or `correct` outside 0..samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples per problem, got {samples}")
    if not 0 <= correct <= samples:
        raise ValueError(f"{correct} correct answers of {samples} is impossible")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def best_at_k(counts: ArrayLike, n: int, k: int) -> NDArray[np.float64]:
    """verl's best@k per problem: 1 - (1 - c/n)^k, for `counts` `[problems]` of correct answers among n.

    verl draws k of a problem's n scores WITH replacement, a thousand times, and averages the best of each draw; this
    is the value that its average estimates. It lies below the unbiased pass@k wherever 0 < c < n: one correct of
    four is 0.684 as best@4 and 1 as pass@4.

    Raises:
        ValueError: k or n below 1, or a count outside 0..n.
    """
    correct = np.asarray(counts, dtype=np.float64)
    if k < 1 or n < 1 or (correct < 0).any() or (correct > n).any():
        raise ValueError(f"best@{k} needs k >= 1 and counts between 0 and n = {n} >= 1")
    best: NDArray[np.float64] = 1.0 - (1.0 - correct / n) ** k
    return best


def bootstrap_interval(values: ArrayLike, seed: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` `[problems]`, resampling problems."""
    return bootstrap_interval_over_sets([values], seed, level)


def bootstrap_interval_over_sets(sets: Sequence[ArrayLike], seed: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over sets of each set's mean, resampling problems within each set.

    Raises:
        ValueError: no set, or a set without problems.
    """
    observed = [np.asarray(values, dtype=np.float64) for values in sets]
    if not observed or any(values.size == 0 for values in observed):
        raise ValueError("a bootstrap interval needs at least one problem")
    rng = np.random.default_rng(seed)
    means = np.mean([_resampled_means(values, rng) for values in observed], axis=0)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled_means(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    means = np.empty(RESAMPLES)
    block = max(1, _BLOCK // values.size)
    for start in range(0, RESAMPLES, block):
        size = min(block, RESAMPLES - start)
        means[start : start + size] = values[rng.integers(0, values.size, (size, values.size))].mean(axis=1)
    return means


@dataclass(frozen=True)
class CalibrationBin:
    """Samples whose stated confidence is in [low, high) (the last bin holds 1 too); means are None if it is empty."""

    low: float
    high: float
    samples: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """`error` is None if no sample states a confidence; `unstated` counts the samples that state none."""

    error: float | None
    bins: tuple[CalibrationBin, ...]
    unstated: int


def calibration(confidences: Sequence[float | None], correct: Sequence[bool]) -> Calibration:
    """Expected calibration error: sum over all `BINS` equal-width bins of share x |accuracy - mean confidence|.

    BrowseComp-Plus's own script differs: bins of about a hundred samples each, the last of which it drops, so that
    fewer than two hundred samples always give 0.

    Raises:
        ValueError: a confidence outside 0..1, or not one per sample.
    """
    stated = [(c, right) for c, right in zip(confidences, correct, strict=True) if c is not None]
    if any(not 0 <= c <= 1 for c, _ in stated):
        raise ValueError("a confidence must be between 0 and 1")
    members: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, right in stated:
        members[min(int(confidence * BINS), BINS - 1)].append((confidence, right))
    bins, error = [], 0.0
    for index, inside in enumerate(members):
        mean = accuracy = None
        if inside:
            mean, accuracy = (float(np.mean(column)) for column in zip(*inside, strict=True))
            error += len(inside) / len(stated) * abs(accuracy - mean)
        bins.append(CalibrationBin(index / BINS, (index + 1) / BINS, len(inside), mean, accuracy))
    return Calibration(error if stated else None, tuple(bins), len(confidences) - len(stated))


def recall(retrieved: Collection[str], evidence: Collection[str]) -> float:
    """Share of the evidence documents that were retrieved. Raises `ValueError` if there is no evidence."""
    wanted = set(evidence)
    if not wanted:
        raise ValueError("recall is not defined without evidence documents")
    return len(wanted & set(retrieved)) / len(wanted)
