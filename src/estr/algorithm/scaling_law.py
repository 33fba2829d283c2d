"""The entropy-ratio scaling law: the paper's appendices A to D as functions, for tests and figures.

`rho` is a behavior distribution over the vocabulary, [..., vocabulary], sigma the standard deviation of the
logit perturbation that staleness causes (Eq. 22), q the probability of a sampled off-mode token. Entropies
are in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from estr.algorithm.signals import entropy_from_logits


def perturbed_log_ratio(logits: Tensor, eta: Tensor) -> Tensor:
    """delta(w) = log pi_theta(w) - log rho(w) for logits z and z + eta (Eq. 22), exact: [..., vocabulary]."""
    return torch.log_softmax(logits + eta, -1) - torch.log_softmax(logits, -1)


def first_order_log_ratio(eta: Tensor, rho: Tensor) -> Tensor:
    """delta(y) ~ eta_y - sum_w rho_w eta_w for every token y (Eq. 24): [..., vocabulary]."""
    return eta - (rho * eta).sum(-1, keepdim=True)


def gini_uncertainty(rho: Tensor) -> Tensor:
    """G_t = 1 - sum_w rho_w^2 = sum_w rho_w (1 - rho_w) (Eqs. 12, 23), in [0, 1): [...]."""
    return (rho * (1 - rho)).sum(-1)


def renyi2_entropy(rho: Tensor) -> Tensor:
    """H_2 = -log sum_w rho_w^2 (Renyi-2 entropy, before Prop. A2), at most the Shannon entropy: [...]."""
    return -torch.log1p(-gini_uncertainty(rho))


def expected_second_moment(sigma: Tensor | float, rho: Tensor) -> Tensor:
    """E[delta^2] = sigma^2 G_t over eta and y ~ rho (Prop. A1, Eq. 23), to first order: [...]."""
    return sigma**2 * gini_uncertainty(rho)


def token_second_moment(sigma: Tensor | float, rho: Tensor) -> Tensor:
    """E[delta(y)^2 | y] = sigma^2 (1 - 2 rho_y + sum_w rho_w^2) for every token y (Eq. 25): as `rho`."""
    return sigma**2 * (1 - 2 * rho + rho.square().sum(-1, keepdim=True))


def entropy_upper_bounds(sigma: Tensor | float, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """(sigma^2 (1 - e^-H), sigma^2 H), upper bounds of E[delta^2] (Prop. A2, Eq. 26), tighter first."""
    return -(sigma**2) * torch.expm1(-entropy), sigma**2 * entropy


def entropy_coefficient(sigma: Tensor | float, rho: Tensor) -> Tensor:
    """a_t = sigma^2 (1 - e^-H_2) / H_t <= sigma^2, so that E[delta^2] = a_t H_t (Eqs. 1, 27): [...].

    NaN for a distribution without entropy.
    """
    return expected_second_moment(sigma, rho) / entropy_from_logits(rho.log())


def natural_scale(coefficient: Tensor | float, entropy: Tensor) -> Tensor:
    """s_t = sqrt(a_t H_t), the root mean square of delta_t (Eq. 29)."""
    return (coefficient * entropy).sqrt()


def standardized_second_moment(coefficient: Tensor | float, entropy: Tensor, eps: float = 0.01) -> Tensor:
    """E[z_t^2] = a_t H_t / (H_t + eps) (Prop. A3, Eq. 30)."""
    return coefficient * entropy / (entropy + eps)


def standardized_deviation(delta: Tensor, entropy: Tensor, eps: float = 0.01) -> Tensor:
    """z_t = delta_t / sqrt(H_t + eps) (Eqs. 3, 10, 11); eps = 0 gives Eq. 3."""
    return delta / (entropy + eps).sqrt()


@dataclass(frozen=True, eq=False)
class BinnedMoments:
    """Per entropy bin that holds tokens: mean H, mean delta^2 and number of tokens, each [bins]."""

    mean_entropy: Tensor
    second_moment: Tensor
    count: Tensor


def binned_second_moment(delta: Tensor, entropy: Tensor, edges: Tensor) -> BinnedMoments:
    """E[delta^2 | H in B] per bin [edges_b, edges_b+1), the last bin closed (left side of Eqs. 1, 28).

    Tokens outside the edges and empty bins are left out.

    Args:
        delta: log-ratios of the tokens, [tokens].
        entropy: their entropies, [tokens].
        edges: increasing bin edges, [bins + 1].

    Raises:
        ValueError: shapes differ or the edges do not increase.
    """
    if delta.ndim != 1 or delta.shape != entropy.shape:
        raise ValueError(f"delta {tuple(delta.shape)} and entropy {tuple(entropy.shape)} must be equal [tokens]")
    if edges.ndim != 1 or len(edges) < 2 or not (edges.diff() > 0).all():
        raise ValueError("edges must be at least two increasing numbers")
    delta, entropy, edges = delta.double(), entropy.double(), edges.double()
    inside = (entropy >= edges[0]) & (entropy <= edges[-1])
    delta, entropy = delta[inside], entropy[inside]
    bins = len(edges) - 1
    index = (torch.bucketize(entropy, edges, right=True) - 1).clamp(max=bins - 1)
    count = torch.bincount(index, minlength=bins)
    filled = count > 0
    entropy_sum = torch.bincount(index, weights=entropy, minlength=bins)
    moment_sum = torch.bincount(index, weights=delta.square(), minlength=bins)
    count = count[filled]
    return BinnedMoments(entropy_sum[filled] / count, moment_sum[filled] / count, count)


@dataclass(frozen=True)
class ScalingFit:
    """Slope a_B of E[delta^2] = a_B H (in 1/nats) and R^2 of the line."""

    coefficient: float
    r_squared: float


def fit_through_origin(moments: BinnedMoments) -> ScalingFit:
    """Least squares of E[delta^2 | B] = a_B mean(H)_B (Eq. 28), every bin with weight 1, no intercept.

    R^2 = 1 - (squared residuals) / (squared deviations from the mean of the bins): negative if a constant
    fits better than the line, NaN if all bins are equal.

    Raises:
        ValueError: fewer than two bins, or no bin with positive entropy.
    """
    x, y = moments.mean_entropy, moments.second_moment
    if len(x) < 2 or not x.abs().sum() > 0:
        raise ValueError(f"a fit needs two bins and positive entropies, got mean entropies {x.tolist()}")
    slope = (x * y).sum() / x.square().sum()
    spread = (y - y.mean()).square().sum()
    r_squared = 1 - (y - slope * x).square().sum() / spread if spread > 0 else spread.new_tensor(torch.nan)
    return ScalingFit(float(slope), float(r_squared))


def binary_entropy(q: Tensor) -> Tensor:
    """H_bin(q) = -q log q - (1 - q) log(1 - q) (Eqs. 5, 33), 0 at q = 0 and q = 1."""
    entropy: Tensor = -torch.special.xlogy(q, q) - torch.special.xlog1py(1 - q, -q)
    return entropy


def off_mode_second_moment(q: Tensor, lam: float, kappa: float) -> Tensor:
    """E[delta^2 | q] = lam^2 kappa (1 - q)/q for mu = q + lam xi, Var(xi) = kappa q (1 - q) (Eqs. 6, 32)."""
    return lam**2 * kappa * (1 - q) / q


def arc_envelope(u: Tensor) -> Tensor:
    """sqrt((1 - log u) / H_bin(u)), the concave arc of |delta| at low entropy, up to a factor (Eq. 34)."""
    return ((1 - u.log()) / binary_entropy(u)).sqrt()


def tail_entropy_threshold(c: Tensor) -> Tensor:
    """H_bin(1 / (1 + c)) for c >= 1: for q <= 1/2, (1 - q) / q <= c iff H_bin(q) is at least this (Eq. 40).

    Raises:
        ValueError: a c is below 1; no such threshold on H_bin exists there.
    """
    if not (c >= 1).all():
        raise ValueError(f"the tail threshold c must be at least 1, got {c.min().item():g}")
    return binary_entropy(1 / (1 + c))


def kl_second_order(behavior: Tensor, delta: Tensor) -> Tensor:
    """KL(mu || pi_theta) ~ 1/2 sum_v mu(v) delta(v)^2 (Eqs. 9, 35, 38), in nats: [...]."""
    return 0.5 * (behavior * delta.square()).sum(-1)
