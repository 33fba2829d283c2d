"""verl's command line on a CPU, and what a run of it leaves."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]


@dataclass(frozen=True)
class Finished:
    """A verl process that ended: its exit code, its output, and what the trainer recorded."""

    code: int
    output: str
    record: Path

    def sums(self) -> list[dict]:
        files = sorted(self.record.glob("sums-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def tokens(self) -> pd.DataFrame:
        """Tokens of all updates; `sequence` counts over the micro-batches."""
        tables, start = [], 0
        for file in sorted(self.record.glob("tokens-*.parquet")):
            table = pd.read_parquet(file)
            table["sequence"] += start
            start = table["sequence"].max() + 1
            tables.append(table)
        return pd.concat(tables, ignore_index=True)


def common_settings(policy: Path, problems: Path, folder: Path, loss_mode: str, **thresholds: float) -> list[str]:
    """What every verl run here has in common; the three lines of docs/use_in_verl.md are among them."""
    actor = "actor_rollout_ref.actor"
    return [
        # estr
        "actor_rollout_ref.model.external_lib=estr.cluster.verl",
        f"{actor}.policy_loss.loss_mode={loss_mode}",
        "algorithm.rollout_correction.bypass_mode=True",
        f"{actor}.policy_loss._target_=estr.cluster.verl.KeepRuleConfig",
        *(f"+{actor}.policy_loss.thresholds.{name}={value}" for name, value in thresholds.items()),
        f"+{actor}.policy_loss.record={folder / 'record'}",
        f"+{actor}.policy_loss.tokens_first=1000",
        # the run
        f"data.train_files={problems}",
        f"data.val_files={problems}",
        "data.max_prompt_length=32",
        "data.max_response_length=24",
        "data.dataloader_num_workers=0",
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={policy}",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=shared_file",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"{actor}.ppo_mini_batch_size=4",
        f"{actor}.ppo_micro_batch_size_per_gpu=8",
        f"{actor}.clip_ratio_low=0.2",
        f"{actor}.clip_ratio_high=0.28",
        f"{actor}.optim.lr=3e-3",
        f"reward.custom_reward_function.path={HERE / 'reward.py'}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.logger=[console]",
        "trainer.project_name=estr_test",
        "trainer.experiment_name=run",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        # no GPU
        "trainer.device=cpu",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2",
        f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"{actor}.use_torch_compile=False",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "reward.num_workers=1",
        "+ray_kwargs.ray_init.num_gpus=2",
        "ray_kwargs.ray_init.num_cpus=32",
    ]


def verl_environment(folder: Path, modules: str = "verl_on_cpu", **more: str) -> dict[str, str]:
    return dict(os.environ) | {
        "PYTHONPATH": str(HERE),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": modules,
        "VERL_LOGGING_LEVEL": "WARN",  # separate_async crashes on a log line at INFO
        "RAY_ADDRESS": "local",  # a Ray of its own, whatever else runs on this machine
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
        **more,
    }


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a driver and the Ray that it started (Ray's services leave the driver's process group)."""
    for member in [*psutil.Process(process.pid).children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


FATAL = ("Error in call to target",)
"""In the log of a run whose rollouts fail: verl would try again for ever."""


def run_verl(
    entry: str, settings: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: int = 480
) -> Finished:
    """Run one of verl's entry points to its end; a hang is killed and fails the test that looks at the code."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", entry, *settings],
            env=dict(environment),
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + seconds
        while process.poll() is None:
            text = log.read_text(errors="replace")
            if time.monotonic() > deadline or any(line in text for line in FATAL):
                kill_tree(process)
            time.sleep(1)
    return Finished(process.returncode, log.read_text(errors="replace"), folder / "record")
