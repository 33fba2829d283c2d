"""The stages of a reproduction, each a function from paths and settings to files; rules and the CLI call them."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from estr.algorithm.calibration import calibrate
from estr.algorithm.rules import KeepRule, build_rule
from estr.algorithm.signals import TokenSignals
from estr.config import RunConfig, load_method, resolve
from estr.data.prepare import prepare, read_demonstrations, read_problems
from estr.embedded.answer import answer
from estr.embedded.interrupt import StopRequest
from estr.embedded.pretrain import pretrain
from estr.embedded.tokenizer import ChatTokenizer
from estr.embedded.trainer import Interrupted, Trainer
from estr.errors import UserError
from estr.evaluation.metrics import avg_at_k, bootstrap_interval, pass_at_k
from estr.layout import Layout, existing
from estr.provenance import commit, machine, packages, read_json, write_json
from estr.tasks import laptop_counterpart
from estr.tasks.base import TrainableFromScratch
from estr.tracking import RunTracker, Study

Tracked = TypeVar("Tracked")
Result = TypeVar("Result")
MATCHED = ("icepop", "kpop", "m2po")
BUDGET_FROM = "estr"
logger = logging.getLogger(__name__)


def prepare_data(layout: Layout, config: RunConfig) -> None:
    """Write the task's train, evaluation and demonstration sets."""
    prepare(_task(config), config.data, layout.data(config.task))


def warm_start(layout: Layout, config: RunConfig) -> None:
    """Train the policy that every run of the task starts from, and note how good it is."""
    task = _task(config)
    source = existing(layout.data(config.task) / "demonstrations.parquet", f"estr data prepare {config.task}")
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    pairs = [(tokenizer.render(chat), response) for chat, response in read_demonstrations(source)]
    folder = layout.warm_start(config.task)
    loss = pretrain(config.policy, config.pretrain, task.vocabulary(), pairs, folder)
    scores, _ = _evaluate_policy(layout, config, folder)
    write_json(folder / "warm_start.json", {"loss": loss} | scores)


def train(layout: Layout, config: RunConfig) -> None:
    """Run or resume one training run to its last step."""
    if config.matched_budget:
        config = _with_matched_thresholds(layout, config)
    rule = _rule(config)
    folder = layout.run(config)
    problems = read_problems(existing(layout.data(config.task) / "train.parquet", f"estr data prepare {config.task}"))
    start = existing(layout.warm_start(config.task) / "model.safetensors", f"estr pretrain {config.task}").parent
    trainer = Trainer(config, rule, _task(config), problems, start, folder)
    trainer.resume()
    tracker = _open_tracker(layout, config, rule, folder / "state" / "mlflow_run.json")
    with StopRequest() as stop:
        try:
            for metrics in trainer.run(stop):
                _attempt(tracker, partial(RunTracker.sync_metrics, table=metrics))
        except Interrupted:
            _attempt(tracker, RunTracker.interrupted)
            raise
    trainer.finish()
    clock = trainer.metrics.table()
    seconds = pc.sum(clock["time_generate"]).as_py() + pc.sum(clock["time_train"]).as_py()
    write_json(folder / "run.json", _record(config, rule, seconds, tracker))
    _attempt(tracker, partial(RunTracker.finish, folder=folder))


