import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.embedded.schedule import itinerary, oldest_needed


@given(
    target=st.integers(0, 60),
    intra=st.integers(0, 12),
    inter=st.integers(0, 20),
    spare=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_staleness_is_exact_once_the_past_exists(target: int, intra: int, inter: int, spare: int, seed: int) -> None:
    length = intra + 1 + spare
    plan = itinerary(target, intra, inter, length, random.Random(seed))
    first, last = plan.versions[0], plan.versions[-1]
    assert plan.versions == tuple(range(first, last + 1))
    assert len(plan.switch_at) == last - first
    assert list(plan.switch_at) == sorted(set(plan.switch_at))
    assert all(1 <= position < length for position in plan.switch_at)
    assert first >= oldest_needed(target, intra, inter)
    if target >= intra + inter:
        assert (last - first, target - last) == (intra, inter)
    else:
        assert last - first <= intra and target - last <= inter


def test_versions_that_a_later_update_needs_are_kept() -> None:
    needed = {itinerary(t, 3, 2, 9, random.Random(t)).versions[0] for t in range(20, 40)}
    assert min(needed) == oldest_needed(20, 3, 2) == 15


def test_too_short_a_response_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot span 9"):
        itinerary(50, 9, 0, 9, random.Random(0))
