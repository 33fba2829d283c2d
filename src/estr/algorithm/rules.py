"""Keep rules: which response tokens may contribute a gradient.

A rule maps `TokenSignals` to a bool mask. Tokens outside the response mask and tokens with non-finite signals
are never kept. Scores are float64, so that a verdict at a threshold does not depend on rounding in float32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from estr.algorithm.signals import TokenSignals, indicator, weights

GUESSED_FROM = 2048
"""Positions of the sample that tells `SecondMoment` where to look, about."""


@dataclass(frozen=True)
class KeepRule(ABC):
    """Decides token by token whether to keep; thresholds are the fields of the frozen dataclass."""

    name: ClassVar[str]

    @abstractmethod
    def keep(self, signals: TokenSignals) -> Tensor:
        """The mask M_t: bool [batch, length], False outside the response and on non-finite signals."""

    def boundary(self, entropy: Tensor) -> tuple[Tensor, Tensor] | None:
        """Smallest and largest kept log-ratio at each entropy, or None if entropy does not fix them."""
        return None

    def _require(self, condition: bool, field: str, requirement: str) -> None:
        if not condition:
            raise ValueError(f"{self.name}: {field} must be {requirement}, got {getattr(self, field)!r}")

    def _require_number(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
            self._require(number, name, "a finite number")


@dataclass(frozen=True)
class ThresholdRule(KeepRule):
    """Keeps a token iff its score is at most one scalar threshold, the form that calibration needs."""

    @abstractmethod
    def score(self, signals: TokenSignals) -> Tensor:
        """float64 [batch, length], >= 0; meaningless on tokens that are not `signals.usable`."""

    @property
    @abstractmethod
    def threshold(self) -> float:
        """What the score is compared with."""

    @abstractmethod
    def with_threshold(self, threshold: float) -> Self:
        """The rule of the same shape whose mask is score <= threshold, for the score of *this* rule."""

    def keep(self, signals: TokenSignals) -> Tensor:
        return signals.usable & indicator(torch.le, self.score(signals), self.threshold).bool()


@dataclass(frozen=True)
class EntropyScaled(ThresholdRule):
    """ESTR (Eqs. 14-16): keeps iff S_t = delta_t^2 / (H_t + eps) <= tau.

    The paper's tau is 1.0 on BrowseComp-Plus, 1.6 on DAPO-Math and GSM8K. A rounded negative entropy counts
    as 0.
    """

    name: ClassVar[str] = "entropy_scaled"
    tau: float = 1.6
    eps: float = 0.01

    def __post_init__(self) -> None:
        self._require_number("tau", "eps")
        self._require(self.tau >= 0, "tau", ">= 0")
        self._require(self.eps > 0, "eps", "> 0")

    def score(self, signals: TokenSignals) -> Tensor:
        """S_t (Eq. 14)."""
        return _log_ratio(signals).square_().div_(self.scale(signals.entropy))

    def scale(self, entropy: Tensor) -> Tensor:
        """nu_t = H_t + eps (Eq. 11), float64."""
        return entropy.clamp(min=0).double().add_(self.eps)

    @property
    def threshold(self) -> float:
        return self.tau

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, tau=threshold)

    def boundary(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        """-+ b_ESTR(H) = sqrt(tau (H + eps)) (Eq. 16)."""
        bound = (self.tau * self.scale(entropy)).sqrt()
        return -bound, bound


@dataclass(frozen=True)
class FixedMagnitude(ThresholdRule):
    """The constant-scale special case of ESTR (Prop. 1): keeps iff delta^2 <= c^2, tested as |delta| <= c."""

    name: ClassVar[str] = "fixed_magnitude"
    c: float

    def __post_init__(self) -> None:
        self._require_number("c")
        self._require(self.c >= 0, "c", ">= 0")

    def score(self, signals: TokenSignals) -> Tensor:
        """|delta_t|."""
        return _log_ratio(signals).abs()

    @property
    def threshold(self) -> float:
        return self.c

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, c=threshold)

    def boundary(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        bound = torch.full_like(entropy, self.c, dtype=torch.float64)
        return -bound, bound


@dataclass(frozen=True)
class RatioInterval(ThresholdRule):
    """IcePop (arXiv 2510.18855): keeps iff low <= r_t <= high, tested in log space on r = pi_theta / mu.

    Its score is the factor by which log(low) and log(high) must be multiplied to just include the token, so
    that calibration widens or narrows the interval without changing its shape: (low, high) -> (low^s,
    high^s).
    """

    name: ClassVar[str] = "ratio_interval"
    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        self._require_number("low", "high")
        self._require(self.low < self.high, "low", f"< high = {self.high}")
        self._require(0 < self.low < 1, "low", "in (0, 1), so that on-policy tokens are kept")
        self._require(self.high > 1, "high", "> 1, so that on-policy tokens are kept")

    def keep(self, signals: TokenSignals) -> Tensor:
        delta = _log_ratio(signals)
        return signals.usable & (delta >= math.log(self.low)) & (delta <= math.log(self.high))

    def score(self, signals: TokenSignals) -> Tensor:
        """max(delta / log(low), delta / log(high))."""
        delta = _log_ratio(signals)
        return torch.maximum(delta / math.log(self.low), delta / math.log(self.high))

    @property
    def threshold(self) -> float:
        return 1.0

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, low=math.pow(self.low, threshold), high=math.pow(self.high, threshold))

    def boundary(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        lower = torch.full_like(entropy, math.log(self.low), dtype=torch.float64)
        upper = torch.full_like(entropy, math.log(self.high), dtype=torch.float64)
        return lower, upper


@dataclass(frozen=True)
class BinaryKL(ThresholdRule):
    """KPop (ringtech.notion.site/kpop): keeps iff both directions of the binary KL of (mu, pi) are <= phi.

    The vocabulary is reduced to {y, rest}: D_B(p||q) = p log(p/q) + (1-p) log((1-p)/(1-q)). Computed from
    log-probs; the only floor is on the mass of `rest`, at half the machine epsilon of the log-probs (6e-8 for
    float32): a log-prob that rounded to 0 says no more than that, and an exact 1 would put the other
    direction at infinity.
    """

    name: ClassVar[str] = "binary_kl"
    phi: float = 0.1

    def __post_init__(self) -> None:
        self._require_number("phi")
        self._require(self.phi >= 0, "phi", ">= 0")

    def keep(self, signals: TokenSignals) -> Tensor:
        """As the score has it, which is computed where a bound that needs no exponential does not decide.

        The two directions add up to (pi - mu) (delta + log((1 - mu) / (1 - pi))) <= delta^2 P / (1 - P) for the
        larger probability P = exp(-x), and P / (1 - P) <= 1 / (x + x^2 / 2). Where 1 - P meets the floor, the score
        decides.
        """
        usable = signals.usable
        logprob = torch.maximum(signals.behavior_logprob, signals.target_logprob.detach())
        surprise = (-logprob.double()).sub_(torch.finfo(logprob.dtype).eps).clamp_(min=0)
        near = _log_ratio(signals).square() <= self.phi * surprise * (1 + surprise / 2)
        keep = usable & near
        far = (usable & ~near).nonzero(as_tuple=True)
        keep[far] = _larger_binary_kl(signals.behavior_logprob[far], signals.target_logprob[far]) <= self.phi
        return keep

    def score(self, signals: TokenSignals) -> Tensor:
        """max(D_B(mu||pi), D_B(pi||mu)), in nats."""
        return _larger_binary_kl(signals.behavior_logprob, signals.target_logprob)

    @property
    def threshold(self) -> float:
        return self.phi

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, phi=threshold)


@dataclass(frozen=True)
class SecondMoment(ThresholdRule):
    """M2PO (arXiv 2510.01161): masks the largest delta^2 of a batch until the mean of the rest is <= budget.

    The batch is whatever `signals` holds; for a verdict over the global batch compute the mask there once and
    hand its parts to the micro-batches. With `eligible="harmful"` only tokens that push further off-policy,
    (A > 0 and r > 1) or (A < 0 and r < 1), enter the mean and can be masked, all others are kept (the
    official code's choice).

    Tokens of equal delta^2 stand or fall together, so the mask does not depend on the order of the rows. If
    the smallest delta^2 is already above the budget, every eligible token is masked: what is kept never
    exceeds the budget, and a batch of one token is judged like a token of a large one.
    """

    name: ClassVar[str] = "second_moment"
    budget: float = 0.04
    eligible: Literal["all", "harmful"] = "all"

    def __post_init__(self) -> None:
        self._require_number("budget")
        self._require(self.budget > 0, "budget", "> 0")
        self._require(self.eligible in ("all", "harmful"), "eligible", "'all' or 'harmful'")

    def keep(self, signals: TokenSignals) -> Tensor:
        """As the score has it. A sample brackets the largest delta^2 that fits, so that few tokens need sorting."""
        square, eligible = self._judged(signals)
        weight = weights(eligible, square.dtype)
        square = square.nan_to_num_().mul_(weight)
        if square.sum() / weight.sum() <= self.budget:
            return signals.usable.clone()
        fits, total, count = -1.0, 0.0, 0.0  # a delta^2 that fits; sum and number of those up to it
        exceeds = math.inf
        for guess in self._guesses(square, eligible):
            within = indicator(torch.le, square, guess).mul_(weight)
            upto, number = float(torch.mul(square, within).sum()), float(within.sum())
            if upto / number > self.budget:
                exceeds = guess
                break
            fits, total, count = guess, upto, number
        values, counts = torch.unique(square[eligible & (square > fits) & (square < exceeds)], return_counts=True)
        mean = (total + (values * counts).cumsum(0)) / (count + counts.cumsum(0))
        largest = max(values[mean <= self.budget].tolist(), default=fits)
        return signals.usable & ~(eligible & (square > largest))

    def score(self, signals: TokenSignals) -> Tensor:
        """Mean delta^2 over the eligible tokens whose delta^2 is at most this token's; 0 if not eligible.

        It rises with delta^2, so comparing it with the budget masks the largest until the rest fits.
        """
        square, eligible = self._judged(signals)
        values, group, counts = torch.unique(square[eligible], return_inverse=True, return_counts=True)
        running_mean = (values * counts).cumsum(0) / counts.cumsum(0)
        score = torch.zeros_like(square)
        score[eligible] = running_mean[group]
        return score

    def _guesses(self, square: Tensor, eligible: Tensor) -> list[float]:
        """A delta^2 a little below and one a little above the largest that fits, going by a sample of the tokens."""
        some = slice(None, None, eligible.numel() // GUESSED_FROM | 1)
        sample = square.flatten()[some][eligible.flatten()[some]].sort().values
        size = len(sample)
        mean = sample.cumsum(0) / torch.arange(1, size + 1, device=sample.device)
        fitting = int((mean <= self.budget).sum())
        margin = size // 50
        return sample[[max(fitting - margin, 0), min(fitting + margin, size - 1)]].tolist() if size else []

    def _judged(self, signals: TokenSignals) -> tuple[Tensor, Tensor]:
        """delta^2, and which tokens the budget is about."""
        delta = _log_ratio(signals)
        if self.eligible == "harmful":
            return delta.square(), signals.usable & (signals.advantage.double() * delta > 0)
        return delta.square(), signals.usable

    @property
    def threshold(self) -> float:
        return self.budget

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, budget=threshold)


@dataclass(frozen=True)
class _Combination(ThresholdRule):
    """Fixed magnitude and entropy rule together; calibration scales both boundaries by one factor s."""

    c: float
    tau: float = 1.6
    eps: float = 0.01

    def __post_init__(self) -> None:
        self._require_number("c", "tau", "eps")
        self._require(self.c > 0, "c", "> 0")
        self._require(self.tau > 0, "tau", "> 0")
        self._require(self.eps > 0, "eps", "> 0")

    @property
    def fixed(self) -> FixedMagnitude:
        return FixedMagnitude(self.c)

    @property
    def entropy_scaled(self) -> EntropyScaled:
        return EntropyScaled(self.tau, self.eps)

    @property
    def threshold(self) -> float:
        return 1.0

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, c=self.c * threshold, tau=self.tau * threshold**2)

    def _relative_scores(self, signals: TokenSignals) -> tuple[Tensor, Tensor]:
        """|delta| over the boundary of each rule."""
        fixed = self.fixed.score(signals) / self.c
        return fixed, (self.entropy_scaled.score(signals) / self.tau).sqrt()


@dataclass(frozen=True)
class ExplorationPreserving(_Combination):
    """v2 Table 2: keeps iff the fixed OR the entropy rule keeps, i.e. rescues high-entropy tokens."""

    name: ClassVar[str] = "exploration_preserving"

    def keep(self, signals: TokenSignals) -> Tensor:
        return self.fixed.keep(signals) | self.entropy_scaled.keep(signals)

    def score(self, signals: TokenSignals) -> Tensor:
        return torch.minimum(*self._relative_scores(signals))

    def boundary(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        bound = torch.maximum(self.fixed.boundary(entropy)[1], self.entropy_scaled.boundary(entropy)[1])
        return -bound, bound


@dataclass(frozen=True)
class OutlierSuppressing(_Combination):
    """v2 Table 2: keeps iff the fixed AND the entropy rule keep, i.e. also drops low-entropy outliers."""

    name: ClassVar[str] = "outlier_suppressing"

    def keep(self, signals: TokenSignals) -> Tensor:
        return self.fixed.keep(signals) & self.entropy_scaled.keep(signals)

    def score(self, signals: TokenSignals) -> Tensor:
        return torch.maximum(*self._relative_scores(signals))

    def boundary(self, entropy: Tensor) -> tuple[Tensor, Tensor]:
        bound = torch.minimum(self.fixed.boundary(entropy)[1], self.entropy_scaled.boundary(entropy)[1])
        return -bound, bound


@dataclass(frozen=True)
class KeepAll(KeepRule):
    """Synchronous and vanilla asynchronous GRPO: every token with finite signals is kept."""

    name: ClassVar[str] = "keep_all"

    def keep(self, signals: TokenSignals) -> Tensor:
        return signals.usable.clone()


RULES: dict[str, type[KeepRule]] = {
    rule.name: rule
    for rule in (
        EntropyScaled,
        RatioInterval,
        BinaryKL,
        SecondMoment,
        FixedMagnitude,
        ExplorationPreserving,
        OutlierSuppressing,
        KeepAll,
    )
}


def build_rule(name: str, **thresholds: Any) -> KeepRule:
    """The rule called `name` with the given thresholds, defaults for the others.

    Raises:
        ValueError: unknown name, unknown or missing threshold, or a value out of range.
    """
    if name not in RULES:
        raise ValueError(f"unknown keep rule {name!r}, choose from {', '.join(RULES)}")
    rule = RULES[name]
    known = {field.name: field.default for field in fields(rule)}
    for threshold in thresholds:
        if threshold not in known:
            raise ValueError(f"{name}: unknown threshold {threshold!r}, known are {list(known)}")
    for field, default in known.items():
        if default is MISSING and field not in thresholds:
            raise ValueError(f"{name}: threshold {field!r} is missing")
    return rule(**thresholds)


def _log_ratio(signals: TokenSignals) -> Tensor:
    return signals.log_ratio.detach().double()


def _larger_binary_kl(behavior_logprob: Tensor, target_logprob: Tensor) -> Tensor:
    behavior, behavior_rest = _with_rest(behavior_logprob)
    target, target_rest = _with_rest(target_logprob)
    token = target - behavior
    rest = target_rest - behavior_rest
    forward = -(behavior.exp() * token + behavior_rest.exp() * rest)
    backward = target.exp() * token + target_rest.exp() * rest
    return torch.maximum(forward, backward)


def _with_rest(logprob: Tensor) -> tuple[Tensor, Tensor]:
    """(log p, log(1 - p)) in float64, with 1 - p floored at half the epsilon of the log-prob's own dtype."""
    floor = torch.finfo(logprob.dtype).eps / 2
    logprob = logprob.detach().double()
    small = torch.log1p(-logprob.clamp(max=-math.log(2)).exp())
    large = torch.log((-torch.expm1(logprob)).clamp(min=floor))
    return logprob, torch.where(logprob < -math.log(2), small, large)
