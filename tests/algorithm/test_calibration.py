import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import (
    BinaryKL,
    EntropyScaled,
    ExplorationPreserving,
    FixedMagnitude,
    KeepAll,
    OutlierSuppressing,
    RatioInterval,
    SecondMoment,
    calibrate,
)

RULES = [
    EntropyScaled(),
    RatioInterval(),
    BinaryKL(),
    SecondMoment(),
    FixedMagnitude(1.0),
    ExplorationPreserving(0.5, 1.0),
    OutlierSuppressing(0.5, 1.0),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 10_000), fraction=st.floats(0, 0.999))
def test_the_wanted_number_of_tokens_is_masked_exactly(random_signals, rule, dtype, seed, fraction):
    signals = random_signals(seed, dtype=dtype)
    tokens = signals.response_tokens
    scores = rule.score(signals)[signals.response_mask]
    apart = scores.sort().values.diff().min() > 1e-6 if tokens > 1 else True
    result = calibrate(rule, [signals], fraction)
    masked = int((signals.response_mask & ~result.rule.keep(signals)).sum())
    assert result.achieved == masked / tokens
    assert result.wanted == fraction
    assert masked <= fraction * tokens + 1e-6
    if apart:
        assert masked == math.floor(fraction * tokens + 1e-9)


def test_second_moment_drops_exactly_the_largest(make_signals):
    signals = make_signals([[0.1, -0.9, 0.5, 0.3, -0.7]])
    result = calibrate(SecondMoment(), [signals], 0.4)
    assert result.rule.keep(signals).tolist() == [[True, False, True, True, False]]
    kept_mean, next_mean = (0.01 + 0.25 + 0.09) / 3, (0.01 + 0.25 + 0.09 + 0.49) / 4
    assert result.rule.budget == pytest.approx((kept_mean + next_mean) / 2)
    assert result.rule.eligible == "all"


def test_threshold_lies_between_the_last_kept_and_the_first_masked(make_signals):
    signals = make_signals([[0.1, -0.2, 0.4, 0.8]])
    result = calibrate(FixedMagnitude(5.0), [signals], 0.25)
    assert result.rule.c == pytest.approx(0.6)
    assert calibrate(FixedMagnitude(5.0), [signals], 0.5).rule.c == pytest.approx(0.3)
    assert calibrate(FixedMagnitude(5.0), [signals], 0.0).rule.c == pytest.approx(0.8, rel=1e-6)


def test_two_sided_interval_keeps_its_shape_in_log_space(make_signals):
    # scores: 0.3 / log 5 = 0.186, -0.3 / log 0.5 = 0.433, 1.2 / log 5 = 0.746, -0.6 / log 0.5 = 0.866
    signals = make_signals([[0.3, -0.3, 1.2, -0.6]])
    rule = calibrate(RatioInterval(), [signals], 0.25).rule
    assert rule.keep(signals).tolist() == [[True, True, True, False]]
    assert math.log(rule.low) / math.log(rule.high) == pytest.approx(math.log(0.5) / math.log(5.0))


def test_combined_rules_scale_both_boundaries(make_signals):
    signals = make_signals([[0.1, -0.2, 0.4, 0.8]])
    rule = calibrate(OutlierSuppressing(0.5, 1.0), [signals], 0.5).rule
    assert rule.c**2 / rule.tau == pytest.approx(0.25)
    assert rule.eps == 0.01


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_ties_are_masked_together_and_never_too_many(make_signals, rule):
    signals = make_signals([[0.1, 0.2, 0.7, 0.7, 0.7]], behavior=-3.0)
    assert calibrate(rule, [signals], 0.4).achieved == 0.0
    assert calibrate(rule, [signals], 0.6).achieved == 0.6
    assert calibrate(rule, [signals], 0.79).achieved == 0.6
    assert calibrate(rule, [signals], 0.8).achieved == 0.8


def test_scores_that_differ_by_rounding_are_ties(make_signals):
    """Not so for second_moment: its scores are means, and one of the two tokens can be told from the other."""
    signals = make_signals([[0.1, 0.3, math.nextafter(0.3, 1)]], behavior=0.0)
    for rule in RULES:
        expected = 1 / 3 if isinstance(rule, SecondMoment) else 0.0
        assert calibrate(rule, [signals], 1 / 3).achieved == expected
        assert calibrate(rule, [signals], 2 / 3).achieved == 2 / 3


def test_a_fraction_that_is_a_count_of_tokens_up_to_rounding_gives_that_count(make_signals):
    signals = make_signals(torch.linspace(0.01, 1, 100)[None])
    assert 0.29 * 100 < 29
    assert calibrate(FixedMagnitude(1.0), [signals], 0.29).achieved == 0.29


def test_a_fraction_taken_from_another_rule_is_met(random_signals):
    signals = random_signals(11, batch=32, length=64)
    masked = int((signals.response_mask & ~EntropyScaled(0.3).keep(signals)).sum())
    fraction = masked / signals.response_tokens
    for rule in RULES:
        assert calibrate(rule, [signals], fraction).achieved == fraction


def test_nonfinite_tokens_count_as_masked(make_signals):
    signals = make_signals([[0.1, math.nan, 0.3, 0.4, 0.5, 9.0]], mask=[[True] * 5 + [False]])
    result = calibrate(FixedMagnitude(1.0), [signals], 0.4)
    assert result.rule.keep(signals).tolist() == [[True, False, True, True, False, False]]
    assert result.achieved == 0.4
    with pytest.raises(ValueError, match="1 are non-finite"):
        calibrate(FixedMagnitude(1.0), [signals], 0.1)


def test_on_policy_tokens_are_never_masked_by_a_zero_threshold(make_signals):
    signals = make_signals([[0.0, 0.0, 0.0, 0.5]])
    for rule in RULES:
        assert calibrate(rule, [signals], 0.25).achieved == 0.25
        assert calibrate(rule, [signals], 0.75).achieved == 0.25


@pytest.mark.parametrize("fraction", [-0.1, 1.0, math.nan])
def test_impossible_fractions_are_rejected(random_signals, fraction):
    with pytest.raises(ValueError, match="entropy_scaled: masked_fraction must be in"):
        calibrate(EntropyScaled(), [random_signals()], fraction)


def test_rules_and_batches_that_cannot_be_calibrated(make_signals, random_signals):
    with pytest.raises(ValueError, match="keep_all has no threshold"):
        calibrate(KeepAll(), [random_signals()], 0.1)
    on_policy = make_signals([[0.0, 0.0]])
    for batch in (on_policy, replace(on_policy, response_mask=torch.zeros(1, 2, dtype=torch.bool))):
        with pytest.raises(ValueError, match="no finite response token of these batches is off-policy"):
            calibrate(EntropyScaled(), [batch], 0.1)
    with pytest.raises(ValueError, match="ratio_interval: no valid threshold"):
        calibrate(RatioInterval(), [make_signals([[4000.0, 5000.0]])], 0.5)


def test_several_updates_share_one_threshold_and_each_masks_by_itself(random_signals):
    batches = [random_signals(seed, batch=8, length=40) for seed in range(12)]
    tokens = sum(batch.response_tokens for batch in batches)
    for rule in RULES:
        found = calibrate(rule, batches, 0.03)
        masked = [int((batch.response_mask & ~found.rule.keep(batch)).sum()) for batch in batches]
        assert sum(masked) == math.floor(0.03 * tokens) == round(found.achieved * tokens)
        assert len(set(masked)) > 1
    with pytest.raises(ValueError, match="off-policy"):
        calibrate(FixedMagnitude(1.0), [], 0.1)
