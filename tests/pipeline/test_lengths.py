import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estr.errors import UserError
from estr.pipeline.lengths import LognormalLengths, MeasuredLengths


@settings(max_examples=20, deadline=None)
@given(mean=st.floats(20, 300), skew=st.floats(0.05, 1.2))
def test_lengths_have_the_mean_and_skew_that_were_asked_for_after_the_cut(mean: float, skew: float) -> None:
    tokens = LognormalLengths(mean, skew, limit=1000).draw(np.random.default_rng(0), 100_000)
    assert tokens.min() >= 1 and tokens.max() <= 1000
    assert tokens.mean() == pytest.approx(mean, rel=0.03)
    assert tokens.std() / tokens.mean() == pytest.approx(skew, rel=0.06, abs=0.01)


def test_without_a_limit_the_lognormal_is_the_textbook_one() -> None:
    """sigma^2 = log(1 + skew^2), and a mean of exp(location + sigma^2 / 2)."""
    tokens = LognormalLengths(500.0, 0.8).draw(np.random.default_rng(1), 200_000)
    logs = np.log(tokens)
    assert logs.std() == pytest.approx(np.sqrt(np.log(1.64)), rel=0.02)
    assert tokens.mean() == pytest.approx(500, rel=0.02)


def test_no_skew_is_one_length() -> None:
    assert set(LognormalLengths(17.0, 0.0, 40).draw(np.random.default_rng(0), 50).tolist()) == {17}


@pytest.mark.parametrize(
    ("mean", "skew", "limit", "said"),
    [
        (50.0, 1.0, 50, "limit of 50"),
        (50.0, -1.0, None, "skew"),
        (0.5, 1.0, None, "mean"),
        (100.0, 5.0, 400, "largest"),
    ],
)
def test_impossible_lengths_are_refused(mean: float, skew: float, limit: int | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        LognormalLengths(mean, skew, limit)


def test_measured_lengths_are_drawn_from_what_was_measured() -> None:
    lengths = MeasuredLengths(np.array([2, 4, 4, 6]))
    assert (lengths.mean, lengths.skew) == (4.0, pytest.approx(np.sqrt(2) / 4))
    drawn = lengths.draw(np.random.default_rng(0), 4000)
    assert set(drawn.tolist()) == {2, 4, 6} and (drawn == 4).mean() == pytest.approx(0.5, abs=0.05)
