import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm import Collapse, detect_collapse

rewards = st.lists(st.floats(0, 1), min_size=1, max_size=40)
windows = st.integers(1, 12)


def test_run_that_falls_and_stays_down():
    reward = [0.4, 0.8, 0.8, 0.6, 0.2, 0.2, 0.3]  # means of two: .6 .8 .7 .4 .2 .25
    collapse = detect_collapse(reward, window=2)
    assert collapse is not None
    assert collapse.step == 6  # the mean of steps 5 and 6 is the first below 0.4, that of 4 and 5 equals it
    assert collapse.highest == pytest.approx(0.8)
    assert collapse.last == pytest.approx(0.25)


def test_run_that_falls_at_once_is_measured_against_its_first_reward():
    assert detect_collapse([0.5, 0.1, 0.1, 0.1, 0.1], window=2) == Collapse(step=3, highest=0.5, last=0.1)
    assert detect_collapse([0.8, 0.0, 0.0, 0.0, 0.0], window=4) == Collapse(step=4, highest=0.8, last=0.0)


def test_recovered_dip_is_no_collapse():
    assert detect_collapse([0.8] * 10 + [0.0] * 20 + [0.5] * 10) is None


def test_step_is_that_of_the_last_fall():
    fall, dip = [0.1] * 5, [0.1] * 5
    collapse = detect_collapse([0.8] * 5 + dip + [0.8] * 5 + fall, window=1)
    assert collapse is not None and collapse.step == 16


def test_share_is_exclusive():
    assert detect_collapse([1.0, 0.5], window=1, share=0.5) is None
    assert detect_collapse([1.0, 0.49], window=1, share=0.5) is not None


def test_run_shorter_than_the_window_has_one_mean():
    assert detect_collapse([0.9, 0.1, 0.1], window=10) == Collapse(step=3, highest=0.9, last=pytest.approx(1.1 / 3))
    assert detect_collapse([0.5, 0.4, 0.3], window=10) is None


@pytest.mark.parametrize("reward", [[], [0.5, math.nan], [0.5, -0.1], [math.inf]])
def test_reward_without_meaning_is_refused(reward):
    with pytest.raises(ValueError, match="rewards >= 0"):
        detect_collapse(reward)


@pytest.mark.parametrize("options", [{"window": 0}, {"share": 0.0}, {"share": 1.1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="window must be"):
        detect_collapse([0.5], **options)


@given(rewards, windows, st.sampled_from([0.25, 0.5, 1.0]), st.integers(-8, 8))
def test_scale_does_not_matter(reward, window, share, exponent):
    scale = 2.0**exponent  # exact in floating point, if no reward is denormal
    reward = [value if value > 1e-100 else 0.0 for value in reward]
    plain, scaled = (detect_collapse([factor * r for r in reward], window, share) for factor in (1.0, scale))
    assert (plain is None) == (scaled is None)
    if plain is not None and scaled is not None:
        assert scaled == Collapse(plain.step, scale * plain.highest, scale * plain.last)


@given(rewards, windows, st.floats(0.01, 1))
def test_reward_that_never_falls_never_collapses(reward, window, share):
    assert detect_collapse(sorted(reward), window, share) is None


@given(rewards, windows)
def test_recovery_to_the_highest_undoes_any_collapse(reward, window):
    assert detect_collapse([*reward, *[max(reward)] * window], window) is None


@given(rewards, windows)
def test_step_begins_the_stretch_that_stays_below(reward, window):
    collapse = detect_collapse(reward, window)
    if collapse is None:
        return
    width = min(window, len(reward))
    assert width <= collapse.step <= len(reward)
    bound = 0.5 * collapse.highest
    mean_until = {end: math.fsum(reward[end - width : end]) / width for end in range(width, len(reward) + 1)}
    assert all(mean_until[step] < bound for step in range(collapse.step, len(reward) + 1))
    assert collapse.step == width or mean_until[collapse.step - 1] >= bound
