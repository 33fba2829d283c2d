"""`estr train` at a scale of the verl engine: one process of it runs on every node of the Slurm job.

The first node starts Ray's head and the trainer, the others join. A run is done when its last update is recorded and
its last checkpoint is there, whatever verl's exit code says; a lost node ends the job, and the next attempt resumes
from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from estr.cluster.launch.allocation import (
    START_SECONDS,
    Allocation,
    Node,
    NodeLost,
    head_node,
    job_environment,
    living_nodes,
    token_environment,
    worker_node,
)
from estr.cluster.launch.command import PLUGIN, Command, Place, tool_file, verl_command
from estr.cluster.launch.export import export, last_sign_of, last_update, metrics_so_far, updates_done_again
from estr.cluster.launch.server import search_service, stop, tail
from estr.config import ClusterRun, Site, keep_rule
from estr.errors import UserError
from estr.evaluation.standalone import require_safetensors
from estr.files.lock import only_writer
from estr.layout import Layout, existing
from estr.machine_load import LoadLog
from estr.matched_budget import with_thresholds
from estr.provenance import commit, file_digest, read_json, write_json
from estr.run_record import is_complete, run_record
from estr.tasks import prepared_task
from estr.tasks.base import Problem
from estr.tasks.retrieval import cut_characters, is_service
from estr.tracking import Follower

CHECK_SECONDS = 30.0
FOLLOW_SECONDS = 60.0
LONGEST_TRY = 120.0
"""Seconds in which `ray start` gives up when it finds no head; a node that lived longer had joined."""
logger = logging.getLogger(__name__)


def train(layout: Layout, config: ClusterRun, site: Site) -> None:
    """Train a run to its last update, or go on with it; on every node but the first, serve until the first is done.

    What verl saves and records lies under `state/`, in a folder named after everything that decides the run's numbers:
    a changed configuration, model or data set starts over. Nothing removes such a folder, complete or not.

    Raises:
        UserError: something that the run needs is missing, verl ended early, or another process trains this run; what
            to do next is said.
        NodeLost: a node left while the job ran.
    """
    commit()  # kept for `run.json`: the code that trains, whatever is checked out by the end
    config = with_thresholds(layout, config)
    folder = layout.run(config).resolve()
    place = _place(layout, config, site, folder)
    key = place.state.name
    if is_complete(folder, key):
        return
    allocation = Allocation.of_this_job(
        config.resources.nodes, config.resources.gpus_per_node, site.cores, site.ray_port
    )
    if allocation.rank > 0:
        _serve(allocation, place, site)
        return
    with only_writer(folder):
        (folder / "run.json").unlink(missing_ok=True)
        place.state.mkdir(parents=True, exist_ok=True)
        history = _attempts(place)
        place = replace(place, attempt=len(history))
        _ended(place).unlink(missing_ok=True)
        follower = Follower(layout, config, keep_rule(config), place.state)
        try:
            if not _is_trained(config, place):
                load = LoadLog(layout.load(config), fresh=not history)
                with _noted(place, history), load, _retriever(place, site, allocation) as url:
                    here = replace(place, retriever=url)
                    _run(allocation, _prepare(config, here, site), here, partial(_follow, follower, config, here))
        except BaseException:
            follower.end("FAILED")
            raise
        finally:
            _ended(place).touch()
        _finish(config, place, folder, key, follower)


def inputs_hash(config: ClusterRun, model: Path, data: Path) -> str:
    """Of everything that decides the run's numbers."""
    parts = [config.hash, file_digest(data / "train.parquet"), model.name]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:12]


def model_folder(config: ClusterRun, site: Site) -> Path:
    """The policy that a run starts from: a folder, or the model's folder below the site's."""
    given = Path(config.policy.model)
    path = given if given.is_absolute() else Path(site.models) / given
    folder = existing(path / "config.json", f"estr cluster model {config.policy.model}").parent.resolve()
    require_safetensors(folder)
    return folder


