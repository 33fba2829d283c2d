"""The stages of a reproduction, each a function from paths and settings to files; rules and the CLI call them."""

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from estr.algorithm.calibration import calibrate
from estr.algorithm.rules import KeepRule
from estr.algorithm.signals import TokenSignals
from estr.config import BUDGET_FROM, MATCHED, PROBES, RunConfig, keep_rule, load_method, load_scale, resolve
from estr.data.prepare import prepare
from estr.data.read import read_demonstrations, read_problems
from estr.embedded.interrupt import StopRequest
from estr.embedded.pretrain import pretrain
from estr.embedded.trainer import Interrupted, Trainer
from estr.errors import UserError
from estr.evaluate_run import answer_held_out, held_out_problems
from estr.layout import Layout, existing
from estr.provenance import commit, file_digest, machine, packages, read_json, write_json
from estr.tasks import laptop_counterpart
from estr.tasks.base import TrainableFromScratch
from estr.tracking import RunTracker, Study

Tracked = TypeVar("Tracked")
Result = TypeVar("Result")
SIGNAL_COLUMNS = ("behavior_logprob", "target_logprob", "entropy", "advantage", "weight_version")
logger = logging.getLogger(__name__)


def prepare_data(layout: Layout, config: RunConfig) -> None:
    """Write the task's train, evaluation and demonstration sets."""
    prepare(_task(config), config.counterpart.model_dump(), config.data, layout.data(config.task))


def warm_start(layout: Layout, config: RunConfig) -> None:
    """Train the policy that every run of the task starts from."""
    task = _task(config)
    source = existing(layout.data(config.task) / "demonstrations.parquet", f"estr data prepare {config.task}")
    shown = read_demonstrations(source)
    pretrain(config.policy, config.pretrain, task.vocabulary(), shown, layout.warm_start(config.task))


def train(layout: Layout, config: RunConfig) -> None:
    """Run or resume one training run to its last step; MLflow follows it if the study asks for that.

    Its checkpoints lie under `state/`, in a folder named after everything that decides its numbers: a changed
    configuration, warm start or data set starts over. They go when the run is complete.
    """
    config = with_thresholds(layout, config)
    folder = layout.run(config)
    key = inputs_hash(layout, config)
    if (folder / "run.json").exists() and read_json(folder / "run.json")["inputs_hash"] == key:
        logger.warning("%s is complete; delete %s to train it again", config.run_id, folder / "run.json")
        return
    (folder / "run.json").unlink(missing_ok=True)
    state = folder / "state" / key
    trainer = open_trainer(layout, config, folder, state)
    rule = trainer.rule
    tracker = _open_tracker(layout, config, rule, state / "mlflow_run.json")
    with StopRequest() as stop:
        try:
            for metrics in trainer.run(stop):
                _attempt(tracker, partial(RunTracker.sync_metrics, table=metrics))
        except BaseException as error:
            status = "KILLED" if isinstance(error, Interrupted) else "FAILED"
            _attempt(tracker, partial(RunTracker.end, status=status))
            raise
    trainer.finish()
    answer_held_out(layout, config)
    clock = trainer.metrics.table()
    seconds = pc.sum(clock["time_generate"]).as_py() + pc.sum(clock["time_train"]).as_py()
    write_json(folder / "run.json", _record(config, rule, key, seconds, tracker))
    _attempt(tracker, partial(RunTracker.finish, folder=folder))
    shutil.rmtree(folder / "state", ignore_errors=True)


def open_trainer(layout: Layout, config: RunConfig, folder: Path, state: Path) -> Trainer:
    """The trainer of a run whose thresholds are known, at its last checkpoint in `state` if there is one."""
    problems = read_problems(_train_set(layout, config))
    start = _warm_start_weights(layout, config).parent
    probes = {name: keep_rule(resolve(config.scale, config.task, name, config.seed)) for name in PROBES}
    held_out = (
        held_out_problems(layout, config)[: config.train.validate_problems] if config.train.validate_every else []
    )
    trainer = Trainer(config, keep_rule(config), probes, _task(config), problems, start, folder, state, held_out)
    trainer.resume()
    return trainer


