"""One run as one command of verl: an entry point, its settings in Hydra's syntax, and its environment.

Asynchronous methods train with verl's `fully_async_policy`, whose threshold, interval and partial rollouts are those of
the paper's Table 3; synchronous ones with the `sync` trainer on all nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estr.cluster.loss_modes import loss_mode_of
from estr.config import ClusterRun, Site
from estr.config.cluster import Parallelism

ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
SYNC = "verl.trainer.main_ppo"
PLUGIN = "estr.cluster.verl"
REWARD = "pkg://estr.cluster.verl.task_reward"
LONGEST_TOOL_OUTPUT = 1_000_000
"""Characters: verl's own cut must never come before ours, which is in tokens."""


@dataclass(frozen=True)
class Place:
    """Where a run finds and leaves its files; all paths absolute."""

    model: Path
    data: Path
    state: Path
    retriever: str | None = None
    attempt: int = 0

    @property
    def checkpoints(self) -> Path:
        return self.state / "checkpoints"

    @property
    def record(self) -> Path:
        return self.state / "record"

    @property
    def tools(self) -> Path:
        return self.state / "tools.yaml"

    @property
    def token(self) -> Path:
        """The secret of the run's Ray cluster."""
        return self.state / "ray_token"

    @property
    def log(self) -> Path:
        """verl's own metrics, one file per attempt: verl empties the file that it opens."""
        return self.state / f"verl-attempt{self.attempt}.jsonl"

    @property
    def trainer_log(self) -> Path:
        """What verl prints."""
        return self.state / f"trainer-attempt{self.attempt}.log"


@dataclass(frozen=True)
class Command:
    """`python -m <module> <settings>` in an environment with these variables."""

    module: str
    settings: list[str]
    environment: dict[str, str]

    @property
    def arguments(self) -> list[str]:
        return ["-m", self.module, *self.settings]


def verl_command(run: ClusterRun, place: Place, site: Site, tools: bool) -> Command:
    """`tools`: the task has some, listed in the file `place.tools`."""
    parts = [_data(run, place), _policy(run, place), _loss(run, place), _rollout(run, place, tools)]
    parts += [_reward(run, place, site), _trainer(run, place)]
    parts.append(_synchronous(run) if run.synchronous else _asynchronous(run))
    settings = [f"{key}={_text(value)}" for part in parts for key, value in part]
    environment = {
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "VERL_FILE_LOGGER_PATH": str(place.log),
        "VERL_LOGGING_LEVEL": "WARN",
        **({"NCCL_SOCKET_IFNAME": site.interface, "GLOO_SOCKET_IFNAME": site.interface} if site.interface else {}),
        **site.environment,
    }
    return Command(SYNC if run.synchronous else ASYNC, settings + site.verl_settings, environment)


def tool_file(run: ClusterRun, place: Place, schemas: list[dict[str, Any]]) -> str:
    """verl's list of tools (YAML, of which JSON is a part), each a tool of our task."""
    config = {
        "type": "native",
        "task": run.task,
        "data": str(place.data),
        "tokenizer": str(place.model),
        "retriever": place.retriever,
    }
    name = f"{PLUGIN}.task_tools.TaskTool"
    entries = [{"class_name": name, "config": config, "tool_schema": schema} for schema in schemas]
    return json.dumps({"tools": entries}, indent=2) + "\n"


Settings = Iterator[tuple[str, Any]]


def _data(run: ClusterRun, place: Place) -> Settings:
    yield "data.train_files", place.data / "train.parquet"
    yield "data.val_files", place.data / "eval.parquet"
    yield "data.max_prompt_length", run.train.prompt_tokens
    yield "data.max_response_length", run.train.max_tokens
    yield "data.filter_overlong_prompts", True
    yield "data.return_raw_chat", True
    yield "data.seed", run.seed


def _policy(run: ClusterRun, place: Place) -> Settings:
    actor, train, resources = "actor_rollout_ref.actor", run.train, run.resources
    if resources.backend == "megatron":
        yield "model_engine", "megatron"
        yield from _parallelism(f"{actor}.megatron", resources.actor)
        yield from _parallelism("actor_rollout_ref.ref.megatron", resources.reference)
    else:
        yield f"{actor}.strategy", "fsdp2"
    yield "actor_rollout_ref.model.path", place.model
    yield "actor_rollout_ref.model.external_lib", PLUGIN
    yield f"{actor}.ppo_mini_batch_size", train.prompts
    yield f"{actor}.ppo_epochs", 1
    yield f"{actor}.use_dynamic_bsz", True
    yield f"{actor}.ppo_max_token_len_per_gpu", max(resources.tokens_per_gpu, train.model_tokens)
    yield f"{actor}.optim.lr", train.learning_rate
    yield f"{actor}.optim.weight_decay", train.weight_decay
    yield f"{actor}.optim.clip_grad" if resources.backend == "megatron" else f"{actor}.grad_clip", train.grad_norm_limit
    yield f"{actor}.clip_ratio_low", train.clip_low
    yield f"{actor}.clip_ratio_high", train.clip_high
    yield f"{actor}.loss_agg_mode", "token-mean"
    yield f"{actor}.use_kl_loss", False
    yield f"{actor}.entropy_coeff", 0
    yield f"{actor}.data_loader_seed", run.seed


