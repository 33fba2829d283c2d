"""The checks of the appendix's mathematics: they hold of our functions and fail for wrong ones."""

import pytest
import torch
from claims_data import judge

from estr.algorithm import EntropyScaled, ObjectiveOutput, objective
from estr.report.claims import theory
from estr.report.claims.evidence import Evidence

NOTHING = Evidence([], [])


@pytest.mark.parametrize("name", ["C03", "C04", "C09", "C11", "C12", "C13"])
def test_the_theory_holds_without_any_run(name: str) -> None:
    outcome = judge(name, NOTHING)
    assert outcome.verdict == "held", outcome.statistic
    assert outcome == judge(name, NOTHING)  # seeded


def test_another_law_of_the_second_moment_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "expected_second_moment", lambda sigma, rho: sigma**2 * rho.amax(-1))
    assert judge("C03", NOTHING).verdict == "not held"


def test_a_lower_bound_in_place_of_the_envelope_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "entropy_upper_bounds", lambda sigma, entropy: (entropy / 9, entropy))
    assert judge("C04", NOTHING).verdict == "not held"


def test_another_law_of_the_off_mode_variance_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "off_mode_second_moment", lambda q, lam, kappa: lam**2 * kappa / q)
    assert judge("C09", NOTHING).verdict == "not held"  # at q = 0.5 it is twice the variance


def test_another_boundary_is_no_generalization(monkeypatch: pytest.MonkeyPatch) -> None:
    class Linear(EntropyScaled):
        def score(self, signals):
            return super().score(signals) / self.scale(signals.entropy)

    monkeypatch.setattr(theory, "EntropyScaled", Linear)
    assert judge("C11", NOTHING).verdict == "not held"


def test_a_gradient_through_masked_tokens_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_mask(signals, rule, **clip) -> ObjectiveOutput:
        return objective(signals, rule, keep=torch.ones_like(signals.response_mask), **clip)

    monkeypatch.setattr(theory, "objective", without_mask)
    assert judge("C12", NOTHING).verdict == "not held"


def test_an_expansion_to_the_wrong_order_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "kl_second_order", lambda mu, delta: 0.45 * (mu * delta.square()).sum(-1))
    assert judge("C13", NOTHING).verdict == "not held"  # its relative error does not fall at all
