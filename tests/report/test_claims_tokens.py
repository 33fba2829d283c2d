"""The entropy-ratio claims on made-up tokens: of a language model and of policies, as claimed and otherwise."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from claims_data import judge
from samples_folder import write_sample
from synthetic import ResultsFolder

from estr.algorithm import EntropyScaled
from estr.report.claims.evidence import Evidence
from estr.report.tokens import TokenSource

SEQUENCES, LENGTH, SWITCH = 150, 40, 20
Law = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""delta of entropy and standard normal noise."""


def diffusion(entropy: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """delta of the second moment 0.04 H."""
    return 0.2 * np.sqrt(entropy) * noise


def even(entropy: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """delta of one second moment at every entropy."""
    return 0.1 * noise


def shrinking(entropy: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return 0.1 / (1 + entropy) * noise


def shifted(entropy: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """delta that is not symmetric about zero."""
    return diffusion(entropy, noise) + 0.1


def tokens(law: Law, spike: float = 4, off_mode: float = 1, seed: int = 0) -> pd.DataFrame:
    """Entropies spread over 0 to 3 with a share near 0; at the switch they are `spike` times as large.

    Noise comes in pairs of opposite sign at one entropy, so that it is symmetric in every bin. off_mode: |delta| of the
    one improbable token at low entropy, in standard deviations of `diffusion`.
    """
    rng = np.random.default_rng(seed)
    pairs = SEQUENCES * LENGTH // 2
    place = np.tile(np.arange(LENGTH), SEQUENCES)
    entropy = np.repeat(np.where(rng.random(pairs) < 0.3, 0.04, 1) * rng.uniform(0.01, 3, pairs), 2)
    entropy = entropy * np.where(place == SWITCH, spike, 1)
    delta = law(entropy, np.outer(rng.standard_normal(pairs), [1, -1]).ravel())
    improbable = np.arange(len(place)) == np.flatnonzero(entropy < 0.05)[0]
    return pd.DataFrame(
        {
            "entropy": entropy,
            "log_ratio": np.where(improbable, off_mode * 0.2 * np.sqrt(entropy), delta),
            "behavior_logprob": np.where(improbable, np.log(0.01), -0.01),
            "switch_offset": place - SWITCH,
            "turn": 0,
            "place": 0,
            "cluster": np.repeat(np.arange(SEQUENCES), LENGTH),
            "settled": True,
            "run": "run",
        }
    )


def evidence(model: list[pd.DataFrame], policy: list[pd.DataFrame]) -> Evidence:
    """What only the token checks ask for."""
    model_sources, policies = (
        [TokenSource(f"{key} {i}", f"{key} {i}", "", EntropyScaled(), frame) for i, frame in enumerate(frames)]
        for key, frames in (("model", model), ("policy", policy))
    )
    fake = SimpleNamespace(model_tokens=lambda scenario: model_sources, policy_tokens=lambda: policies)
    return fake  # type: ignore[return-value]


AS_CLAIMED = tokens(diffusion)
CASES = {
    "C01": (AS_CLAIMED, tokens(shrinking)),
    "C02": (AS_CLAIMED, tokens(shrinking)),
    "C05": (AS_CLAIMED, tokens(even)),
    "C06": (AS_CLAIMED, tokens(diffusion, spike=1)),
    "C08": (tokens(diffusion, off_mode=200), AS_CLAIMED),
    "C10": (AS_CLAIMED, tokens(shifted)),
}
"""Tokens as claimed, and otherwise."""


@pytest.mark.parametrize("name", CASES)
def test_a_claim_must_hold_on_every_source(name: str) -> None:
    good, bad = CASES[name]
    held = judge(name, evidence([good], [good, good]))
    assert held.verdict == "held", held.statistic
    assert held.statistic.count("(held)") == 3
    for model, policy in (([bad], [good]), ([good], [good, bad])):
        failed = judge(name, evidence(model, policy))
        assert failed.verdict == "not held" and failed.statistic.count("(not held)") == 1


@pytest.mark.parametrize("name", CASES)
def test_without_a_source_a_claim_can_fail_but_not_hold(name: str) -> None:
    good, bad = CASES[name]
    no_model = judge(name, evidence([], [good]))
    assert no_model.verdict == "no data" and "a language model" in no_model.statistic
    assert judge(name, evidence([good], [])).verdict == "no data"
    assert judge(name, evidence([], [bad])).verdict == "not held"


@pytest.mark.parametrize(
    ("entropy", "deviation", "verdict"),
    [
        (4, 1, "held"),  # delta^2 rises with the entropy fourfold, z^2 not at all
        (4, 2, "held"),  # delta^2 sixteenfold, z^2 fourfold: +3 against +15
        (1, 2, "not held"),  # both fourfold; |z| twofold, which is less than half of that
    ],
)
def test_standardized_deviation_at_a_switch(entropy: float, deviation: float, verdict: str) -> None:
    frame = tokens(diffusion, spike=entropy)
    at = frame["switch_offset"] == 0
    frame = frame.assign(log_ratio=frame["log_ratio"] * np.where(at, deviation, 1))
    outcome = judge("C07", evidence([frame], [frame]))
    assert outcome.verdict == verdict and outcome.statistic.count(f"({verdict})") == 2


def test_too_few_tokens_are_no_data() -> None:
    few = AS_CLAIMED.head(20)
    for name in ("C01", "C02", "C05", "C10"):
        assert judge(name, evidence([few], [few])).verdict == "no data"
    nowhere = AS_CLAIMED.assign(switch_offset=10_000, entropy=1.0)
    for name in ("C06", "C07", "C08"):
        assert judge(name, evidence([nowhere], [nowhere])).verdict == "no data"


def test_tokens_are_read_from_samples_and_from_estr_runs(folder: ResultsFolder, tmp_path: Path) -> None:
    sample = write_sample(tmp_path / "smollm2")
    for label in ("estr", "async", "estr__tau=0.7"):
        folder.write(label, 0)
    results = Evidence([*folder.run_dirs, sample], [])
    outcome = judge("C02", results)
    assert "SmolLM2-135M, stale: R^2" in outcome.statistic and "1 seed" in outcome.statistic
    assert "DAPO-Math (AIME), laptop policy: R^2" in outcome.statistic
    assert results.take_used() == "dapo_math/estr/seed0 samples/smollm2_stale"
    assert "SmolLM2-135M, switch" in judge("C06", results).statistic
