"""How long responses are: a lognormal cut at the response limit, or lengths that were measured."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from estr.errors import UserError

SIGMA_MAX = 6.0  # of the logarithm; wider than any responses, and where the cut leaves two lengths


class Lengths(Protocol):
    """Response tokens of independent trajectories."""

    @property
    def mean(self) -> float: ...

    @property
    def skew(self) -> float:
        """Coefficient of variation: standard deviation over mean."""
        ...

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """`count` lengths, int64, at least 1."""
        ...


@dataclass(frozen=True)
class LognormalLengths:
    """Lognormal lengths of which those beyond `limit` are cut to it.

    `mean` (tokens) and `skew` (standard deviation over mean) are those after the cut, as one measures them.

    Raises:
        UserError: the mean is no length below the limit, or no lognormal reaches the skew below the limit.
    """

    mean: float
    skew: float
    limit: int | None = None
    _shape: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.mean >= 1 or (self.limit is not None and self.mean >= self.limit):
            raise UserError(f"a mean length of {self.mean:g} tokens must lie between 1 and the limit of {self.limit}")
        if not self.skew >= 0:
            raise UserError(f"the skew (standard deviation over mean of the lengths) must be >= 0, got {self.skew:g}")
        object.__setattr__(self, "_shape", self._fit())

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        location, sigma = self._shape
        values = np.exp(location + sigma * rng.standard_normal(count))
        return np.clip(np.rint(values), 1, self.limit).astype(np.int64)

    def _fit(self) -> tuple[float, float]:
        """(location, sigma) of the logarithm before the cut."""
        if self.skew == 0:
            return math.log(self.mean), 0.0
        if self.limit is None:
            variance = math.log1p(self.skew**2)
            return math.log(self.mean) - variance / 2, math.sqrt(variance)
        largest = _skew(self._location(SIGMA_MAX), SIGMA_MAX, self.limit)
        if self.skew >= largest:
            raise UserError(
                f"lengths with a mean of {self.mean:g} tokens and a limit of {self.limit} "
                f"cannot have a skew of {self.skew:g}; the largest is {largest:.2f}"
            )
        low, high = 0.0, SIGMA_MAX
        for _ in range(60):
            sigma = (low + high) / 2
            if _skew(self._location(sigma), sigma, self.limit) < self.skew:
                low = sigma
            else:
                high = sigma
        return self._location(high), high

    def _location(self, sigma: float) -> float:
        """The location at which the mean after the cut is the wanted one."""
        assert self.limit is not None
        low, high = math.log(self.mean) - sigma**2, math.log(self.limit) + 8 * sigma
        for _ in range(60):
            middle = (low + high) / 2
            if _moment(1, middle, sigma, self.limit) < self.mean:
                low = middle
            else:
                high = middle
        return high


def _moment(order: int, location: float, sigma: float, limit: int) -> float:
    """E[min(X, limit)^order] of a lognormal X."""
    edge = (math.log(limit) - location) / sigma
    inside = math.exp(order * location + (order * sigma) ** 2 / 2) * _normal(edge - order * sigma)
    return inside + float(limit) ** order * _normal(-edge)


def _normal(x: float) -> float:
    """The standard normal's distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2


def _skew(location: float, sigma: float, limit: int) -> float:
    mean = _moment(1, location, sigma, limit)
    return math.sqrt(max(_moment(2, location, sigma, limit) / mean**2 - 1, 0.0))


@dataclass(frozen=True)
class MeasuredLengths:
    """Lengths drawn with replacement from `tokens` (int64, `[trajectories]`)."""

    tokens: np.ndarray

    @cached_property
    def mean(self) -> float:
        return float(self.tokens.mean())

    @cached_property
    def skew(self) -> float:
        return float(self.tokens.std() / self.tokens.mean())

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.choice(self.tokens, count)
