"""A model calibrated with a measurement's stage times predicts what it was not told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from measurements import ENGINE, UPDATES, WARMUP, edit, simulated, write_measurement

from estr.errors import UserError
from estr.pipeline.calibration import calibrate, compare, predict
from estr.pipeline.measurement import load_measurement, load_measurements


def test_costs_are_recovered_from_stage_times(tmp_path: Path) -> None:
    """The fixed cost per token and that per slot cannot be told apart with full slots; their sum there can."""
    pipeline = calibrate(load_measurement(write_measurement(tmp_path, "estr")))
    full = ENGINE.costs.token_seconds + ENGINE.slots * ENGINE.costs.slot_seconds
    costs = pipeline.costs
    assert costs.token_seconds + ENGINE.slots * costs.slot_seconds == pytest.approx(full, rel=0.05)
    assert costs.train_token_seconds == pytest.approx(ENGINE.costs.train_token_seconds)
    assert costs.sync_seconds == pytest.approx(ENGINE.costs.sync_seconds)
    names = ("prompts", "group", "devices", "rollout_devices", "slots", "threshold", "interval")
    assert [getattr(pipeline, name) for name in names] == [getattr(ENGINE, name) for name in names]
    trained = simulated("estr").trajectories.tokens
    assert (pipeline.lengths.mean, pipeline.lengths.skew) == pytest.approx(
        (trained.mean(), trained.std() / trained.mean())
    )


def test_the_cost_per_slot_shows_where_slots_run_empty(tmp_path: Path) -> None:
    """A synchronous batch ends with few running responses. Two replicas share it; slots are what ran at once."""
    pipeline = calibrate(load_measurement(write_measurement(tmp_path, "sync")))
    assert pipeline.costs.token_seconds == pytest.approx(ENGINE.costs.token_seconds, rel=0.4)
    assert pipeline.costs.slot_seconds == pytest.approx(ENGINE.costs.slot_seconds, rel=0.15)
    assert pipeline.costs.train_token_seconds == pytest.approx(ENGINE.costs.train_token_seconds)
    assert pipeline.slots <= ENGINE.slots


@pytest.mark.parametrize("label", ["sync", "estr"])
def test_the_model_predicts_the_window(tmp_path: Path, label: str) -> None:
    measurement = load_measurement(write_measurement(tmp_path, label, seed=7))
    outcomes = predict(measurement, seeds=8)
    assert {(len(o.step_seconds), o.warmup) for o in outcomes} == {(UPDATES, WARMUP)}
    rows = {row.quantity: row for row in compare(measurement, outcomes)}
    truth = simulated(label, seed=7)
    assert rows["seconds per update"].measured == pytest.approx(truth.seconds_per_update)
    assert rows["seconds per update"].modelled == pytest.approx(truth.seconds_per_update, rel=0.1)
    assert rows["throughput"].modelled == pytest.approx(truth.tokens_per_second_per_device, rel=0.1)
    for quantity, value in (("trainer idle", truth.trainer_idle), ("rollout idle", truth.rollout_idle)):
        assert rows[quantity].measured == pytest.approx(value)
        assert rows[quantity].modelled == pytest.approx(value, abs=0.06)
    for quantity, staleness in (("staleness intra", truth.intra), ("staleness inter", truth.inter)):
        assert rows[quantity].modelled == pytest.approx(staleness.mean(), abs=0.5)


@pytest.mark.parametrize("label", ["sync", "estr"])
def test_the_modelled_generation_takes_as_long_as_the_measured_one(tmp_path: Path, label: str) -> None:
    """A third of the generation stage is between responses, where no trajectory runs."""
    folder = write_measurement(tmp_path, label)
    stages = load_measurement(folder).record["stages"]
    edit(folder, stages=stages | {"generate_seconds": 1.5 * stages["generate_seconds"]})
    outcomes = predict(load_measurement(folder), seeds=6)
    assert np.mean([o.generate_seconds for o in outcomes]) == pytest.approx(1.5 * stages["generate_seconds"], rel=0.05)


def test_the_calibration_does_not_look_at_what_it_predicts(tmp_path: Path) -> None:
    folder = write_measurement(tmp_path, "estr")
    before = calibrate(load_measurement(folder)).costs
    path = folder / "steps.parquet"
    steps = pd.read_parquet(path)
    steps.assign(step_seconds=99.0, wait_seconds=77.0).to_parquet(path)
    edit(folder, trainer_idle_fraction=0.9, rollout_idle_fraction=0.9, wall_seconds=1e4)
    assert calibrate(load_measurement(folder)).costs == before


def test_full_slots_leave_the_cost_per_slot_at_zero(tmp_path: Path) -> None:
    """Nothing but full slots: all of the pace counts as fixed."""
    engine = replace(ENGINE, threshold=1000.0)
    measurement = load_measurement(write_measurement(tmp_path, "estr", engine=engine))
    costs = calibrate(measurement).costs
    assert costs.token_seconds + ENGINE.slots * costs.slot_seconds == pytest.approx(0.02, rel=0.05)


def test_measurements_of_one_folder_twice_or_of_two_scales_are_refused(tmp_path: Path) -> None:
    first, second = (write_measurement(tmp_path, label) for label in ("sync", "estr"))
    assert [m.label for m in load_measurements([first, second])] == ["sync", "estr"]
    with pytest.raises(UserError, match="the same measurement"):
        load_measurements([first, first])
    edit(second, scale="smoke")
    with pytest.raises(UserError, match="several scales"):
        load_measurements([first, second])
    with pytest.raises(UserError, match="estr throughput dapo_math estr"):
        load_measurements([])


def test_damaged_measurements_are_named(tmp_path: Path) -> None:
    folder = write_measurement(tmp_path, "estr")
    edit(folder, mode="sideways")
    with pytest.raises(UserError, match="mode 'sideways'"):
        load_measurement(folder)
    edit(folder, mode="disaggregated", stages={"train_seconds": 1.0})
    with pytest.raises(UserError, match=r"'stages\.generate_seconds'"):
        load_measurement(folder)
    edit(folder, cores="two")
    with pytest.raises(UserError, match="'cores' is missing or malformed"):
        load_measurement(folder)
    with pytest.raises(UserError, match=r"throughput\.json is missing: `estr throughput dapo_math estr`"):
        load_measurement(tmp_path)
    other = write_measurement(tmp_path, "async")
    trajectories = pd.read_parquet(other / "trajectories.parquet")
    trajectories.assign(finished=trajectories["started"]).to_parquet(other / "trajectories.parquet")
    with pytest.raises(UserError, match="no trajectory took any time"):
        calibrate(load_measurement(other))
    (other / "trajectories.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        load_measurement(other)
    (other / "trajectories.parquet").unlink()
    with pytest.raises(UserError, match=r"trajectories\.parquet: does not exist"):
        load_measurement(other)
    steps = pd.read_parquet(other / "steps.parquet")
    trajectories.to_parquet(other / "trajectories.parquet")
    steps.assign(measured=np.False_).to_parquet(other / "steps.parquet")
    with pytest.raises(UserError, match="no measured update"):
        load_measurement(other)
