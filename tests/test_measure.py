"""The stage that measures the concurrent engine, and its command."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from estr.cli import main
from estr.config import RunConfig, resolve
from estr.embedded.policy import Policy, PolicyShape, save_policy
from estr.embedded.tokenizer import ChatTokenizer
from estr.layout import Layout
from estr.measure import measure_throughput
from estr.pipeline.calibration import compare, predict
from estr.pipeline.measurement import load_measurements
from estr.stages import prepare_data
from estr.tasks.dapo_math_laptop import DapoMathLaptop


@pytest.fixture
def measured(workspace: Path) -> Layout:
    """A measurement takes three updates."""
    return prepared(workspace, steps=2, warmup_steps=1)


@pytest.fixture
def measured_long(workspace: Path) -> Layout:
    """The queue is neither filling nor full of what was begun before the first update."""
    return prepared(workspace, steps=80, warmup_steps=40)


def prepared(workspace: Path, steps: int, warmup_steps: int) -> Layout:
    """Data and an untrained warm start; a window of so many updates."""
    path = workspace / "configs" / "scales" / "smoke.yaml"
    scale = yaml.safe_load(path.read_text())
    scale["concurrent"] |= {"steps": steps, "warmup_steps": warmup_steps}
    scale["train"] |= {"prompts": 4}
    path.write_text(yaml.safe_dump(scale))
    layout = Layout(workspace / "results", "smoke")
    config = resolve("smoke", "dapo_math", "sync", 0)
    prepare_data(layout, config)
    task = DapoMathLaptop(**config.counterpart.model_dump())
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    folder = layout.warm_start("dapo_math")
    save_policy(Policy(PolicyShape(len(tokenizer), **config.policy.model_dump())).initialize(0), folder)
    tokenizer.save(folder)
    return layout


@pytest.mark.slow
@pytest.mark.parametrize(("label", "mode"), [("estr", "disaggregated"), ("sync", "colocated")])
def test_a_measurement_adds_up(measured: Layout, label: str, mode: str) -> None:
    config = resolve("smoke", "dapo_math", label, 0)
    folder = measure_throughput(measured, config)
    assert folder == measured.root / "throughput" / "dapo_math" / label / "seed0"
    found = json.loads((folder / "throughput.json").read_text())
    steps = pq.read_table(folder / "steps.parquet").to_pandas()
    trajectories = pq.read_table(folder / "trajectories.parquet").to_pandas()
    assert (found["mode"], found["steps"], found["cores"], found["label"]) == (mode, 2, 2, label)
    assert RunConfig.model_validate(found["config"]) == config
    assert steps["step"].tolist() == [1, 2, 3] and steps["measured"].tolist() == [False, True, True]
    assert len(trajectories) == 3 * 4 * 8
    window, consumed = steps[steps["measured"]], trajectories[trajectories["step"] > 1]
    assert found["tokens"] == window["response_tokens"].sum() == consumed["response_tokens"].sum()
    assert found["wall_seconds"] == pytest.approx(window["step_seconds"].sum())
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["wall_seconds"])
    assert found["tokens_per_second_per_core"] == found["tokens_per_second"] / 2
    assert found["step_seconds"]["mean"] == pytest.approx(window["step_seconds"].mean())
    assert 0 <= found["trainer_idle_fraction"] < 1 and 0 <= found["rollout_idle_fraction"] < 1
    assert found["partial_rollouts"] == (consumed["resumed"] > 0).sum()
    for name, low, high in (("intra", "version_first", "version_last"), ("inter", "version_last", "target_version")):
        lag = consumed[high] - consumed[low]
        assert {int(k): n for k, n in found["staleness"]["histogram"][name].items()} == lag.value_counts().to_dict()
        assert found["staleness"][f"{name}_mean"] == pytest.approx(lag.mean())
        assert window[f"staleness_{name}"].mean() == pytest.approx(lag.mean())
        if mode == "colocated":
            assert found["staleness"][f"{name}_max"] == 0
    assert steps["generate_seconds"].isna().all() == (mode == "disaggregated")
    assert min(found["stages"].values()) > 0 and 0 < found["objective"]["share_of_step"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("label", ["estr", "sync"])
def test_the_model_of_the_pipeline_agrees_with_the_engine(measured_long: Layout, label: str) -> None:
    """From the stage times and lengths of a real window: its time per update, its throughput, and how stale it was."""
    [measurement] = load_measurements([measure_throughput(measured_long, resolve("smoke", "dapo_math", label, 0))])
    assert len(measurement.step_seconds) == 80
    found = {each.quantity: each for each in compare(measurement, predict(measurement))}
    for quantity in ("seconds per update", "throughput"):
        assert found[quantity].modelled == pytest.approx(found[quantity].measured, rel=0.3), quantity
    for quantity in ("staleness intra", "staleness inter"):
        assert found[quantity].modelled == pytest.approx(found[quantity].measured, abs=1.0), quantity


def test_what_cannot_be_measured_is_one_clear_line(workspace: Path, tmp_path: Path) -> None:
    for arguments, part in (
        (("dapo_math", "ppo"), "unknown method 'ppo'"),
        (("dapo_math", "estr__tau=1.6"), "write it as 'estr'"),
        (("dapo_math", "estr"), "estr data prepare dapo_math"),
        (("gsm8k", "icepop__thresholds=matched"), "not at the matched budget"),
    ):
        result = CliRunner().invoke(main, ["throughput", *arguments, "--results", str(tmp_path)])
        assert result.exit_code == 2
        assert result.stderr.startswith("estr: error: ") and part in result.stderr and result.stderr.count("\n") == 1