def _parallelism(prefix: str, split: Parallelism) -> Settings:
    yield f"{prefix}.tensor_model_parallel_size", split.tensor
    yield f"{prefix}.pipeline_model_parallel_size", split.pipeline
    yield f"{prefix}.context_parallel_size", split.context
    yield f"{prefix}.expert_model_parallel_size", split.expert


def _loss(run: ClusterRun, place: Place) -> Settings:
    loss = "actor_rollout_ref.actor.policy_loss"
    yield f"{loss}._target_", f"{PLUGIN}.KeepRuleConfig"
    yield f"{loss}.loss_mode", loss_mode_of(run.rule)
    for name, value in run.thresholds.items():
        yield f"+{loss}.thresholds.{name}", value
    yield f"+{loss}.record", place.record
    yield f"+{loss}.updates_per_version", run.train.sync_interval
    yield f"+{loss}.tokens_first", run.train.tokens_first
    yield f"+{loss}.tokens_every", run.train.tokens_every
    yield f"+{loss}.attempt", place.attempt
    yield "algorithm.adv_estimator", "grpo"
    yield "algorithm.use_kl_in_reward", False
    yield "algorithm.rollout_correction.bypass_mode", True


def _rollout(run: ClusterRun, place: Place, tools: bool) -> Settings:
    rollout, train, resources = "actor_rollout_ref.rollout", run.train, run.resources
    yield f"{rollout}.name", "sglang"
    yield f"{rollout}.n", train.group
    yield f"{rollout}.temperature", train.temperature
    yield f"{rollout}.top_p", 1.0
    yield f"{rollout}.top_k", -1
    yield f"{rollout}.calculate_log_probs", True
    yield f"{rollout}.max_model_len", train.model_tokens
    yield f"{rollout}.tensor_model_parallel_size", resources.rollout_tensor
    yield f"{rollout}.expert_parallel_size", resources.rollout_expert
    yield f"{rollout}.gpu_memory_utilization", resources.memory_fraction
    if tools:
        yield f"{rollout}.multi_turn.enable", True
        yield f"{rollout}.multi_turn.format", "hermes"
        yield f"{rollout}.multi_turn.max_assistant_turns", train.turns
        yield f"{rollout}.multi_turn.max_parallel_calls", 16
        yield f"{rollout}.multi_turn.max_tool_response_length", LONGEST_TOOL_OUTPUT
        yield f"{rollout}.multi_turn.tool_config_path", place.tools
        yield f"{rollout}.agent.default_agent_loop", "tool_agent"


def _reward(run: ClusterRun, place: Place, site: Site) -> Settings:
    yield "reward.reward_manager.source", "importlib"
    yield "reward.reward_manager.name", "LastTurn"
    yield "reward.reward_manager.module.path", REWARD
    function = "reward.custom_reward_function"
    yield f"{function}.path", REWARD
    yield f"{function}.name", "score"
    yield f"+{function}.reward_kwargs.task", run.task
    yield f"+{function}.reward_kwargs.data", place.data
    if run.task == "browsecomp_plus" and site.judge_url and site.judge_model:
        yield f"+{function}.reward_kwargs.judge_url", site.judge_url
        yield f"+{function}.reward_kwargs.judge_model", site.judge_model
        yield f"+{function}.reward_kwargs.judge_cache", place.state / "judge"


def _trainer(run: ClusterRun, place: Place) -> Settings:
    yield "trainer.project_name", f"estr-{run.scale}"
    yield "trainer.experiment_name", run.run_id.replace("=", "-")
    yield "trainer.logger", "[console,file]"
    yield "trainer.default_local_dir", place.checkpoints
    yield "trainer.resume_mode", "auto"
    yield "trainer.save_freq", run.train.save_every
    yield "trainer.max_actor_ckpt_to_keep", 2
    yield "trainer.val_before_train", False
    yield "trainer.test_freq", -1
    yield "trainer.n_gpus_per_node", run.resources.gpus_per_node


def _asynchronous(run: ClusterRun) -> Settings:
    train, resources = run.train, run.resources
    yield "actor_rollout_ref.hybrid_engine", False
    yield "data.train_batch_size", 0
    yield "data.gen_batch_size", 1
    yield "async_training.staleness_threshold", train.staleness_threshold
    yield "async_training.trigger_parameter_sync_step", train.sync_interval
    yield "async_training.require_batches", 1
    yield "async_training.partial_rollout", train.partial_rollout
    yield "trainer.nnodes", resources.train_nodes
    # near the job's end every version is saved: soon enough, if an update takes up to a fiftieth of the wall time
    yield "trainer.esi_redundant_time", resources.hours * 72 * train.sync_interval
    yield "rollout.nnodes", resources.rollout_nodes
    yield "rollout.n_gpus_per_node", resources.gpus_per_node
    yield "rollout.total_rollout_steps", train.steps * train.prompts
    # one more than needed: verl ends with the rollouts, not with an epoch
    yield "trainer.total_epochs", train.epochs + 1


def _synchronous(run: ClusterRun) -> Settings:
    yield "trainer.v1.trainer_mode", "sync"
    yield "data.train_batch_size", run.train.prompts
    yield "trainer.nnodes", run.resources.nodes
    yield "trainer.total_epochs", run.train.epochs + 1
    yield "trainer.total_training_steps", run.train.steps


def _text(value: Any) -> str:
    """In Hydra's grammar, where the `=` of a run's folder would end a value."""
    if isinstance(value, Path):
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value).lower() if isinstance(value, bool) else str(value)
