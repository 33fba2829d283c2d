"""Typed configuration: YAML files under `configs/` -> one resolved, hashed `RunConfig` per run.

A run is (scale, task, method, overrides, seed). Unknown keys, wrong types and values out of bounds are a
`UserError` that names file and key.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from estr.errors import UserError

if TYPE_CHECKING:
    from estr.algorithm.rules import KeepRule

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


MATCHED = ("icepop", "kpop", "m2po")
"""Methods that are also run at the masking budget of `BUDGET_FROM`."""
BUDGET_FROM = "estr"
PROBES = (*MATCHED, BUDGET_FROM)
"""Methods whose rules every run reports as a diagnostic, and on whose thresholds a calibration depends."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PolicySizes(_Section):
    """Sizes of the tiny policy; the vocabulary comes from the task."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    max_position_embeddings: Positive


class DapoMathSizes(_Section):
    """The laptop counterpart of DAPO-Math: how long its chains are and how noisy its demonstrations."""

    steps: Positive
    largest_term: Positive
    largest_total: Positive
    skip_rate: Share
    slip_rate: Share


class Gsm8kSizes(_Section):
    """The laptop counterpart of GSM8K: sentences of a story, its numbers, and how noisy its demonstrations."""

    steps: Positive
    largest_number: Positive
    largest_total: Positive
    skip_rate: Share
    slip_rate: Share


class BrowseCompPlusSizes(_Section):
    """The laptop counterpart of BrowseComp-Plus: its corpus, its questions, the search tool, the demonstrations."""

    people: Positive
    relations: Positive
    fewest_hops: Positive
    most_hops: Positive
    hits: Positive
    skip_rate: Share
    slip_rate: Share


CounterpartSizes = DapoMathSizes | Gsm8kSizes | BrowseCompPlusSizes
COUNTERPARTS: dict[str, type[CounterpartSizes]] = {
    "dapo_math": DapoMathSizes,
    "gsm8k": Gsm8kSizes,
    "browsecomp_plus": BrowseCompPlusSizes,
}


class DataSizes(_Section):
    """Rows of the prepared sets."""

    train_problems: Positive
    eval_problems: Positive
    demonstrations: Positive


class PretrainSettings(_Section):
    """The warm start: supervised training on demonstrations, cosine schedule to 5 % of the peak."""

    steps: Positive
    batch_size: Positive
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    seed: Count


class TrainSettings(_Section):
    """Asynchronous GRPO. `prompts` problems with `group` responses each make one update."""

    steps: Positive
    prompts: Positive
    group: Annotated[int, Field(ge=2)]
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_low: Annotated[float, Field(ge=0, lt=1)]
    clip_high: Annotated[float, Field(ge=0)]
    grad_norm_limit: Annotated[float, Field(gt=0)]
    max_tokens: Positive
    temperature: Annotated[float, Field(gt=0)]
    on_switch: Literal["retract", "in_place"]
    checkpoint_every: Positive
    tokens_first: Count
    tokens_every: Positive


class EvaluationSettings(_Section):
    """k sampled answers per held-out problem."""

    samples: Positive
    temperature: Annotated[float, Field(gt=0)]
    seed: Count


class TaskScale(_Section):
    """A task at one scale: its counterpart's sizes, and what differs from the scale's own sections."""

    counterpart: dict[str, Any]
    seeds: Annotated[list[Count], Field(min_length=1)] | None = None
    policy: dict[str, Any] = {}
    data: dict[str, Any] = {}
    pretrain: dict[str, Any] = {}
    train: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}


class ScaleConfig(_Section):
    """One file of `configs/scales/`."""

    engine: Literal["embedded"]
    seeds: Annotated[list[Count], Field(min_length=1)]
    tasks: dict[str, TaskScale]
    policy: PolicySizes
    data: DataSizes
    pretrain: PretrainSettings
    train: TrainSettings
    evaluation: EvaluationSettings


class TaskSizes(_Section):
    """What one task takes from a scale."""

    seeds: list[Count]
    counterpart: CounterpartSizes
    policy: PolicySizes
    data: DataSizes
    pretrain: PretrainSettings
    train: TrainSettings
    evaluation: EvaluationSettings


class Staleness(_Section):
    """Weight versions a trajectory spans (`intra`), and from its last token to its update (`inter`)."""

    intra: Count
    inter: Count


class TaskConfig(_Section):
    """One file of `configs/tasks/`; `thresholds` are those of a method that differ on this task."""

    staleness: Staleness
    thresholds: dict[str, dict[str, float | str]] = {}


class MethodConfig(_Section):
    """One file of `configs/methods/`."""

    title: str
    source: str
    synchronous: bool
    rule: str
    thresholds: dict[str, float | str]


class RunMatrix(_Section):
    """Every combination of tasks, methods and override values; `seeds` null means the scale's."""

    tasks: list[str]
    methods: list[str]
    overrides: dict[str, list[str | int | float]] = {}
    seeds: list[Count] | None = None