def _place(layout: Layout, config: ClusterRun, site: Site, folder: Path) -> Place:
    made_by = f"estr data prepare {config.task} --scale {config.scale}"
    data = existing(layout.data(config.task) / "train.parquet", made_by).parent.resolve()
    retriever = site.retrievers.get(config.task)
    if retriever and not is_service(retriever):
        retriever = str(existing(Path(retriever), made_by).resolve())
    model = model_folder(config, site)
    return Place(model, data, folder / "state" / inputs_hash(config, model, data), retriever)


@contextlib.contextmanager
def _retriever(place: Place, site: Site, allocation: Allocation) -> Iterator[str | None]:
    """The URL of the task's retriever: the site's service, or one that is started here; None if nothing is searched."""
    searches = "search" in read_json(place.data / "data.json").get("tools", ())
    if not searches or place.retriever is None or is_service(place.retriever):
        yield place.retriever if searches else None
        return
    log = place.state / f"retriever-attempt{place.attempt}.log"
    with search_service(Path(place.retriever), allocation.head, site.retriever_port, log) as url:
        yield url


def _prepare(config: ClusterRun, place: Place, site: Site) -> Command:
    task = prepared_task(config.task, place.data, place.retriever, cut_characters)
    # tools differ between problems in what they know, not in their names
    toolbox = task.toolbox(Problem((), "", "", "", "train", 0))
    if toolbox is not None:
        place.tools.write_text(tool_file(config, place, toolbox.schemas))
    command = verl_command(config, place, site, tools=toolbox is not None)
    write_json(
        place.state / f"command-attempt{place.attempt}.json", {"module": command.module, "settings": command.settings}
    )
    return command


def _run(allocation: Allocation, command: Command, place: Place, follow: Callable[[], None]) -> None:
    """Train to verl's end. `follow` is called once a minute."""
    environment = job_environment() | command.environment | token_environment(place.token)
    with head_node(allocation, environment) as node:
        inside = environment | {"RAY_ADDRESS": allocation.address}
        log = place.trainer_log
        logger.warning("training; verl's output goes to %s", log)
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *command.arguments],
                env=inside,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _watch(process, node, allocation, environment, follow)
            finally:
                stop(process, patience=30.0)


def _watch(
    process: subprocess.Popen[bytes],
    node: Node,
    allocation: Allocation,
    environment: dict[str, str],
    follow: Callable[[], None],
) -> None:
    """Until the trainer ends. Raises `NodeLost`."""
    checked = followed = time.monotonic()
    while process.poll() is None:
        if not node.alive():
            raise NodeLost("Ray's head ended while the trainer ran; the job is resubmitted and resumes")
        if allocation.nodes > 1 and time.monotonic() - checked > CHECK_SECONDS:
            living, checked = living_nodes(allocation, environment), time.monotonic()
            if 0 < living < allocation.nodes:
                raise NodeLost(
                    f"{allocation.nodes - living} of {allocation.nodes} nodes left; the job is resubmitted and resumes"
                )
        if time.monotonic() - followed > FOLLOW_SECONDS:
            follow()
            followed = time.monotonic()
        time.sleep(1.0)


def _follow(follower: Follower, config: ClusterRun, place: Place) -> None:
    """Let MLflow, which keeps the first value of an update, have those that a resumed run does not do again."""
    if not follower.live:
        return
    with contextlib.suppress(UserError):  # a damaged line is a matter of the run's end
        table = metrics_so_far(place.record, _logs(place), config.train.learning_rate, _saved_version(place))
        if table is not None:
            follower.metrics(table)


def _logs(place: Place) -> list[Path]:
    """verl's own metrics, attempt after attempt."""
    return [replace(place, attempt=attempt).log for attempt in range(place.attempt + 1)]


def _serve(allocation: Allocation, place: Place, site: Site) -> None:
    """A node that is not the first: in the cluster until the first says that the attempt is over.

    Raises:
        NodeLost: there is no head for `START_SECONDS`, or it ends without saying that the attempt is over.
    """
    environment = job_environment() | {"VERL_USE_EXTERNAL_MODULES": PLUGIN} | site.environment
    environment |= token_environment(place.token)
    before = _ended_at(place)

    def over() -> bool:
        return _ended_at(place) not in (None, before)

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        began = time.monotonic()
        with worker_node(allocation, environment) as node:
            while node.alive() and not over():
                time.sleep(1.0)
        if over():
            return
        if time.monotonic() - began > LONGEST_TRY:
            raise NodeLost(f"Ray's head at {allocation.address} ended before the attempt did")
        time.sleep(2.0)
    raise NodeLost(f"this node found no Ray head at {allocation.address}")