def calibrate_matched_budget(layout: Layout, task: str, reference: RunConfig) -> None:
    """Thresholds at which each baseline masks as many tokens as ESTR on the early tokens of a vanilla async run.

    The paper calibrates on one step-0 batch (`calibration_steps` 1). A tiny policy's step-0 mismatch is far below every
    threshold, so at laptop scale more steps of the reference run are shared, until staleness has set in.
    """
    source = existing(layout.run(reference) / "tokens.parquet", f"estr train {task} {reference.label}")
    last_step = load_scale(reference.scale).calibration_steps
    updates = _updates(pq.read_table(source), last_step)
    tokens = sum(update.response_tokens for update in updates)
    budget_rule = keep_rule(resolve(reference.scale, task, BUDGET_FROM, reference.seed))
    budget = 1 - sum(int(budget_rule.keep(update).sum()) for update in updates) / tokens
    rules = {}
    for method in MATCHED:
        published = keep_rule(resolve(reference.scale, task, method, reference.seed))
        try:
            found = calibrate(published, updates, budget)
        except ValueError as error:
            raise UserError(f"{source}: cannot calibrate {method}: {error}") from error
        rules[method] = {"name": found.rule.name, **asdict(found.rule), "achieved": found.achieved}
    path = layout.calibration(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [1, last_step]
    note = {"budget": budget, "tokens": tokens, "steps": steps, "source_runs": [reference.run_id]}
    write_json(path, note | {"rules": rules})


def _task(config: RunConfig) -> TrainableFromScratch:
    return laptop_counterpart(config.task, config.counterpart.model_dump())


def _train_set(layout: Layout, config: RunConfig) -> Path:
    return existing(layout.data(config.task) / "train.parquet", f"estr data prepare {config.task}")


def _warm_start_weights(layout: Layout, config: RunConfig) -> Path:
    return existing(layout.warm_start(config.task) / "model.safetensors", f"estr pretrain {config.task}")


def inputs_hash(layout: Layout, config: RunConfig) -> str:
    """Of everything that decides the run's numbers."""
    problems, start = _train_set(layout, config), _warm_start_weights(layout, config)
    return hashlib.sha256("".join([config.hash, file_digest(start), file_digest(problems)]).encode()).hexdigest()[:12]


def with_thresholds(layout: Layout, config: RunConfig) -> RunConfig:
    """The configuration with the calibrated thresholds, if it asks for the matched budget."""
    if not config.matched_budget:
        return config
    path = existing(layout.calibration(config.task), f"estr calibrate {config.task}")
    rules = read_json(path)["rules"]
    if config.method not in rules:
        raise UserError(f"{path}: no matched thresholds for {config.method!r}; it has {', '.join(rules)}")
    found = {key: value for key, value in rules[config.method].items() if key not in ("name", "achieved")}
    return config.model_copy(update={"thresholds": found})


def _updates(tokens: pa.Table, last_step: int) -> list[TokenSignals]:
    """The recorded tokens of each update up to `last_step`, as one row per update."""
    updates = []
    for step in range(1, last_step + 1):
        columns = tokens.filter(pc.equal(tokens["step"], step))
        if len(columns) == 0:
            continue
        row = {name: torch.tensor(columns[name].to_numpy())[None] for name in SIGNAL_COLUMNS}
        updates.append(TokenSignals(**row, response_mask=torch.ones(1, len(columns), dtype=torch.bool)))
    return updates


def _record(
    config: RunConfig, rule: KeepRule, inputs_hash: str, seconds: float, tracker: RunTracker | None
) -> dict[str, Any]:
    method = load_method(config.method)
    return {
        "run_id": config.run_id,
        "scale": config.scale,
        "task": config.task,
        "method": config.method,
        "title": method.title,
        "source": method.source,
        "label": config.label,
        "seed": config.seed,
        "overrides": config.overrides,
        "rule": {"name": rule.name} | asdict(rule),
        "config": config.model_dump(),
        "config_hash": config.hash,
        "inputs_hash": inputs_hash,
        "commit": commit(),
        "packages": packages(),
        "machine": machine(),
        "wall_seconds": seconds,
        "status": "complete",
        "steps": config.train.steps,
        "mlflow_run_id": tracker.run_id if tracker else None,
    }


def _open_tracker(layout: Layout, config: RunConfig, rule: KeepRule, note: Path) -> RunTracker | None:
    """The run's tracker, or None without a live study; a resumed run finds its MLflow run in `note`."""
    study = Study.load(layout.study) if layout.study.exists() else None
    if study is None or not study.live:
        return None

    def open_run(study: Study) -> RunTracker:
        known = read_json(note)["run_id"] if note.exists() else None
        tracker = RunTracker(study, config, known)
        if known is None:
            write_json(note, {"run_id": tracker.run_id})
            tracker.log_params(config, {"name": rule.name} | asdict(rule))
        return tracker

    return _attempt(study, open_run)


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