def calibrate_matched_budget(layout: Layout, task: str, reference: RunConfig) -> None:
    """Thresholds at which each baseline masks as many tokens as ESTR on the early tokens of a vanilla async run.

    The paper calibrates on one step-0 batch. A tiny policy's step-0 mismatch is far below every threshold, so the
    shared batch here is the reference run's tokens of its first `train.tokens_first` steps, when staleness has set in.
    """
    source = existing(layout.run(reference) / "tokens.parquet", f"estr train {task} {reference.label}")
    tokens = pq.read_table(source)
    early = tokens.filter(pc.less_equal(tokens["step"], reference.train.tokens_first))
    signals = _as_one_batch(early.to_pydict())
    budget_rule = _rule(resolve(reference.scale, task, BUDGET_FROM, reference.seed))
    kept = budget_rule.keep(signals).sum().item()
    budget = 1 - kept / signals.response_tokens
    rules = {}
    for method in MATCHED:
        found = calibrate(_rule(resolve(reference.scale, task, method, reference.seed)), signals, budget)
        rules[method] = {"name": found.rule.name, **asdict(found.rule), "achieved": found.achieved}
    path = layout.calibration(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [1, reference.train.tokens_first]
    note = {
        "budget": budget,
        "tokens": signals.response_tokens,
        "steps": steps,
        "source_runs": [reference.run_id],
    }
    write_json(path, note | {"rules": rules})


def evaluate(layout: Layout, config: RunConfig) -> None:
    """Score a finished run's policy on the held-out problems."""
    folder = layout.run(config)
    record = read_json(existing(folder / "run.json", f"estr train {config.task} {config.label} --seed {config.seed}"))
    scores, correct = _evaluate_policy(layout, config, folder / "policy")
    start = read_json(layout.warm_start(config.task) / "warm_start.json")
    content = {"task": config.task, "scale": config.scale, "run_id": config.run_id, "steps": record["steps"]}
    content |= scores | {"warm_start": start, "per_problem_correct": correct}
    write_json(folder / "evaluation.json", content)


def _evaluate_policy(layout: Layout, config: RunConfig, policy: Path) -> tuple[dict[str, Any], list[int]]:
    task, settings = _task(config), config.evaluation
    problems = read_problems(existing(layout.data(config.task) / "eval.parquet", f"estr data prepare {config.task}"))
    answers = answer(policy, problems, settings, config.train.max_tokens)
    k = settings.samples
    correct = np.array(
        [
            [task.reward(text, problem.ground_truth) for text in texts]
            for problem, texts in zip(problems, answers, strict=True)
        ]
    )
    counts = correct.sum(axis=1).astype(int).tolist()
    average = avg_at_k(correct)
    passed = [pass_at_k(k, count, k) for count in counts]
    scores = {
        "k": k,
        "n_problems": len(problems),
        f"avg@{k}": float(average.mean()),
        f"avg@{k}_ci": bootstrap_interval(average, settings.seed),
        f"pass@{k}": float(np.mean(passed)),
        f"pass@{k}_ci": bootstrap_interval(passed, settings.seed),
    }
    return scores, counts


def _task(config: RunConfig) -> TrainableFromScratch:
    return laptop_counterpart(config.task, config.counterpart.model_dump())


def _rule(config: RunConfig) -> KeepRule:
    try:
        return build_rule(config.rule, **config.thresholds)
    except ValueError as error:
        raise UserError(f"configs/methods/{config.method}.yaml or an override of it: {error}") from error


def _with_matched_thresholds(layout: Layout, config: RunConfig) -> RunConfig:
    path = existing(layout.calibration(config.task), f"estr calibrate {config.task}")
    rules = read_json(path)["rules"]
    if config.method not in rules:
        raise UserError(f"{path}: no matched thresholds for {config.method!r}; it has {', '.join(rules)}")
    found = {key: value for key, value in rules[config.method].items() if key not in ("name", "achieved")}
    return config.model_copy(update={"thresholds": found})


def _as_one_batch(columns: dict[str, list[Any]]) -> TokenSignals:
    """Tokens of any number of batches as one row."""

    def row(name: str) -> torch.Tensor:
        return torch.tensor(columns[name])[None]

    return TokenSignals(
        behavior_logprob=row("behavior_logprob"),
        target_logprob=row("target_logprob"),
        entropy=row("entropy"),
        advantage=row("advantage"),
        response_mask=torch.ones(1, len(columns["step"]), dtype=torch.bool),
        weight_version=row("weight_version"),
    )


def _record(config: RunConfig, rule: KeepRule, seconds: float, tracker: RunTracker | None) -> dict[str, Any]:
    return {
        "run_id": config.run_id,
        "scale": config.scale,
        "task": config.task,
        "method": config.method,
        "title": load_method(config.method).title,
        "label": config.label,
        "seed": config.seed,
        "overrides": config.overrides,
        "rule": {"name": rule.name} | asdict(rule),
        "config": config.model_dump(),
        "config_hash": config.hash,
        "commit": commit(),
        "packages": packages(),
        "machine": machine(),
        "wall_seconds": seconds,
        "status": "complete",
        "steps": config.train.steps,
        "mlflow_run_id": tracker.run_id if tracker else None,
    }


def _open_tracker(layout: Layout, config: RunConfig, rule: KeepRule, note: Path) -> RunTracker | None:
    """The run's tracker, or None without a study; a resumed run finds its MLflow run in `note`."""
    if not layout.study.exists():
        return None

    def open_run(study: Study) -> RunTracker:
        known = read_json(note)["run_id"] if note.exists() else None
        tracker = RunTracker(study, config, known)
        if known is None:
            write_json(note, {"run_id": tracker.run_id})
            tracker.log_params(config, {"name": rule.name} | asdict(rule))
        return tracker

    return _attempt(Study.load(layout.study), open_run)


def _attempt(tracked: Tracked | None, action: Callable[[Tracked], Result]) -> Result | None:
    """Tracking is a view of the results: when it fails, say so and go on."""
    if tracked is None:
        return None
    try:
        return action(tracked)
    except Exception as error:
        logger.warning(
            "MLflow did not take this (%s: %s); the files under results/ are complete",
            type(error).__name__,
            error,
        )
        return None