def _ended(place: Place) -> Path:
    return place.state / "ended"


def _ended_at(place: Place) -> int | None:
    """When an attempt ended last, by the file system's clock: no other is the same on all nodes."""
    try:
        return _ended(place).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _attempts(place: Place) -> list[dict[str, Any]]:
    path = place.state / "attempts.json"
    attempts: list[dict[str, Any]] = read_json(path)["attempts"] if path.exists() else []
    return attempts


@contextlib.contextmanager
def _noted(place: Place, history: list[dict[str, Any]]) -> Iterator[None]:
    """Every start of the run, with the updates that were there and what was lost to its end."""
    path, job = place.state / "attempts.json", os.environ.get("SLURM_JOB_ID")
    note = {"started": time.time(), "updates_before": last_update(place.record), "slurm_job": job}
    write_json(path, {"attempts": [*history, note | {"ended": None}]})
    try:
        yield
    finally:
        write_json(path, {"attempts": [*history, note | {"ended": time.time()}]})


def _last_checkpoint(config: ClusterRun, place: Place) -> Path:
    return place.checkpoints / f"global_step_{config.train.steps // config.train.sync_interval}"


def _is_trained(config: ClusterRun, place: Place) -> bool:
    return last_update(place.record) >= config.train.steps and _last_checkpoint(config, place).is_dir()


def _finish(config: ClusterRun, place: Place, folder: Path, key: str, follower: Follower) -> None:
    if not _is_trained(config, place):
        log, reached = place.trainer_log, last_update(place.record)
        raise UserError(
            f"{config.run_id}: verl ended at update {reached} of {config.train.steps}, last checkpoint "
            f"{_latest(place)}; the same command resumes there. The end of {log}:\n{tail(log)}"
        )
    steps = export(place.record, _logs(place), config.train.learning_rate, folder)
    _merge(config, _last_checkpoint(config, place), folder / "policy")
    attempts = _attempts(place)
    for number, attempt in enumerate(attempts):
        # a killed one did not say when
        attempt["ended"] = attempt["ended"] or last_sign_of(place.record, number) or attempt["started"]
    seconds = sum(attempt["ended"] - attempt["started"] for attempt in attempts)
    record = run_record(config, keep_rule(config), key, seconds, steps, follower.run_id, folder)
    in_flight = int((1 + config.train.staleness_threshold) * config.train.sync_interval * config.train.prompts)
    resumed = len(attempts) > 1 and not config.synchronous
    more = {
        "attempts": attempts,
        "slurm_jobs": [attempt["slurm_job"] for attempt in attempts if attempt["slurm_job"]],
        "updates_done_again": updates_done_again(place.record),
        # problems whose trajectories were under way at a crash are not taken up again by verl
        "problems_lost_at_most": in_flight * (len(attempts) - 1) if resumed else 0,
    }
    write_json(folder / "run.json", record | more)
    follower.finish(folder)


def _saved_version(place: Place) -> int:
    """Weight version of the checkpoint from which verl would resume, 0 if there is none."""
    note = place.checkpoints / "latest_checkpointed_iteration.txt"
    text = note.read_text().strip() if note.exists() else ""  # verl empties it before it writes
    return int(text) if text.isdigit() else 0


def _latest(place: Place) -> str:
    version = _saved_version(place)
    return f"of version {version}" if version else "none"


def _merge(config: ClusterRun, checkpoint: Path, policy: Path) -> None:
    """The last checkpoint as a Hugging Face folder, with verl's merger."""
    backend = "megatron" if config.resources.backend == "megatron" else "fsdp"
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", backend]
    command += ["--local_dir", str(checkpoint / "actor"), "--target_dir", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{checkpoint}: verl's merger failed:\n{done.stdout[-500:]}{done.stderr[-1500:]}")
