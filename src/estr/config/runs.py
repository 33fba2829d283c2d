"""One resolved, hashed `RunConfig` per run. A run is (scale, task, method, overrides, seed)."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from estr.config.cluster import ClusterRun, ClusterScale
from estr.config.files import load_any_scale, load_method, load_scale, load_sizes, load_task, parse
from estr.config.identity import Identity
from estr.config.sections import (
    CounterpartSizes,
    DataSizes,
    EvaluationSettings,
    PolicySizes,
    PretrainSettings,
    RunMatrix,
    TrainSettings,
)
from estr.config.yaml_files import load_yaml
from estr.errors import UserError

if TYPE_CHECKING:
    from estr.algorithm.rules import KeepRule

MATCHED = ("icepop", "kpop", "m2po")
"""Methods that are also run at the masking budget of `BUDGET_FROM`."""
BUDGET_FROM = "estr"
LONGEST_LABEL = 200  # characters; file systems take names of 255 bytes
MOST_RUNS = 10_000  # of one experiment
PROBES = (*MATCHED, BUDGET_FROM)
"""Methods whose rules every run reports as a diagnostic, and on whose thresholds a calibration depends."""


class RunConfig(Identity):
    """Everything that decides the numbers of a run of the embedded engine."""

    IRRELEVANT: ClassVar[dict[str, Any]] = {
        "evaluation": True,
        "data": {"eval_problems"},
        "train": {"checkpoint_every"},
    }

    policy: PolicySizes
    counterpart: CounterpartSizes
    data: DataSizes
    pretrain: PretrainSettings
    train: TrainSettings
    evaluation: EvaluationSettings


Run = RunConfig | ClusterRun
"""A run of either engine."""


def parse_label(label: str) -> tuple[str, dict[str, str | int | float]]:
    """`estr__intra=1__tau=0.7` -> ("estr", {"intra": 1, "tau": 0.7})."""
    if len(label) > LONGEST_LABEL:
        raise UserError(f"run label {label[:40]!r}...: longer than {LONGEST_LABEL} characters, and it names a folder")
    method, *pairs = label.split("__")
    overrides: dict[str, str | int | float] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not re.fullmatch(r"[a-z_]+", key) or not re.fullmatch(r"[A-Za-z0-9.+-]+", text):
            raise UserError(f"run label {label!r}: {pair!r} is not key=value")
        value = load_yaml(text, f"run label {label!r}")
        if isinstance(value, str) and re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)e[+-]?[0-9]+", text):
            value = float(text)  # YAML wants a point and a sign in it
        if not isinstance(value, str | int | float):
            raise UserError(f"run label {label!r}: {pair!r} is not key=value")
        overrides[key] = value
    return method, overrides


def resolve(scale: str, task: str, label: str, seed: int, *, check_thresholds: bool = True) -> RunConfig:
    """The configuration of one run of the embedded engine; see `resolve_any`."""
    load_scale(scale)
    config = resolve_any(scale, task, label, seed, check_thresholds=check_thresholds)
    assert isinstance(config, RunConfig)
    return config


def resolve_any(scale: str, task: str, label: str, seed: int, *, check_thresholds: bool = True) -> Run:
    """The configuration of one run of either engine.

    Overrides name a staleness component (`intra`, `inter`), a training setting (`learning_rate`), a threshold of
    the method's rule (`tau`), or `thresholds=matched`: calibrate the rule to ESTR's masked fraction. Only the
    shortest label is accepted, so that equal runs have equal names. `check_thresholds` builds the keep rule, for
    which it loads torch: a trained run needs no second check.
    """
    method, overrides = parse_label(label)
    config = _resolve(scale, task, method, overrides, seed)
    if check_thresholds:
        keep_rule(config)
    if config.label != label:
        raise UserError(f"run label {label!r}: write it as {config.label!r}, so that equal runs have equal names")
    return config


def _resolve(scale: str, task: str, method: str, overrides: Mapping[str, str | int | float], seed: int) -> Run:
    """`resolve_any` for overrides in any form, thresholds unchecked; the result's label is the shortest one."""
    load_task(task)  # an unknown task is named before a scale that lacks it
    found = load_any_scale(scale)
    if isinstance(found, ClusterScale):
        return _resolve_cluster(found, scale, task, method, overrides, seed)
    sizes = load_sizes(scale, task)
    train = sizes.train.model_dump()
    content = _choose(task, method, overrides, train) | {
        "policy": sizes.policy.model_dump(),
        "counterpart": sizes.counterpart.model_dump(),
        "data": sizes.data.model_dump(),
        "pretrain": sizes.pretrain.model_dump(),
        "train": train,
        "evaluation": sizes.evaluation.model_dump(),
    }
    known = {"scale": scale, "task": task, "method": method, "seed": seed, "engine": found.engine}
    return parse(RunConfig, known | content, f"run {scale}/{task}/{method} with {dict(overrides)}, seed {seed}")


