"""The model against closed forms in its limits, and what must hold whatever the settings."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estr.errors import UserError
from estr.pipeline.lengths import LognormalLengths, MeasuredLengths
from estr.pipeline.model import histogram, simulate_colocated, simulate_disaggregated
from estr.pipeline.settings import Costs, Pipeline

EQUAL = Pipeline(
    prompts=4,
    group=2,
    lengths=LognormalLengths(10.0, 0.0),
    costs=Costs(token_seconds=0.1, slot_seconds=0.05, train_seconds=1.0, train_token_seconds=0.02),
    devices=2,
    rollout_devices=1,
    slots=8,
)
"""Eight responses of 10 tokens: 10 * (0.1 + 8 * 0.05) = 5 s to generate at once, 1 + 80 * 0.02 = 2.6 s to train."""


def test_colocated_generates_and_trains_in_turn_on_all_devices() -> None:
    """Two replicas of four responses: 10 * (0.1 + 4 * 0.05) = 3 s; two devices train: 1 + 80 * 0.02 / 2 = 1.8 s."""
    outcome = simulate_colocated(EQUAL, updates=3, warmup=1)
    assert outcome.step_seconds == pytest.approx([4.8] * 3)
    assert outcome.tokens_per_second_per_device == pytest.approx(80 / 4.8 / 2)
    assert (outcome.trainer_idle, outcome.rollout_idle) == pytest.approx((0, 0))
    assert outcome.slots_used == pytest.approx(0.5)
    assert outcome.generate_seconds == pytest.approx(3)
    assert histogram(outcome.intra) == histogram(outcome.inter) == {0: 24}


def test_colocated_idle_is_the_time_of_the_replica_that_finished_first() -> None:
    """Responses of 10 and 30 tokens on a replica each, nothing to train: 20 of 2 * 30 token times are not used."""
    lengths = MeasuredLengths(np.array([10, 30]))
    pipeline = replace(EQUAL, prompts=1, group=2, slots=1, lengths=lengths, costs=Costs(token_seconds=0.1))
    for seed in range(20):
        outcome = simulate_colocated(pipeline, updates=1, seed=seed)
        if sorted(outcome.trajectories.tokens) == [10, 30]:
            assert outcome.rollout_idle == pytest.approx(1 / 3)
            return
    pytest.fail("no seed draws both lengths")


@pytest.mark.parametrize(("train", "expected"), [(1.0, 5.0), (9.0, 10.6)])
def test_equal_lengths_and_no_bound_take_the_longer_of_generation_and_training(train: float, expected: float) -> None:
    costs = replace(EQUAL.costs, train_seconds=train)
    outcome = simulate_disaggregated(replace(EQUAL, costs=costs, threshold=math.inf), updates=6, warmup=2)
    assert outcome.step_seconds == pytest.approx([expected] * 6)
    assert outcome.trainer_idle == pytest.approx(1 - (train + 1.6) / expected, abs=1e-9)
    assert outcome.generate_seconds == pytest.approx(5, rel=0.15)  # the window need not begin with a wave
    assert outcome.rollout_idle == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_threshold_0_at_interval_1_cannot_overlap(skew: float) -> None:
    """Every update waits for all its groups, and their generation for the update before."""
    lengths = LognormalLengths(10.0, skew)
    costs = replace(EQUAL.costs, sync_seconds=0.5)
    outcome = simulate_disaggregated(replace(EQUAL, lengths=lengths, costs=costs), updates=4)
    rows = outcome.trajectories
    for update, seconds in enumerate(outcome.step_seconds, start=1):
        chosen = rows.update == update
        generation = rows.finished[chosen].max() - rows.started[chosen].min()
        assert seconds == pytest.approx(generation + 1 + 0.02 * rows.tokens[chosen].sum() + 0.5)
    assert not outcome.intra.any() and not outcome.inter.any()


def test_threshold_0_at_interval_2_overlaps_the_second_update_only() -> None:
    """Eight slots, sixteen responses between two synchronizations: 5 s, then max(5, 2.6) s, then 2.6 s to train."""
    outcome = simulate_disaggregated(replace(EQUAL, interval=2), updates=4)
    assert outcome.ended == pytest.approx([7.6, 12.6, 20.2, 25.2])
    assert histogram(outcome.inter) == {0: 16, 1: 16}


def test_one_slot_writes_one_response_after_the_other() -> None:
    lengths = LognormalLengths(10.0, 0.7)
    costs = Costs(token_seconds=0.1, slot_seconds=0.05)
    outcome = simulate_disaggregated(
        replace(EQUAL, lengths=lengths, costs=costs, slots=1, threshold=math.inf), updates=5, seed=3
    )
    rows = outcome.trajectories
    assert rows.finished - rows.started == pytest.approx(0.15 * rows.tokens)
    assert outcome.ended == pytest.approx(0.15 * np.cumsum(np.bincount(rows.update, rows.tokens)[1:]))
    assert (outcome.trainer_idle, outcome.slots_used) == pytest.approx((1, 1))


def test_a_response_slows_down_and_speeds_up_with_the_number_of_running_ones() -> None:
    """Lengths 10 and 20 side by side: 10 * 0.2 s with two running, then 10 * 0.15 s alone."""
    costs = Costs(token_seconds=0.1, slot_seconds=0.05)
    lengths = MeasuredLengths(np.array([10, 20]))
    pipeline = replace(EQUAL, prompts=1, group=2, slots=2, lengths=lengths, costs=costs)
    outcomes = [simulate_disaggregated(pipeline, updates=1, seed=seed) for seed in range(20)]
    ended = {tuple(sorted(o.trajectories.tokens)): o.ended[0] for o in outcomes}
    assert ended == {(10, 10): pytest.approx(2.0), (10, 20): pytest.approx(3.5), (20, 20): pytest.approx(4.0)}


def test_a_synchronization_stops_responses_and_reads_their_prefixes_again() -> None:
    """A response of 10 tokens a second each; updates of one take 4 s, so every one but the first meets a sync.

    The first trajectory is trained from 10 to 14 s. Then the second, 4 tokens old, waits for 3 s of synchronization and
    for 4 * 0.5 s of reading, and ends at 14 + 3 + 2 + 6 = 25 s under version 1.
    """
    costs = Costs(token_seconds=1.0, prefill_seconds=0.5, train_seconds=4.0, sync_seconds=3.0)
    pipeline = replace(EQUAL, prompts=1, group=1, slots=1, costs=costs, threshold=1)
    outcome = simulate_disaggregated(pipeline, updates=2)
    rows = outcome.trajectories
    assert rows.finished == pytest.approx([10, 25])
    assert outcome.ended == pytest.approx([17, 32])
    assert (rows.version_first.tolist(), rows.version_last.tolist()) == ([0, 0], [0, 1])
    assert (outcome.intra.tolist(), outcome.inter.tolist()) == ([0, 1], [0, 0])


pipelines = st.builds(
    Pipeline,
    prompts=st.integers(1, 6),
    group=st.integers(1, 4),
    lengths=st.builds(LognormalLengths, st.floats(2, 50), st.floats(0, 2)),
    costs=st.builds(
        Costs,
        token_seconds=st.floats(0.01, 1),
        slot_seconds=st.floats(0, 0.1),
        prefill_seconds=st.floats(0, 0.1),
        train_seconds=st.floats(0.1, 20),
        train_token_seconds=st.floats(0, 0.1),
        sync_seconds=st.floats(0, 5),
    ),
    devices=st.integers(5, 8),
    rollout_devices=st.sampled_from([2, 4]),
    replica_devices=st.integers(1, 2),
    slots=st.integers(1, 9),
    threshold=st.floats(0, 4),
    interval=st.integers(1, 3),
)


@settings(max_examples=60, deadline=None)
@given(pipeline=pipelines, seed=st.integers(0, 9))
def test_what_holds_in_every_asynchronous_run(pipeline: Pipeline, seed: int) -> None:
    outcome = simulate_disaggregated(pipeline, updates=7, warmup=2, seed=seed)
    rows = outcome.trajectories
    # every update trains so many whole groups, and none twice
    assert np.bincount(rows.update).tolist() == [0] + [pipeline.prompts * pipeline.group] * 9
    assert set(np.bincount(rows.group)) <= {0, pipeline.group}
    assert all(len(set(rows.update[rows.group == group])) == 1 for group in set(rows.group))
    # a response is written before it is trained, by the newest weights that had been handed over
    assert (rows.finished > rows.started).all()
    trained = outcome.ended[rows.update - 1]
    assert (rows.finished <= trained + 1e-9).all()
    assert ((rows.version_first <= rows.version_last) & (rows.version_last < rows.update)).all()
    assert not (rows.version_first % pipeline.interval).any()
    # at no start were more groups begun than the staleness bound allows beyond those trained by the last sync
    began = {group: rows.started[rows.group == group].min() for group in set(rows.group)}
    for group, start in began.items():
        synchronized = int((outcome.ended <= start + 1e-9).sum()) // pipeline.interval * pipeline.interval
        assert group + 1 <= synchronized * pipeline.prompts + pipeline.group_limit
    assert outcome.intra.min() >= 0 and outcome.inter.min() >= 0
    for share in (outcome.trainer_idle, outcome.rollout_idle, outcome.slots_used):
        assert -1e-9 <= share <= 1 + 1e-9
    assert len(outcome.step_seconds) == 7 and (outcome.step_seconds > 0).all()


@settings(max_examples=30, deadline=None)
@given(pipeline=pipelines, seed=st.integers(0, 9))
def test_what_holds_in_every_synchronous_run(pipeline: Pipeline, seed: int) -> None:
    outcome = simulate_colocated(pipeline, updates=3, warmup=1, seed=seed)
    rows = outcome.trajectories
    assert set(rows.group) == set(range(4 * pipeline.prompts))
    assert (rows.group // pipeline.prompts == rows.update - 1).all()
    assert (rows.version_first == rows.update - 1).all() and not outcome.inter.any()
    assert -1e-9 <= outcome.rollout_idle <= 1
    # no update is faster than its longest response at the pace of one running alone
    for update, seconds in enumerate(outcome.step_seconds, start=2):
        tokens = rows.tokens[rows.update == update]
        assert seconds >= tokens.max() * (pipeline.costs.token_seconds + pipeline.costs.slot_seconds) - 1e-6


def test_the_same_seed_gives_the_same_run_and_the_same_lengths_in_both_modes() -> None:
    pipeline = replace(EQUAL, lengths=LognormalLengths(10.0, 1.0), threshold=1)
    first, second = (simulate_disaggregated(pipeline, 5, seed=4) for _ in range(2))
    assert first.ended.tolist() == second.ended.tolist()
    assert first.ended.tolist() != simulate_disaggregated(pipeline, 5, seed=5).ended.tolist()
    sync = simulate_colocated(pipeline, 5, seed=4).trajectories
    ours = first.trajectories
    both = set(range(5 * pipeline.prompts)) & set(ours.group.tolist())
    assert len(both) > 10
    for group in both:
        assert sorted(sync.tokens[sync.group == group]) == sorted(ours.tokens[ours.group == group])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"slots": 0}, "slots"),
        ({"rollout_devices": 2}, "2 of 2 devices"),
        ({"devices": 4, "rollout_devices": 3, "replica_devices": 2}, "whole replicas of 2"),
        ({"threshold": -0.5}, "threshold"),
        ({"costs": Costs(token_seconds=0.0)}, "token_seconds"),
        ({"costs": Costs(token_seconds=1.0, sync_seconds=math.nan)}, "sync_seconds"),
    ],
)
def test_impossible_pipelines_are_refused(change: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        replace(EQUAL, **change)


def test_nothing_to_observe_is_refused() -> None:
    with pytest.raises(UserError, match="at least one update"):
        simulate_disaggregated(EQUAL, updates=0)