class ExperimentConfig(_Section):
    """One file of `configs/experiments/`."""

    title: str
    runs: list[RunMatrix]
    tables: list[str] = []
    figures: list[str] = []


class StudyConfig(_Section):
    """`configs/config.yaml`."""

    scale: str
    experiments: list[str]
    results: str
    figures: str
    published_copies: str | None = None
    tracking_uri: str | None = None


class Deviations(_Section):
    """`configs/paper/deviations.yaml`: where a reproduction knowingly differs from the paper."""

    every_scale: list[str]
    by_scale: dict[str, list[str]]

    def of(self, scale: str) -> list[str]:
        return self.every_scale + self.by_scale.get(scale, [])


class RunConfig(_Section):
    """Everything that decides a run's numbers."""

    scale: str
    task: str
    method: str
    overrides: dict[str, str | int | float]
    seed: Count
    engine: str
    staleness: Staleness
    rule: str
    thresholds: dict[str, float | str]
    matched_budget: bool
    policy: PolicySizes
    counterpart: CounterpartSizes
    data: DataSizes
    pretrain: PretrainSettings
    train: TrainSettings
    evaluation: EvaluationSettings

    @property
    def label(self) -> str:
        """The method with its overrides, as it stands in the run's path: `estr__tau=1.0`."""
        return "__".join([self.method, *(f"{key}={value}" for key, value in sorted(self.overrides.items()))])

    @property
    def run_id(self) -> str:
        return f"{self.scale}/{self.task}/{self.label}/seed{self.seed}"

    @property
    def hash(self) -> str:
        """Twelve hex digits over all keys that change the training's numbers."""
        irrelevant: Any = {"evaluation": True, "data": {"eval_problems"}, "train": {"checkpoint_every"}}
        content = json.dumps(self.model_dump(exclude=irrelevant), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


Section = TypeVar("Section", bound=BaseModel)


def configs_folder() -> Path:
    """`configs/` of the working tree: the current folder's or the nearest parent's."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "configs" / "scales").is_dir():
            return folder / "configs"
    raise UserError("no configs/ folder here or above: run the command inside a checkout of estr")


def parse(model: type[Section], data: Any, source: str) -> Section:
    """Validate `data`; the first problem becomes one line with source and key."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(top level)"
        raise UserError(f"{source}: key {key!r}: {first['msg']} (got {first['input']!r})") from error


def read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def _read(model: type[Section], kind: str, name: str) -> Section:
    folder = configs_folder() / kind
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise UserError(f"unknown {kind[:-1]} {name!r}: {folder.name}/ has {known}")
    return parse(model, read_yaml(path), f"configs/{kind}/{name}.yaml")


@cache
def load_scale(name: str) -> ScaleConfig:
    return _read(ScaleConfig, "scales", name)


@cache
def load_sizes(scale: str, task: str) -> TaskSizes:
    """The task's sizes at a scale: the scale's sections with the task's changes."""
    source = f"configs/scales/{scale}.yaml"
    sizes = load_scale(scale)
    if task not in sizes.tasks:
        raise UserError(f"{source}: key 'tasks' lacks the task {task!r}")
    if task not in COUNTERPARTS:
        raise UserError(f"{source}: tasks.{task}: there is a laptop counterpart for {', '.join(COUNTERPARTS)} only")
    chosen = sizes.tasks[task]
    sections = {
        name: getattr(sizes, name).model_dump() | getattr(chosen, name)
        for name in ("policy", "data", "pretrain", "train", "evaluation")
    }
    return TaskSizes(
        seeds=chosen.seeds or sizes.seeds,
        counterpart=parse(COUNTERPARTS[task], chosen.counterpart, f"{source}, tasks.{task}.counterpart"),
        policy=parse(PolicySizes, sections["policy"], f"{source}, tasks.{task}.policy"),
        data=parse(DataSizes, sections["data"], f"{source}, tasks.{task}.data"),
        pretrain=parse(PretrainSettings, sections["pretrain"], f"{source}, tasks.{task}.pretrain"),
        train=parse(TrainSettings, sections["train"], f"{source}, tasks.{task}.train"),
        evaluation=parse(EvaluationSettings, sections["evaluation"], f"{source}, tasks.{task}.evaluation"),
    )


@cache
def load_task(name: str) -> TaskConfig:
    return _read(TaskConfig, "tasks", name)


@cache
def load_method(name: str) -> MethodConfig:
    return _read(MethodConfig, "methods", name)


@cache
def load_experiment(name: str) -> ExperimentConfig:
    return _read(ExperimentConfig, "experiments", name)


def parse_label(label: str) -> tuple[str, dict[str, str | int | float]]:
    """`estr__intra=1__tau=0.7` -> ("estr", {"intra": 1, "tau": 0.7})."""
    method, *pairs = label.split("__")
    overrides = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not re.fullmatch(r"[a-z_]+", key) or not re.fullmatch(r"[A-Za-z0-9.+-]+", text):
            raise UserError(f"run label {label!r}: {pair!r} is not key=value")
        overrides[key] = yaml.safe_load(text)
        if isinstance(overrides[key], str) and re.fullmatch(r"[0-9.]+e[+-]?[0-9]+", text):
            overrides[key] = float(text)
    return method, overrides


def resolve(scale: str, task: str, label: str, seed: int) -> RunConfig:
    """The configuration of one run.

    Overrides name a staleness component (`intra`, `inter`), a training setting (`learning_rate`), a threshold of
    the method's rule (`tau`), or `thresholds=matched`: calibrate the rule to ESTR's masked fraction. Only the
    shortest label is accepted, so that equal runs have equal names.
    """
    method, overrides = parse_label(label)
    config = _resolve(scale, task, method, overrides, seed)
    if config.label != label:
        raise UserError(f"run label {label!r}: write it as {config.label!r}, so that equal runs have equal names")
    return config


def _resolve(scale: str, task: str, method: str, overrides: Mapping[str, str | int | float], seed: int) -> RunConfig:
    """`resolve` for overrides in any form; the result's label is the shortest one."""
    task_config, method_config, sizes = load_task(task), load_method(method), load_sizes(scale, task)
    staleness = {} if method_config.synchronous else task_config.staleness.model_dump()
    train = sizes.train.model_dump()
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
    config = parse(
        RunConfig,
        {
            "scale": scale,
            "task": task,
            "method": method,
            "overrides": changed,
            "seed": seed,
            "engine": load_scale(scale).engine,
            "staleness": {"intra": 0, "inter": 0} | staleness,
            "rule": method_config.rule,
            "thresholds": thresholds,
            "matched_budget": "thresholds" in changed,
            "policy": sizes.policy.model_dump(),
            "counterpart": sizes.counterpart.model_dump(),
            "data": sizes.data.model_dump(),
            "pretrain": sizes.pretrain.model_dump(),
            "train": train,
            "evaluation": sizes.evaluation.model_dump(),
        },
        f"run {scale}/{task}/{method} with {dict(overrides)}, seed {seed}",
    )
    keep_rule(config)
    return config


def keep_rule(config: RunConfig) -> "KeepRule":
    """The run's keep rule; an unknown rule or a bad threshold names the method's file."""
    from estr.algorithm.rules import build_rule

    try:
        return build_rule(config.rule, **config.thresholds)
    except ValueError as error:
        raise UserError(f"configs/methods/{config.method}.yaml or an override of it: {error}") from error


def expand(experiment: ExperimentConfig, scale: str) -> list[RunConfig]:
    """Every run of the experiment at a scale, in the order of the file, each once."""
    runs: dict[str, RunConfig] = {}
    for matrix in experiment.runs:
        for task, method in itertools.product(matrix.tasks, matrix.methods):
            seeds = load_sizes(scale, task).seeds if matrix.seeds is None else matrix.seeds
            for values in itertools.product(*matrix.overrides.values()):
                overrides = dict(zip(matrix.overrides, values, strict=True))
                for seed in seeds:
                    run = _resolve(scale, task, method, overrides, seed)
                    runs[run.run_id] = run
    return list(runs.values())
