"""Every paper-scale run against verl's real configuration: it composes, and resolves to the paper's Table 3."""

import csv
from pathlib import Path

import pytest
import verl
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, InstantiationException
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl_runs import REPOSITORY

from estr.algorithm import build_rule
from estr.cluster.launch.command import ASYNC, Command, Place, tool_file, verl_command
from estr.cluster.verl.settings import KeepRuleConfig, keep_rule
from estr.config import ClusterRun, expand, load_experiment, load_site, resolve_any

TASKS = ("browsecomp_plus", "dapo_math", "gsm8k", "search_r1")
SPLIT = ("tensor_model", "pipeline_model", "context", "expert_model")
METHODS = ("sync", "async", "icepop", "kpop", "m2po", "estr")


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def command_of(task: str, label: str) -> tuple[ClusterRun, Command]:
    run = resolve_any("paper", task, label, 0)
    place = Place(
        Path("/models") / run.policy.model,
        Path("/data") / task,
        Path("/runs/estr__tau=1.0/it's here"),
        "http://127.0.0.1:8000",
    )
    return run, verl_command(run, place, load_site(), tools=task != "dapo_math")


def composed(command: Command) -> DictConfig:
    folder, name = {
        True: ("experimental/fully_async_policy/config", "fully_async_ppo_trainer"),
        False: ("trainer/config", "ppo_trainer"),
    }[command.module == ASYNC]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(verl.__file__).parent / folder), version_base=None):
        return compose(name, command.settings)


def table3(task: str) -> dict[str, str]:
    with (REPOSITORY / "configs" / "paper" / "settings.csv").open() as file:
        return {row["setting"]: row[task] for row in csv.DictReader(file)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_every_method_of_every_task_composes(task: str, method: str) -> None:
    run, command = command_of(task, method)
    config = composed(command)
    actor = config.actor_rollout_ref.actor
    loss = omega_conf_to_dataclass(actor.policy_loss)
    assert isinstance(loss, KeepRuleConfig)
    assert keep_rule(loss.loss_mode, loss.thresholds) == build_rule(run.rule, **run.thresholds)
    assert OmegaConf.missing_keys(actor) <= {"rollout_n"}
    assert loss.record == "/runs/estr__tau=1.0/it's here/record"
    assert config.algorithm.rollout_correction.bypass_mode is True
    assert (command.module == ASYNC) == (method != "sync")


@pytest.mark.parametrize("task", ("browsecomp_plus", "dapo_math", "gsm8k"))
def test_resolved_values_are_table_3(task: str) -> None:
    paper = table3(task)
    _, command = command_of(task, "estr")
    config = composed(command)
    ref, actor, rollout = (config.actor_rollout_ref[name] for name in ("ref", "actor", "rollout"))

    def split(section):
        sizes = (section.megatron[f"{name}_parallel_size"] for name in SPLIT)
        return "/".join(str(size) for size in sizes)

    assert {
        "Policy model": Path(config.actor_rollout_ref.model.path).name
        + (" (MoE)" if "A3B" in paper["Policy model"] else ""),
        "Train backend": actor.strategy.capitalize(),
        "Rollout engine": {"sglang": "SGLang"}[rollout.name],
        "Train nodes": str(config.trainer.nnodes),
        "Rollout nodes": str(config.rollout.nnodes),
        "Total nodes (x 8 H800)": str(config.trainer.nnodes + config.rollout.nnodes),
        "Train GPUs / Rollout GPUs": (
            f"{config.trainer.nnodes * config.trainer.n_gpus_per_node} / "
            f"{config.rollout.nnodes * config.rollout.n_gpus_per_node}"
        ),
        "Actor TP/PP/CP/EP": split(actor),
        "Ref TP/PP/CP/EP": split(ref),
        "Rollout TP/EP": f"{rollout.tensor_model_parallel_size}/{rollout.expert_parallel_size}",
        "Rollout samples n": str(rollout.n),
        "Global batch (prompts)": str(actor.ppo_mini_batch_size),
        "Prompt length": str(config.data.max_prompt_length),
        "Response length": str(config.data.max_response_length),
        "Max model length": str(rollout.max_model_len),
        "ESTR tau (default)": str(actor.policy_loss.thresholds.tau),
        "Entropy floor epsilon": str(actor.policy_loss.thresholds.eps),
        "Staleness threshold": str(int(config.async_training.staleness_threshold)),
        "Param-sync interval": str(config.async_training.trigger_parameter_sync_step),
        "Partial rollout": {True: "yes"}[config.async_training.partial_rollout],
        "Rollout mem. util.": f"{rollout.gpu_memory_utilization:.2f}",
        "Learning rate": f"{actor.optim.lr:.0e}".replace("e-0", "e-"),
        "Clip range (low, high)": f"{actor.clip_ratio_low:.2f}, {actor.clip_ratio_high:.2f}",
        "KL penalty": str(int(actor.use_kl_loss or config.algorithm.use_kl_in_reward)),
        "Entropy bonus": str(actor.entropy_coeff),
    }.items() <= paper.items()
    assert config.trainer.total_epochs == int(paper["Epochs"]) + 1
    assert actor.loss_agg_mode == "token-mean" and config.algorithm.adv_estimator == "grpo"
    if task != "dapo_math":
        assert str(rollout.multi_turn.max_assistant_turns) == paper["Max turns"]


def test_the_number_of_updates() -> None:
    """12 epochs of 7,473 problems in batches of 256 are 350 updates: 348, a multiple of the interval 4."""
    run, command = command_of("gsm8k", "estr")
    config = composed(command)
    assert run.train.steps == 348
    assert config.rollout.total_rollout_steps == 348 * 256
    loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.policy_loss)
    assert loss.updates_per_version == 4


