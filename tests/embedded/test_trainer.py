import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from estr.algorithm.rules import build_rule
from estr.algorithm.signals import TokenSignals
from estr.config import RunConfig
from estr.embedded.checkpoint import load_state
from estr.embedded.interrupt import StopRequest
from estr.embedded.trainer import Interrupted, Trainer
from estr.errors import UserError
from estr.records import CLOCK_COLUMNS
from estr.tasks.dapo_math_laptop import DapoMathLaptop


def trainer(config: RunConfig, task: DapoMathLaptop, warm_start: Path, folder: Path) -> Trainer:
    rule = build_rule(config.rule, **config.thresholds)
    probes = {"estr": build_rule("entropy_scaled")}
    return Trainer(config, rule, probes, task, task.problems("train", 40, 0), warm_start, folder, folder / "state")


def run(config: RunConfig, task: DapoMathLaptop, warm_start: Path, folder: Path, stop_after: int | None = None) -> int:
    """Train to the end, or abandon the process state after the checkpoint at `stop_after`; returns the start step."""
    made = trainer(config, task, warm_start, folder)
    start = made.resume()
    for _ in made.run(StopRequest()):
        if made.step == stop_after:
            return start
    made.finish()
    return start


def content(folder: Path, name: str = "metrics.parquet") -> pa.Table:
    table = pq.read_table(folder / name)
    return table.drop_columns([column for column in CLOCK_COLUMNS if column in table.column_names])


