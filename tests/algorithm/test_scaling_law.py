"""Closed forms of appendices A to D by hand, and the propositions against Monte-Carlo samples.

A Monte-Carlo mean must lie within 4 standard errors plus the stated order of the neglected term.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import (
    BinnedMoments,
    arc_envelope,
    binary_entropy,
    binned_second_moment,
    entropy_coefficient,
    entropy_from_logits,
    entropy_upper_bounds,
    expected_second_moment,
    first_order_log_ratio,
    fit_through_origin,
    gini_uncertainty,
    k3,
    kl_second_order,
    natural_scale,
    off_mode_second_moment,
    perturbed_log_ratio,
    renyi2_entropy,
    standardized_deviation,
    standardized_second_moment,
    tail_entropy_threshold,
    token_second_moment,
)

SIGMA = 0.03
SAMPLES = 100_000


def distribution(vocabulary=12, temperature=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocabulary, generator=generator, dtype=torch.float64) / temperature
    return logits, logits.softmax(-1)


def perturbation(vocabulary, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return SIGMA * torch.randn(SAMPLES, vocabulary, generator=generator, dtype=torch.float64)


def sampled(rho, values, seed=2):
    """values[i, y_i] with y_i ~ rho."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(rho, len(values), replacement=True, generator=generator)
    return values.gather(1, tokens[:, None]).squeeze(1)


def assert_mean(samples, expected, relative):
    """The mean is `expected` up to 4 standard errors and a relative error of the neglected order."""
    error = 4 * samples.std().item() / math.sqrt(len(samples)) + relative * abs(expected)
    assert abs(samples.mean().item() - expected) < error
    assert error < 0.1 * abs(expected)  # sharp enough to tell a wrong formula


def test_closed_forms_by_hand():
    rho = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25] * 4], dtype=torch.float64)
    assert gini_uncertainty(rho).tolist() == pytest.approx([0.625, 0.0, 0.75])
    assert renyi2_entropy(rho).tolist() == pytest.approx([-math.log(0.375), 0.0, math.log(4)])
    assert expected_second_moment(2.0, rho).tolist() == pytest.approx([2.5, 0.0, 3.0])
    assert token_second_moment(2.0, rho)[0].tolist() == pytest.approx([1.5, 3.5, 3.5, 5.5])
    shannon = 1.5 * math.log(2)
    assert entropy_coefficient(2.0, rho)[0].item() == pytest.approx(2.5 / shannon)
    assert entropy_coefficient(2.0, rho)[1].isnan()
    tight, loose = entropy_upper_bounds(2.0, torch.tensor([shannon], dtype=torch.float64))
    assert tight.item() == pytest.approx(4 * (1 - math.exp(-shannon)))
    assert loose.item() == pytest.approx(4 * shannon)


def test_standardized_forms_by_hand():
    entropy = torch.tensor([0.0, 0.24, 2.0], dtype=torch.float64)
    delta = torch.tensor([0.1, -0.5, 1.0], dtype=torch.float64)
    assert standardized_deviation(delta, entropy).tolist() == pytest.approx([1.0, -1.0, 1 / math.sqrt(2.01)])
    assert standardized_deviation(delta[1:], entropy[1:], eps=0).tolist() == pytest.approx(
        [-0.5 / math.sqrt(0.24), 1 / math.sqrt(2)]
    )
    assert natural_scale(0.5, entropy).tolist() == pytest.approx([0.0, math.sqrt(0.12), 1.0])
    assert standardized_second_moment(0.5, entropy).tolist() == pytest.approx([0.0, 0.48, 1 / 2.01])


def test_proposition_a1_in_the_mean_and_per_token():
    """Eqs. 22-25: exact log-ratios under logit noise; first order, so the relative error is O(sigma)."""
    logits, rho = distribution()
    delta = perturbed_log_ratio(logits, perturbation(len(rho)))
    assert_mean(sampled(rho, delta.square()), expected_second_moment(SIGMA, rho).item(), SIGMA)
    for token in range(len(rho)):
        assert_mean(delta[:, token].square(), token_second_moment(SIGMA, rho)[token].item(), SIGMA)
    mean = sampled(rho, delta)
    assert abs(mean.mean().item()) < 4 * mean.std().item() / math.sqrt(SAMPLES) + SIGMA**2


def test_first_order_expansion_leaves_a_second_order_rest():
    """Eq. 24: halving the perturbation quarters the error."""
    logits, rho = distribution()
    eta = perturbation(len(rho))[:2000]

    def rest(scale):
        return (perturbed_log_ratio(logits, scale * eta) - first_order_log_ratio(scale * eta, rho)).abs().max()

    assert rest(1.0) < 2 * SIGMA**2 * 9
    assert rest(1.0) / rest(0.5) == pytest.approx(4, rel=0.1)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=30), st.floats(0.01, 2))