def test_synchronous_training_takes_all_nodes() -> None:
    _, command = command_of("browsecomp_plus", "sync")
    config = composed(command)
    assert (config.trainer.nnodes, config.data.train_batch_size) == (4, 16)
    assert config.trainer.v1.trainer_mode == "sync"
    assert config.actor_rollout_ref.rollout.checkpoint_engine.backend == "naive"


@pytest.mark.parametrize(
    ("label", "threshold", "interval"),
    [("estr", 20, 2), ("estr__inter=5", 10, 2), ("estr__inter=1__intra=1", 2, 16), ("estr__intra=16", 20, 1)],
)
def test_staleness_asked_for_becomes_threshold_and_interval(label: str, threshold: float, interval: int) -> None:
    config = composed(command_of("dapo_math", label)[1])
    assert config.async_training.staleness_threshold == threshold
    assert config.async_training.trigger_parameter_sync_step == interval


def test_every_run_of_every_experiment_composes() -> None:
    names = [path.stem for path in (REPOSITORY / "configs" / "experiments").glob("*.yaml")]
    labels = {
        (run.task, run.label)
        for name in names
        if "verl" in load_experiment(name).engines
        for run in expand(load_experiment(name).runs, "paper")
    }
    assert len(labels) > 30
    for task, label in sorted(labels):
        composed(command_of(task, label)[1])


def test_an_unknown_key_fails() -> None:
    _, command = command_of("gsm8k", "estr")
    broken = Command(command.module, [*command.settings, "actor_rollout_ref.actor.clip_ratio_hihg=0.3"], {})
    with pytest.raises(ConfigCompositionException, match="clip_ratio_hihg"):
        composed(broken)


def test_an_unknown_threshold_fails() -> None:
    _, command = command_of("gsm8k", "estr")
    extra = "+actor_rollout_ref.actor.policy_loss.thresholds.tua=1.0"
    config = composed(Command(command.module, [*command.settings, extra], {}))
    with pytest.raises(InstantiationException, match="tua"):
        omega_conf_to_dataclass(config.actor_rollout_ref.actor.policy_loss)


def test_the_judge_reaches_the_reward() -> None:
    run = resolve_any("paper", "browsecomp_plus", "estr", 0)
    site = load_site().model_copy(update={"judge_url": "http://judge:1", "judge_model": "Qwen/Qwen3-32B"})
    place = Place(Path("/m"), Path("/d"), Path("/s"))
    kwargs = composed(verl_command(run, place, site, tools=True)).reward.custom_reward_function.reward_kwargs
    assert (kwargs.judge_url, kwargs.judge_model) == ("http://judge:1", "Qwen/Qwen3-32B")


def test_tool_file_is_read_by_verl(stories, tmp_path: Path) -> None:
    from verl.tools.tool_registry import load_all_tools

    from estr.tools.calculator import Calculator

    folder, _, _ = stories
    place = Place(folder, folder, tmp_path)
    place.tools.write_text(tool_file(resolve_any("paper", "gsm8k", "estr", 0), place, [Calculator().schema]))
    (tool,) = load_all_tools(str(place.tools), None)
    assert tool.name == "calculator"
