"""The appendix's mathematics, checked on `estr.algorithm` itself by Monte Carlo and automatic differentiation.

Seeded, in float64, in a second or two; no run is needed, so these claims have a verdict at every scale.
"""

import math

import torch
from torch import Tensor

from estr.algorithm import (
    EntropyScaled,
    FixedMagnitude,
    TokenSignals,
    entropy_from_logits,
    entropy_upper_bounds,
    expected_second_moment,
    kl_second_order,
    objective,
    off_mode_second_moment,
    perturbed_log_ratio,
    renyi2_entropy,
    token_logprob,
)
from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import Outcome, judged

DRAWS = 50_000
VOCABULARY = 16
TEMPERATURES = (0.5, 1.0, 2.0, 4.0)  # standard deviations of random logits, from nearly uniform to nearly one-hot
ROUNDING = 1e-12


def logit_noise_second_moment(evidence: Evidence, *, largest_sigma: float, error_at_most: float) -> Outcome:
    """Prop. A1: E[delta^2] = sigma^2 (1 - sum rho^2), exact log-ratios drawn against the first-order formula."""
    generator = _generator()
    noise = _normal(generator, DRAWS, VOCABULARY)
    sigmas = [largest_sigma, largest_sigma / 2, largest_sigma / 5]
    errors = []
    for temperature in TEMPERATURES:
        logits = temperature * _normal(generator, VOCABULARY)
        rho = logits.softmax(-1)
        for sigma in sigmas:
            observed = (rho * perturbed_log_ratio(logits, sigma * noise).square()).sum(-1).mean()
            errors.append(float((observed / expected_second_moment(sigma, rho) - 1).abs()))
    return judged(
        max(errors) <= error_at_most,
        f"largest relative error {100 * max(errors):.2g} % over {len(TEMPERATURES)} distributions and sigma "
        f"{', '.join(f'{sigma:g}' for sigma in sigmas)}; {DRAWS:,} draws each",
    )


def entropy_envelope(evidence: Evidence) -> Outcome:
    """Prop. A2: 1 - exp(-H2) <= 1 - exp(-H1) <= H1, on distributions of 2 to 200 tokens."""
    generator, violations, count = _generator(), 0, 0
    for vocabulary in (2, 5, 20, 200):
        for temperature in (0.01, *TEMPERATURES, 30.0):
            logits = temperature * _normal(generator, 500, vocabulary)
            entropy = entropy_from_logits(logits)
            tighter, looser = entropy_upper_bounds(1.0, entropy)
            exact = -torch.expm1(-renyi2_entropy(logits.softmax(-1)))
            violations += int(((exact > tighter + ROUNDING) | (tighter > looser + ROUNDING)).sum())
            count += len(entropy)
    return judged(violations == 0, f"{violations} violations on {count:,} sampled distributions")


def off_mode_variance(evidence: Evidence, *, error_at_most: float) -> Outcome:
    """Eq. 32: Var(delta | q) = lambda^2 kappa (1 - q) / q, with lambda so small that delta's own scale is 0.01."""
    generator, errors, kappa, scale = _generator(), [], 1.0, 0.01
    masses = (1e-4, 1e-3, 0.01, 0.1, 0.5)
    for q in masses:
        lam = scale * math.sqrt(q / (1 - q))
        xi = math.sqrt(kappa * q * (1 - q)) * _normal(generator, DRAWS)
        delta = -torch.log1p(lam * xi / q)
        errors.append(abs(float(delta.var() / off_mode_second_moment(torch.tensor(q), lam, kappa)) - 1))
    return judged(
        max(errors) <= error_at_most,
        f"largest relative error {100 * max(errors):.2g} % over q = {', '.join(f'{q:g}' for q in masses)}; "
        f"{DRAWS:,} draws each",
    )


def strict_generalization(evidence: Evidence) -> Outcome:
    """Prop. 1 / A4: at constant entropy the two rules keep the same tokens; else ESTR is tighter below, wider above."""
    generator, differing, misplaced, cases = _generator(), 0, 0, 200
    for _ in range(cases):
        tau, scale = (float(value) for value in 0.05 + 3 * torch.rand(2, generator=generator, dtype=torch.float64))
        estr, fixed = EntropyScaled(tau=tau), FixedMagnitude(c=math.sqrt(tau * scale))
        constant = _signals(_normal(generator, 1, 500), torch.full((1, 500), scale - estr.eps, dtype=torch.float64))
        differing += int((estr.keep(constant) != fixed.keep(constant)).sum())
        entropy = 5 * torch.rand(500, generator=generator, dtype=torch.float64)
        wider = estr.boundary(entropy)[1] - fixed.boundary(entropy)[1]
        misplaced += int((wider.sign() != (entropy - (scale - estr.eps)).sign()).sum())
    return judged(
        differing == misplaced == 0,
        f"{differing} of {500 * cases:,} tokens kept by one rule only at constant entropy; {misplaced} of as many "
        "boundaries on the wrong side of the fixed one",
    )