def buffers(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def test_two_runs_of_one_config_are_byte_identical(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        run(tiny_config, task, warm_start, tmp_path / name)
    for table in ("metrics.parquet", "tokens.parquet"):
        assert buffers(content(tmp_path / "a", table)) == buffers(content(tmp_path / "b", table))
    assert (tmp_path / "a/policy/model.safetensors").read_bytes() == (
        tmp_path / "b/policy/model.safetensors"
    ).read_bytes()
    other = tiny_config.model_copy(update={"seed": 2})
    run(other, task, warm_start, tmp_path / "c")
    assert buffers(content(tmp_path / "a")) != buffers(content(tmp_path / "c"))


@pytest.mark.parametrize("stop_after", [4, 8])
def test_resumed_run_equals_the_unbroken_one(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path, stop_after: int
) -> None:
    run(tiny_config, task, warm_start, tmp_path / "whole")
    assert run(tiny_config, task, warm_start, tmp_path / "broken", stop_after) == 0
    assert run(tiny_config, task, warm_start, tmp_path / "broken") == stop_after
    for table in ("metrics.parquet", "tokens.parquet"):
        assert buffers(content(tmp_path / "whole", table)) == buffers(content(tmp_path / "broken", table))
    assert (tmp_path / "whole/policy/model.safetensors").read_bytes() == (
        tmp_path / "broken/policy/model.safetensors"
    ).read_bytes()
    assert content(tmp_path / "broken")["step"].to_pylist() == list(range(1, 13))


def test_signal_ends_between_two_steps_with_a_checkpoint(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    made = trainer(tiny_config, task, warm_start, tmp_path)
    made.resume()
    update = made._update

    def interrupted_update() -> dict[str, float]:
        row = update()
        if made.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return row

    made._update = interrupted_update  # type: ignore[method-assign]
    with StopRequest() as stop, pytest.raises(Interrupted, match="after step 6"):
        list(made.run(stop))
    state = load_state(tmp_path / "state")
    assert state is not None and state.step == 6
    run(tiny_config, task, warm_start, tmp_path)
    run(tiny_config, task, warm_start, tmp_path / "whole")
    assert buffers(content(tmp_path)) == buffers(content(tmp_path / "whole"))


def test_measured_staleness_is_the_wanted_one_after_the_ramp(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    run(tiny_config, task, warm_start, tmp_path)
    rows = content(tmp_path).to_pylist()
    assert [row["target_version"] for row in rows] == [row["step"] - 1 for row in rows]
    for row in rows:
        assert row["staleness_intra_max"] == min(max(row["target_version"] - 2, 0), 3)
        # a response that ends early sees fewer switches: its inter grows by what its intra lacks
        total = row["staleness_intra"] + row["staleness_inter"]
        assert total == pytest.approx(min(row["target_version"], 5))
    assert pq.read_table(tmp_path / "tokens.parquet")["switch_offset"].to_pylist().count(0) > 0


def test_synchronous_run_is_on_policy_up_to_rounding(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    fresh = tiny_config.staleness.model_copy(update={"intra": 0, "inter": 0})
    config = tiny_config.model_copy(update={"staleness": fresh, "rule": "keep_all", "thresholds": {}})
    run(config, task, warm_start, tmp_path)
    rows = content(tmp_path).to_pylist()
    assert all(row["staleness_intra_max"] == row["staleness_inter_max"] == 0 for row in rows)
    assert all(0 < row["log_ratio_max"] < 0.05 for row in rows)
    assert all(row["masked_fraction"] == 0 for row in rows)


def test_recorded_mask_is_the_rule_on_the_recorded_signals(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    run(tiny_config, task, warm_start, tmp_path)
    tokens = pq.read_table(tmp_path / "tokens.parquet").to_pandas()
    metrics = content(tmp_path).to_pandas().set_index("step")
    assert sorted(tokens["step"].unique()) == [1, 2, 3, 5, 10]
    rule = build_rule(tiny_config.rule, **tiny_config.thresholds)
    for step, rows in tokens.groupby("step"):
        columns = ("behavior_logprob", "target_logprob", "entropy", "advantage")
        signals = TokenSignals(
            **{name: torch.tensor(rows[name].to_numpy())[None] for name in columns},
            response_mask=torch.ones(1, len(rows), dtype=torch.bool),
            weight_version=torch.tensor(rows["weight_version"].to_numpy())[None],
        )
        assert rule.keep(signals)[0].tolist() == rows["kept"].tolist()
        assert metrics.loc[step, "masked_fraction"] == pytest.approx(1 - rows["kept"].mean())
        assert metrics.loc[step, "response_tokens"] == len(rows)
        assert metrics.loc[step, "reward"] == pytest.approx(rows.groupby("sequence")["reward"].first().mean())
    assert 0 < 1 - tokens["kept"].mean() < 1


def test_updates_move_the_policy_towards_the_reward(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    settings = tiny_config.train.model_copy(update={"steps": 40, "learning_rate": 1e-2, "prompts": 8})
    fresh = tiny_config.staleness.model_copy(update={"intra": 0, "inter": 0})
    config = tiny_config.model_copy(
        update={"train": settings, "staleness": fresh, "rule": "keep_all", "thresholds": {}}
    )
    run(config, task, warm_start, tmp_path)
    reward = content(tmp_path)["reward"].to_pylist()
    assert sum(reward[-10:]) / 10 > sum(reward[:5]) / 5 + 0.15


def test_too_few_problems_is_one_clear_error(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    rule = build_rule(tiny_config.rule, **tiny_config.thresholds)
    with pytest.raises(UserError, match="has 3 problems"):
        Trainer(tiny_config, rule, {}, task, task.problems("train", 3, 0), warm_start, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("staleness", {"intra": 9}, "can switch versions 8 times at most"),
        ("train", {"max_tokens": 99}, "max_position_embeddings is 64"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_first_step(
    tiny_config: RunConfig,
    task: DapoMathLaptop,
    warm_start: Path,
    tmp_path: Path,
    section: str,
    change: dict,
    message: str,
) -> None:
    config = tiny_config.model_copy(update={section: getattr(tiny_config, section).model_copy(update=change)})
    with pytest.raises(UserError, match=message):
        trainer(config, task, warm_start, tmp_path)


def test_a_run_without_token_samples_finishes(
    tiny_config: RunConfig, task: DapoMathLaptop, warm_start: Path, tmp_path: Path
) -> None:
    settings = tiny_config.train.model_copy(update={"tokens_first": 0, "tokens_every": 99})
    run(tiny_config.model_copy(update={"train": settings}), task, warm_start, tmp_path, stop_after=4)
    run(tiny_config.model_copy(update={"train": settings}), task, warm_start, tmp_path)
    assert pq.read_table(tmp_path / "tokens.parquet").num_rows == 0
