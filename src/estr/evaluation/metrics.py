"""avg@k and pass@k over problems, with bootstrap intervals."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000


def avg_at_k(correct: ArrayLike) -> NDArray[np.float64]:
    """Per problem, the share of its k samples that are correct: `[problems, k]` of 0/1 -> `[problems]`."""
    shares: NDArray[np.float64] = np.asarray(correct, dtype=np.float64).mean(axis=1)
    return shares


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


def bootstrap_interval(values: ArrayLike, seed: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` `[problems]`, resampling problems."""
    observed = np.asarray(values, dtype=np.float64)
    if observed.size == 0:
        raise ValueError("a bootstrap interval needs at least one problem")
    rng = np.random.default_rng(seed)
    means = observed[rng.integers(0, observed.size, (RESAMPLES, observed.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