def objective_gradient(evidence: Evidence, *, error_at_most: float) -> Outcome:
    """Eqs. 20, 48: the gradient of the objective is -1/sum|o| sum M C r A grad log pi, here with respect to logits.

    Automatic differentiation of Eq. 19 as it is written, and the gradient of `objective`, against the closed form.
    """
    generator, rule, low, high = _generator(), EntropyScaled(tau=1.0), 0.20, 0.28
    batch, length = 8, 64
    logits = _normal(generator, batch, length, VOCABULARY).requires_grad_()
    tokens = torch.randint(VOCABULARY, (batch, length), generator=generator)
    behavior_logits = logits.detach() + 0.3 * _normal(generator, batch, length, VOCABULARY)
    mask = torch.arange(length) < torch.randint(10, length + 1, (batch, 1), generator=generator)
    signals = TokenSignals(
        behavior_logprob=token_logprob(behavior_logits, tokens),
        target_logprob=token_logprob(logits, tokens),
        entropy=entropy_from_logits(behavior_logits) * torch.rand(batch, length, generator=generator).double(),
        advantage=_normal(generator, batch, length),
        response_mask=mask,
        weight_version=torch.zeros(batch, length, dtype=torch.int64),
    )
    [ours] = torch.autograd.grad(objective(signals, rule, clip_low=low, clip_high=high).loss, logits, retain_graph=True)
    keep, advantage, ratio = rule.keep(signals), signals.advantage, signals.log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    [automatic] = torch.autograd.grad(-(keep * surrogate).sum() / mask.sum(), logits)
    ratio = ratio.detach()
    clipped = ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))
    weight = (keep & ~clipped) * ratio * advantage / mask.sum()
    score = torch.nn.functional.one_hot(tokens, VOCABULARY) - logits.detach().softmax(-1)
    closed = -weight.unsqueeze(-1) * score
    error = float(max((found - closed).abs().max() for found in (automatic, ours)) / closed.abs().max())
    return judged(
        error <= error_at_most,
        f"largest difference {error:.1g} of the largest entry, on {int(mask.sum())} tokens of which "
        f"{int((mask & ~keep).sum())} are masked and {int((keep & clipped).sum())} clipped",
    )


def kl_expansion(evidence: Evidence, *, slope_within: float) -> Outcome:
    """App. C: KL(mu || pi) = 1/2 E[delta^2] up to a relative error that is linear in the perturbation of the logits."""
    generator = _generator()
    logits, direction = 2 * _normal(generator, 200, VOCABULARY), _normal(generator, 200, VOCABULARY)
    behavior = logits.softmax(-1)
    sizes = torch.tensor([0.04, 0.02, 0.01, 0.005], dtype=torch.float64)
    errors = []
    for size in sizes:
        delta = perturbed_log_ratio(logits, size * direction)
        exact = (behavior * (torch.expm1(delta) - delta)).sum(-1)
        errors.append((kl_second_order(behavior, delta) / exact - 1).abs().mean())
    slopes = torch.stack(errors).log().diff() / sizes.log().diff()
    return judged(
        bool(((slopes - 1).abs() <= slope_within).all()),
        f"relative error {100 * float(errors[0]):.2g} % at logit noise {float(sizes[0]):g}, "
        f"{100 * float(errors[-1]):.2g} % at {float(sizes[-1]):g}: it falls as the power "
        f"{', '.join(f'{float(slope):.3f}' for slope in slopes)} of the noise",
    )


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _signals(delta: Tensor, entropy: Tensor) -> TokenSignals:
    behavior = torch.full_like(delta, -1.0)
    return TokenSignals(
        behavior_logprob=behavior,
        target_logprob=behavior + delta,
        entropy=entropy,
        advantage=torch.ones_like(delta),
        response_mask=torch.ones_like(delta, dtype=torch.bool),
        weight_version=torch.zeros_like(delta, dtype=torch.int64),
    )
