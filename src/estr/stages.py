"""The stages of a reproduction, each a function from paths and settings to files; rules and the CLI call them."""

import hashlib
import logging
import shutil
from pathlib import Path

import pyarrow.compute as pc

from estr.config import PROBES, RunConfig, keep_rule, resolve
from estr.data.prepare import prepare
from estr.data.read import read_demonstrations, read_problems
from estr.embedded.interrupt import StopRequest
from estr.embedded.pretrain import pretrain
from estr.embedded.trainer import Interrupted, Trainer
from estr.evaluate_run import answer_held_out, held_out_problems
from estr.files.lock import only_writer
from estr.layout import WARM_START_NOTE, Layout, existing
from estr.machine_load import LoadLog
from estr.matched_budget import with_thresholds
from estr.provenance import check_files, commit, file_digest, file_digests, write_json
from estr.run_record import is_complete, run_record
from estr.tasks import laptop_counterpart
from estr.tasks.base import TrainableFromScratch
from estr.tracking import Follower

WARM_START_FILES = ("model.safetensors", "config.json", "generation_config.json", "tokenizer*.json")
logger = logging.getLogger(__name__)


def prepare_data(layout: Layout, config: RunConfig) -> None:
    """Write the task's train, evaluation and demonstration sets."""
    prepare(_task(config), config.counterpart.model_dump(), config.data, layout.data(config.task))


def warm_start(layout: Layout, config: RunConfig) -> None:
    """Train the policy that every run of the task starts from."""
    task = _task(config)
    source = existing(layout.data(config.task) / "demonstrations.parquet", f"estr data prepare {config.task}")
    shown = read_demonstrations(source)
    folder = layout.warm_start(config.task)
    with only_writer(folder):
        (folder / WARM_START_NOTE).unlink(missing_ok=True)
        pretrain(config.policy, config.pretrain, task.vocabulary(), shown, folder)
        write_json(folder / WARM_START_NOTE, {"files": file_digests(folder, WARM_START_FILES)})


def train(layout: Layout, config: RunConfig) -> None:
    """Run or resume one training run to its last step; MLflow follows it if the study asks for that.

    Its checkpoints lie under `state/`, in a folder named after everything that decides its numbers: a changed
    configuration, warm start or data set starts over. They go when the run is complete. A complete run of which a
    file is damaged is made again.

    Raises:
        UserError: something that the run needs is missing or damaged, or another process trains or evaluates this run.
    """
    commit()  # kept for `run.json`: the code that trains, whatever is checked out by the end
    config = with_thresholds(layout, config)
    folder = layout.run(config)
    key = inputs_hash(layout, config)
    state = folder / "state" / key
    with only_writer(folder):
        if not is_complete(folder, key):
            _train(layout, config, key, folder)
        elif state.exists() and (follower := Follower(layout, config, keep_rule(config), state)).run_id:
            follower.finish(folder)  # the process that trained ended before MLflow had everything
        shutil.rmtree(folder / "state", ignore_errors=True)


def _train(layout: Layout, config: RunConfig, key: str, folder: Path) -> None:
    (folder / "run.json").unlink(missing_ok=True)
    state = folder / "state" / key
    trainer = open_trainer(layout, config, folder, state)
    follower = Follower(layout, config, trainer.rule, state)
    with StopRequest() as stop, LoadLog(layout.load(config), fresh=trainer.step == 0):
        try:
            for metrics in trainer.run(stop):
                follower.metrics(metrics)
        except BaseException as error:
            follower.end("KILLED" if isinstance(error, Interrupted) else "FAILED")
            raise
    trainer.finish()
    answer_held_out(layout, config)
    clock = trainer.metrics.table()
    seconds = pc.sum(clock["time_generate"]).as_py() + pc.sum(clock["time_train"]).as_py()
    record = run_record(config, trainer.rule, key, seconds, config.train.steps, follower.run_id, folder)
    write_json(folder / "run.json", record)
    follower.finish(folder)


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


def _task(config: RunConfig) -> TrainableFromScratch:
    return laptop_counterpart(config.task, config.counterpart.model_dump())


def _train_set(layout: Layout, config: RunConfig) -> Path:
    return existing(layout.data(config.task) / "train.parquet", f"estr data prepare {config.task}")


def _warm_start_weights(layout: Layout, config: RunConfig) -> Path:
    check_files(layout.warm_start(config.task) / WARM_START_NOTE)
    return existing(layout.warm_start(config.task) / "model.safetensors", f"estr pretrain {config.task}")


def inputs_hash(layout: Layout, config: RunConfig) -> str:
    """Of everything that decides the run's numbers."""
    problems, start = _train_set(layout, config), _warm_start_weights(layout, config)
    return hashlib.sha256("".join([config.hash, file_digest(start), file_digest(problems)]).encode()).hexdigest()[:12]
