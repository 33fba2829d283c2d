"""The family of models that gives the paper's two step times, and the choice of a split."""

from dataclasses import replace

import pytest

from estr.errors import UserError
from estr.pipeline.calibration import calibrate_to_paper
from estr.pipeline.lengths import LognormalLengths
from estr.pipeline.model import simulate_colocated, simulate_disaggregated
from estr.pipeline.plan import Choice, recommend, simulate_sync, splits, try_split, warmup_updates
from estr.pipeline.settings import Costs, Pipeline

SYNC, ESTR, TOKENS = 1356.47, 514.84, 1.779e6


@pytest.mark.parametrize(("skew", "slot_growth"), [(1.0, 0.0), (0.7, 0.5)])
def test_members_of_the_family_give_the_papers_times(skew: float, slot_growth: float) -> None:
    pipeline = calibrate_to_paper(SYNC, ESTR, TOKENS, skew=skew, slot_growth=slot_growth)
    assert pipeline.lengths.mean == pytest.approx(TOKENS / 1024)
    assert simulate_colocated(pipeline, 30, seed=1).seconds_per_update == pytest.approx(SYNC, rel=0.05)
    outcome = simulate_disaggregated(pipeline, 12, warmup=3, seed=1)
    assert outcome.seconds_per_update == pytest.approx(ESTR, rel=0.05)
    assert outcome.trainer_idle < 0.03
    # a full replica is so much slower
    full = pipeline.costs.token_seconds + pipeline.slots * pipeline.costs.slot_seconds
    assert full == pytest.approx(pipeline.costs.token_seconds * (1 + slot_growth))


@pytest.mark.parametrize(("skew", "slot_growth"), [(0.4, 0.0), (1.0, 1.0)])
def test_what_cannot_explain_the_papers_times_is_refused(skew: float, slot_growth: float) -> None:
    """With little skew, or replicas that slow down much, 8 of 16 GPUs cannot be 2.6 times as fast."""
    with pytest.raises(UserError, match="cannot explain the paper's times"):
        calibrate_to_paper(SYNC, ESTR, TOKENS, skew=skew, slot_growth=slot_growth)


SMALL = Pipeline(
    prompts=8,
    group=2,
    lengths=LognormalLengths(20.0, 0.0),
    costs=Costs(token_seconds=0.1, train_token_seconds=0.02),
    devices=8,
    rollout_devices=1,
    slots=4,
    threshold=1,
)


def test_the_split_at_which_both_pools_take_equally_long_is_recommended() -> None:
    """16 responses of 20 tokens: 4 waves of 2 s on one replica, 6.4 device-seconds to train, on 8 devices.

    Four replicas generate an update in 2 s and four devices train it in 1.6 s; with three replicas a last wave takes
    another 2 s, with more replicas fewer devices are left to train.
    """
    sync = simulate_sync(SMALL, updates=10)
    assert sync.seconds_per_update == pytest.approx(2 + 6.4 / 8)
    choices = [try_split(SMALL, sync, devices, updates=10) for devices in splits(8, 1)]
    best = recommend(choices)
    assert best.pipeline.rollout_devices == 4
    assert best.outcome.seconds_per_update == pytest.approx(2)
    assert best.speedup == pytest.approx(1.4)


def test_of_equally_fast_splits_the_least_stale_is_recommended() -> None:
    """When a slow trainer decides, more rollouts only make responses older."""
    slow = replace(SMALL, costs=replace(SMALL.costs, train_seconds=50.0, train_token_seconds=0.0))
    sync = simulate_sync(slow, updates=5)
    choices = [try_split(slow, sync, devices, updates=5) for devices in (1, 2, 4)]
    times = [choice.outcome.seconds_per_update for choice in choices]
    assert times == pytest.approx([times[0]] * 3)
    best = recommend(choices)
    assert best.staleness == min(choice.staleness for choice in choices)
    assert isinstance(best, Choice) and best.speedup > 1


def test_splits_are_whole_replicas_and_leave_a_trainer() -> None:
    assert splits(8, 2) == [2, 4, 6]
    assert splits(3, 2) == [2]
    many = splits(512, 4)
    assert len(many) == 15 and (many[0], many[-1]) == (4, 508) and not any(devices % 4 for devices in many)


def test_the_warm_up_covers_the_groups_that_may_wait_but_ends() -> None:
    assert warmup_updates(replace(SMALL, threshold=4, interval=3)) == 35
    assert warmup_updates(replace(SMALL, threshold=float("inf"))) == 120