def _resolve_cluster(
    found: ClusterScale,
    scale: str,
    task: str,
    method: str,
    overrides: Mapping[str, str | int | float],
    seed: int,
) -> ClusterRun:
    source = f"configs/scales/{scale}.yaml"
    if task not in found.tasks:
        raise UserError(f"{source}: key 'tasks' lacks the task {task!r}; it has {', '.join(found.tasks)}")
    chosen = found.tasks[task]
    train = found.train | chosen.train
    content = _choose(task, method, overrides, train) | {
        "scale": scale,
        "task": task,
        "method": method,
        "seed": seed,
        "engine": found.engine,
        "synchronous": load_method(method).synchronous,
        "reported": chosen.reported,
        "policy": chosen.policy,
        "train": train,
        "resources": found.resources | chosen.resources,
        "evaluation": found.evaluation | chosen.evaluation,
    }
    where = f"run {scale}/{task}/{method} with {dict(overrides)}, seed {seed}"
    run = parse(ClusterRun, content, where)
    changes: dict[str, Any] = {}
    if run.synchronous:
        changes = {"staleness_threshold": 0, "sync_interval": 1, "partial_rollout": False}
    else:
        # the paper's own staleness comes from its own threshold and interval; others are reached in proportion
        # (docs/cluster.md)
        given, asked = load_task(task).staleness, run.staleness
        if asked.inter != given.inter:
            if not given.inter:
                raise UserError(f"configs/tasks/{task}.yaml: key 'staleness.inter' is 0: no other can be in proportion")
            changes["staleness_threshold"] = run.train.staleness_threshold * asked.inter / given.inter
        if asked.intra != given.intra:
            changes["sync_interval"] = max(1, round(run.train.sync_interval * given.intra / max(asked.intra, 1)))
    return parse(ClusterRun, run.model_dump() | {"train": run.train.model_dump() | changes}, where)


def _choose(
    task: str, method: str, overrides: Mapping[str, str | int | float], train: dict[str, Any]
) -> dict[str, Any]:
    """What both engines take from task and method, overridden; overrides of `train` go into it."""
    task_config, method_config = load_task(task), load_method(method)
    staleness = {} if method_config.synchronous else task_config.staleness.model_dump()
    thresholds = method_config.thresholds | task_config.thresholds.get(method, {})
    changed: dict[str, str | int | float] = {}
    for key, value in overrides.items():
        if key == "thresholds":
            if value != "matched":
                raise UserError(f"{method}: the override thresholds can only be 'matched', got {value!r}")
            changed[key] = value
            continue
        section = next((part for part in (staleness, train, thresholds) if key in part), None)
        if section is None:
            known = ", ".join([*staleness, *thresholds, "thresholds", *train])
            raise UserError(f"{method}: unknown override {key!r}; there are {known}")
        if isinstance(section[key], float) and isinstance(value, int):
            value = float(value)
        if section[key] != value:
            section[key] = changed[key] = value
    return {
        "overrides": changed,
        "staleness": {"intra": 0, "inter": 0} | staleness,
        "rule": method_config.rule,
        "thresholds": thresholds,
        "matched_budget": "thresholds" in changed,
    }


def keep_rule(config: Run) -> "KeepRule":
    """The run's keep rule; an unknown rule or a bad threshold names the method's file."""
    from estr.algorithm.rules import build_rule

    try:
        if "name" in config.thresholds:
            raise ValueError(f"{config.rule}: unknown threshold 'name'")
        return build_rule(config.rule, **config.thresholds)
    except ValueError as error:
        raise UserError(f"configs/methods/{config.method}.yaml or an override of it: {error}") from error


def expand(matrices: Sequence[RunMatrix], scale: str) -> list[Run]:
    """Every run of the matrices at a scale, in the order of the file, each once.

    Raises `UserError` for a run that cannot be resolved, and for a matrix of more than `MOST_RUNS` combinations.
    """
    runs: dict[str, Run] = {}
    for matrix in matrices:
        here = matrix.at.get(scale)
        tasks = here.tasks if here and here.tasks is not None else matrix.tasks
        options = here.overrides if here and here.overrides is not None else matrix.overrides
        size = len(tasks) * len(matrix.methods) * math.prod(map(len, options.values()))
        if size > MOST_RUNS:
            raise UserError(f"a matrix of {size:,} combinations of {', '.join(options)}: there may be {MOST_RUNS:,}")
        for task, method in itertools.product(tasks, matrix.methods):
            seeds = seeds_of(scale, task)
            if isinstance(matrix.seeds, list):
                seeds = matrix.seeds
            elif matrix.seeds is not None:
                seeds = seeds[: matrix.seeds]
            for values in itertools.product(*options.values()):
                overrides = dict(zip(options, values, strict=True))
                for seed in seeds:
                    run = _resolve(scale, task, method, overrides, seed)
                    keep_rule(run)
                    runs[run.run_id] = run
    return list(runs.values())


def seeds_of(scale: str, task: str) -> list[int]:
    """The seeds of a task at a scale."""
    found = load_any_scale(scale)
    if isinstance(found, ClusterScale):
        return (found.tasks[task].seeds if task in found.tasks else None) or found.seeds
    return load_sizes(scale, task).seeds