def test_proposition_a2_the_entropy_bounds_the_scale(logits, sigma):
    """Eq. 26, and a_t <= sigma^2 (Eq. 27)."""
    logits = torch.tensor(logits, dtype=torch.float64)
    rho = logits.softmax(-1)
    entropy = entropy_from_logits(logits)
    slack = 1 + 1e-9
    moment = expected_second_moment(sigma, rho)
    tight, loose = entropy_upper_bounds(sigma, entropy)
    assert renyi2_entropy(rho) <= entropy * slack
    assert moment <= tight * slack
    assert tight <= loose * slack
    assert entropy_coefficient(sigma, rho) <= sigma**2 * slack
    assert moment.item() == pytest.approx(sigma**2 * (1 - math.exp(-renyi2_entropy(rho).item())), rel=1e-6)
    assert (entropy_coefficient(sigma, rho) * entropy).item() == pytest.approx(moment.item(), rel=1e-9)


def test_proposition_a2_against_samples():
    for temperature in (0.3, 1.0, 3.0):
        logits, rho = distribution(temperature=temperature)
        samples = sampled(rho, perturbed_log_ratio(logits, perturbation(len(rho))).square())
        tight, loose = entropy_upper_bounds(SIGMA, entropy_from_logits(logits))
        margin = 4 * samples.std().item() / math.sqrt(SAMPLES)
        assert samples.mean().item() < tight.item() * (1 + SIGMA) + margin
        assert tight < loose


def test_proposition_a3_normalization_removes_the_entropy():
    """Eqs. 29-30 at low, middle and high entropy: s_t^2 = a H and E[z^2] = a H / (H + eps)."""
    for temperature in (0.3, 1.0, 3.0):
        logits, rho = distribution(temperature=temperature)
        entropy = entropy_from_logits(logits)
        coefficient = entropy_coefficient(SIGMA, rho)
        delta = sampled(rho, perturbed_log_ratio(logits, perturbation(len(rho))))
        z = standardized_deviation(delta, entropy)
        assert_mean(z.square(), standardized_second_moment(coefficient, entropy).item(), SIGMA)
        assert_mean(delta.square(), natural_scale(coefficient, entropy).square().item(), SIGMA)


@pytest.mark.parametrize("q", [0.3, 0.05, 0.005])
def test_equation_32_amplified_off_mode_noise(q):
    """mu = q + lam xi with Var(xi) = kappa q (1 - q): the exact log-ratio, relative error O(lam |xi| / q)."""
    kappa, lam = 0.5, 0.02 * math.sqrt(q)
    generator = torch.Generator().manual_seed(0)
    xi = math.sqrt(kappa * q * (1 - q)) * torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
    delta = -torch.log1p(lam * xi / q)
    expected = off_mode_second_moment(torch.tensor(q, dtype=torch.float64), lam, kappa).item()
    assert expected == pytest.approx(lam**2 * kappa * (1 - q) / q)
    assert_mean(delta.square(), expected, 0.02)
    assert abs(delta.mean().item()) < 4 * delta.std().item() / math.sqrt(SAMPLES) + expected


def test_binary_entropy_by_hand():
    q = torch.tensor([0.0, 0.1, 0.5, 1.0, 1e-12], dtype=torch.float64)
    tenth = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    expected = [0.0, tenth, math.log(2), 0.0, 1e-12 * (1 + math.log(1e12))]
    assert binary_entropy(q).tolist() == pytest.approx(expected, rel=1e-9)
    logits = torch.tensor([0.1, 0.9], dtype=torch.float64).log()
    assert binary_entropy(q)[1].item() == pytest.approx(entropy_from_logits(logits).item())


def test_arc_envelope_is_the_off_mode_scale_at_small_mass():
    """Eq. 34: sqrt((1 - log u) / H_bin(u)) -> u^-1/2 as u -> 0, while H_bin(u) -> 0 (Eqs. 5, 6)."""
    u = torch.logspace(-1, -9, 9, dtype=torch.float64)
    ratio = arc_envelope(u) * u.sqrt()
    scale = off_mode_second_moment(u, 1.0, 1.0).sqrt()
    assert ratio[-1].item() == pytest.approx(1, abs=1e-6)
    assert (arc_envelope(u) / scale)[-1].item() == pytest.approx(1, abs=1e-6)
    assert (arc_envelope(u).diff() > 0).all()
    assert (binary_entropy(u).diff() < 0).all()
    assert arc_envelope(u)[0].item() == pytest.approx(math.sqrt((1 + math.log(10)) / 0.3250829734), rel=1e-9)


