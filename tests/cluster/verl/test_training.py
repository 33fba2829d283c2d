"""Stock verl trainers on a CPU: real staleness, real aborts, and the mask inside verl against `estr.algorithm`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from verl_runs import Finished, common_settings, run_verl, verl_environment

from estr.algorithm import KeepRule, TokenSignals, build_rule
from estr.tools.calculator import Calculator

pytestmark = pytest.mark.slow

SEPARATE = "verl.trainer.main_ppo"
FULLY = "verl.experimental.fully_async_policy.fully_async_main"


def separate_async(steps: int) -> list[str]:
    """Two updates per weight version, so that the second one trains on stale weights for certain."""
    return [
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "trainer.v1.separate_async.num_warmup_batches=1",
        "actor_rollout_ref.hybrid_engine=False",
        "data.train_batch_size=8",
        f"trainer.total_training_steps={steps}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "+actor_rollout_ref.actor.policy_loss.updates_per_version=2",
        "actor_rollout_ref.rollout.name=transformers",
    ]


def fully_async(rollout_steps: int) -> list[str]:
    return [
        "actor_rollout_ref.hybrid_engine=False",
        "data.train_batch_size=0",
        "data.gen_batch_size=1",
        "data.return_raw_chat=True",
        "async_training.staleness_threshold=1",
        "async_training.trigger_parameter_sync_step=1",
        "async_training.require_batches=1",
        "async_training.partial_rollout=True",
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=1",
        f"rollout.total_rollout_steps={rollout_steps}",
        "actor_rollout_ref.rollout.name=transformers",
    ]


def signals_of(tokens: pd.DataFrame) -> TokenSignals:
    """All tokens as one trajectory."""
    row = {name: torch.tensor(tokens[name].to_numpy())[None] for name in TokenSignals.__annotations__ if name in tokens}
    return TokenSignals(**row, response_mask=torch.ones(1, len(tokens), dtype=torch.bool))


def assert_masks_are(rule: KeepRule, tokens: pd.DataFrame) -> None:
    expected = rule.keep(signals_of(tokens))[0].numpy()
    assert np.array_equal(expected, tokens["kept"].to_numpy())


def trained(finished: Finished) -> pd.DataFrame:
    assert finished.code == 0, finished.output[-4000:]
    return finished.tokens()


def test_separate_async_with_estr(policy_folder: Path, problems: Path, tmp_path: Path) -> None:
    settings = common_settings(policy_folder, problems, tmp_path, "estr", tau=0.01, eps=0.01) + separate_async(3)
    run = run_verl(SEPARATE, settings, tmp_path, verl_environment(tmp_path, ESTR_TEST_TOKEN_SECONDS="0.1"))
    tokens = trained(run)
    assert_masks_are(build_rule("entropy_scaled", tau=0.01, eps=0.01), tokens)
    assert set(tokens["step"]) == {1, 2, 3, 4, 5, 6}
    assert set(tokens["target_version"]) == {0, 1, 2}
    assert 0 < tokens["kept"].mean() < 1
    versions = tokens.groupby("sequence")["weight_version"]
    assert (versions.nunique() > 1).any(), "no trajectory spans two weight versions"

    size = (tokens["target_logprob"] - tokens["behavior_logprob"]).abs()
    # the first update of a version starts from the pushed weights, which sampled the tokens of that version
    fresh = (tokens["step"] % 2 == 1) & (tokens["weight_version"] == tokens["target_version"])
    assert fresh.sum() > 100
    assert size[fresh].max() < 1e-5
    assert size[tokens["step"] % 2 == 0].max() > 1e-3

    sums = run.sums()
    assert {line["attempt"] for line in sums} == {0}
    assert sum(line["response_tokens"] for line in sums) == len(tokens)
    assert sum(line["masked_fraction"] for line in sums) == pytest.approx((~tokens["kept"]).sum())
    assert max(line["staleness_intra_max"] for line in sums) >= 1
    assert "actor/estr/masked_fraction" in run.output


@pytest.mark.parametrize("loss_mode", ["icepop", "keep_all"])
def test_fully_async(loss_mode: str, policy_folder: Path, problems: Path, tmp_path: Path) -> None:
    thresholds = {"icepop": {"low": 0.9, "high": 1.1}, "keep_all": {}}[loss_mode]
    settings = common_settings(policy_folder, problems, tmp_path, loss_mode, **thresholds) + fully_async(20)
    run = run_verl(FULLY, settings, tmp_path, verl_environment(tmp_path, ESTR_TEST_TOKEN_SECONDS="0.1"))
    tokens = trained(run)
    assert_masks_are(build_rule({"icepop": "ratio_interval"}.get(loss_mode, loss_mode), **thresholds), tokens)
    assert tokens["kept"].all() == (loss_mode == "keep_all")
    assert (tokens.groupby("sequence")["weight_version"].nunique() > 1).any()
    size = (tokens["target_logprob"] - tokens["behavior_logprob"]).abs()
    assert size[tokens["weight_version"] == tokens["target_version"]].max() < 1e-5
    assert size[tokens["weight_version"] < tokens["target_version"]].max() > 1e-3


def test_tool_agent(stories, tmp_path: Path) -> None:
    """Our tools and our reward inside verl: every trajectory calls the calculator in its first turn."""
    folder, tokenizer, _ = stories
    call = ' <tool_call> {"name": "calculator", "arguments": {"expression": " 7 + 5 "}} </tool_call>'
    forced = [*tokenizer.encode(call), tokenizer.end_id]
    config = {"type": "native", "task": "gsm8k", "data": str(folder), "tokenizer": str(folder)}
    tool = {"class_name": "estr.cluster.verl.task_tools.TaskTool", "config": config, "tool_schema": Calculator().schema}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [tool]}))
    settings = common_settings(folder, folder / "train.parquet", tmp_path, "estr", tau=0.01)
    reward = "reward.custom_reward_function"
    settings = [s for s in settings if not s.startswith((f"{reward}.path", "data.max_"))] + [
        "data.max_prompt_length=64",
        "data.max_response_length=48",
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tmp_path / 'tools.yaml'}",
        f"{reward}.path=pkg://estr.cluster.verl.task_reward",
        f"{reward}.name=score",
        f"+{reward}.reward_kwargs={{task: gsm8k, data: {folder}}}",
        "reward.reward_manager.source=importlib",
        "reward.reward_manager.name=LastTurn",
        "reward.reward_manager.module.path=pkg://estr.cluster.verl.task_reward",
    ]
    environment = verl_environment(tmp_path, ESTR_TEST_TOKEN_SECONDS="0.02", ESTR_TEST_FORCED=json.dumps(forced))
    run = run_verl(SEPARATE, settings + separate_async(2), tmp_path, environment)
    tokens = trained(run)
    assert_masks_are(build_rule("entropy_scaled", tau=0.01), tokens)
    fresh = (tokens["step"] % 2 == 1) & (tokens["weight_version"] == tokens["target_version"])
    assert (tokens["target_logprob"] - tokens["behavior_logprob"]).abs()[fresh].max() < 1e-5
    for _, trajectory in tokens.groupby("sequence"):
        assert trajectory["token"].tolist()[: len(forced)] == forced
        # the tool's turn lies between the call and what the policy writes next, and is no token of the policy
        gaps = trajectory["position"].diff().fillna(1)
        assert gaps.iloc[len(forced)] > 1
    assert set(tokens["reward"]) <= {0.0, 1.0}


def test_kill_and_resume(policy_folder: Path, problems: Path, tmp_path: Path) -> None:
    """A second process goes on after the last checkpoint, and knows the version it pushed."""
    settings = common_settings(policy_folder, problems, tmp_path, "estr") + separate_async(3)
    settings = [s for s in settings if not s.startswith(("trainer.save_freq", "trainer.total_training_steps"))]
    settings += ["trainer.save_freq=1", "trainer.resume_mode=auto"]
    environment = verl_environment(tmp_path)
    first = run_verl(SEPARATE, [*settings, "trainer.total_training_steps=1"], tmp_path, environment)
    assert set(trained(first)["step"]) == {1, 2}
    again = [*settings, "trainer.total_training_steps=2", "+actor_rollout_ref.actor.policy_loss.attempt=1"]
    second = run_verl(SEPARATE, again, tmp_path, environment)
    trained(second)
    by_attempt = {(line["attempt"], line["step"]) for line in second.sums()}
    assert by_attempt == {(0, 1), (0, 2), (1, 3), (1, 4)}
