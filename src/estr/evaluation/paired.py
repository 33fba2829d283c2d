"""Difference between two methods, paired by seed and by problem, with a bootstrap interval."""

from dataclasses import dataclass

import numpy as np

_BLOCK = 4_000_000  # resampling weights held at once


@dataclass(frozen=True)
class PairedDifference:
    """Mean of a - b over seeds and problems, and its percentile interval, in the unit of the values."""

    mean: float
    low: float
    high: float


def paired_difference_interval(
    a: np.ndarray, b: np.ndarray, seed: int, level: float = 0.95, resamples: int = 5_000
) -> PairedDifference:
    """Two-way bootstrap of the mean of a - b: seeds and problems are both drawn with replacement.

    a, b: [seeds, problems], row i of both from the same seed, column j of both the same problem.
    With few seeds the interval understates the spread between seeds (by about (n - 1) / n of its variance);
    with one seed it covers problems only.

    Raises:
        ValueError: the shapes differ, or an array is not [seeds, problems] with at least one of each.
    """
    if a.shape != b.shape or a.ndim != 2 or a.size == 0:
        raise ValueError(f"need two equal non-empty [seeds, problems] arrays, got {a.shape} and {b.shape}")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    n_seeds, n_problems = difference.shape
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    block = max(1, _BLOCK // n_problems)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        seeds = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=size)
        problems = rng.multinomial(n_problems, np.full(n_problems, 1 / n_problems), size=size)
        means[start : start + size] = ((seeds @ difference) * problems).sum(axis=1) / difference.size
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return PairedDifference(float(difference.mean()), float(low), float(high))