@given(st.floats(1e-6, 0.5), st.floats(1.0, 1e5))
def test_equation_40_entropy_threshold_equals_tail_threshold(q, c):
    if abs((1 - q) / q - c) < 1e-6 * c:
        return
    q, c = torch.tensor(q, dtype=torch.float64), torch.tensor(c, dtype=torch.float64)
    assert ((1 - q) / q <= c) == (binary_entropy(q) >= tail_entropy_threshold(c))


def test_equation_40_has_no_entropy_threshold_below_c_of_1():
    with pytest.raises(ValueError, match=r"at least 1, got 0\.5"):
        tail_entropy_threshold(torch.tensor([2.0, 0.5]))


def test_kl_is_the_mean_of_k3_and_half_the_second_moment():
    """Eq. 37 exactly, Eq. 38 up to O(delta^3)."""
    logits, rho = distribution()
    eta = perturbation(len(rho))[:200]
    delta = perturbed_log_ratio(logits, eta)
    exact = (rho * -delta).sum(-1)
    torch.testing.assert_close((rho * k3(delta)).sum(-1), exact, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(kl_second_order(rho, delta), exact, rtol=0.1, atol=0)
    near = perturbed_log_ratio(logits, eta / 1000)
    torch.testing.assert_close(kl_second_order(rho, near), (rho * k3(near)).sum(-1), rtol=1e-3, atol=1e-16)


def test_bins_by_hand():
    entropy = torch.tensor([0.1, 0.5, 0.9, 1.0, 2.0, 3.0, -0.1, 3.1])
    delta = torch.tensor([1.0, 3.0, -1.0, 2.0, 4.0, -2.0, 9.0, 9.0])
    moments = binned_second_moment(delta, entropy, torch.tensor([0.0, 0.5, 1.0, 1.5, 3.0]))
    assert moments.count.tolist() == [1, 2, 1, 2]
    assert moments.second_moment.tolist() == pytest.approx([1.0, 5.0, 4.0, 10.0])
    assert moments.mean_entropy.tolist() == pytest.approx([0.1, 0.7, 1.0, 2.5])
    sparse = binned_second_moment(delta[:1], entropy[:1], torch.tensor([0.0, 0.05, 0.2, 1.0]))
    assert sparse.count.tolist() == [1]


@pytest.mark.parametrize("edges", [[1.0], [1.0, 1.0], [1.0, 0.0]])
def test_bin_edges_must_increase(edges):
    with pytest.raises(ValueError, match="edges must be"):
        binned_second_moment(torch.zeros(2), torch.zeros(2), torch.tensor(edges))
    with pytest.raises(ValueError, match=r"must be equal \[tokens\]"):
        binned_second_moment(torch.zeros(2), torch.zeros(3), torch.tensor([0.0, 1.0]))


def moments(x, y):
    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    return BinnedMoments(x, y, torch.ones(len(x), dtype=torch.int64))


def test_fit_through_origin_by_hand():
    line = fit_through_origin(moments([1.0, 2.0, 3.0], [0.5, 1.0, 1.5]))
    assert (line.coefficient, line.r_squared) == (pytest.approx(0.5), pytest.approx(1.0))
    # slope (1 + 6) / (1 + 4) = 1.4, residuals -0.4 and 0.2, spread 2
    bent = fit_through_origin(moments([1.0, 2.0], [1.0, 3.0]))
    assert (bent.coefficient, bent.r_squared) == (pytest.approx(1.4), pytest.approx(1 - 0.2 / 2))
    assert fit_through_origin(moments([1.0, 2.0], [3.0, 1.0])).r_squared < 0
    assert math.isnan(fit_through_origin(moments([1.0, 2.0], [1.0, 1.0])).r_squared)
    for x in ([1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="a fit needs two bins"):
            fit_through_origin(moments(x, [1.0] * len(x)))


def test_fit_recovers_the_law_it_was_drawn_from():
    """Eq. 28: delta ~ N(0, a H) in twenty bins; the slope within 4 standard errors of sqrt(2 / n) per bin."""
    generator = torch.Generator().manual_seed(0)
    entropy = 3 * torch.rand(SAMPLES, generator=generator, dtype=torch.float64)
    noise = torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
    binned = binned_second_moment(natural_scale(0.07, entropy) * noise, entropy, torch.linspace(0, 3, 21))
    fit = fit_through_origin(binned)
    assert fit.coefficient == pytest.approx(0.07, rel=4 * math.sqrt(2 / SAMPLES) * 2)
    assert fit.r_squared > 0.99
    assert binned.count.sum() == SAMPLES
