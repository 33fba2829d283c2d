"""Read and validate the files under `configs/`; a mistake is a `UserError` that names file and key."""

import reprlib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from estr.config.cluster import ClusterScale, Site
from estr.config.sections import (
    COUNTERPARTS,
    ConcurrentSettings,
    DataSizes,
    EvaluationSettings,
    ExperimentConfig,
    MethodConfig,
    PolicySizes,
    PretrainSettings,
    ScaleConfig,
    StudyConfig,
    TaskConfig,
    TaskSizes,
    TrainSettings,
)
from estr.config.yaml_files import read_yaml
from estr.errors import UserError

Model = TypeVar("Model", bound=BaseModel)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlevel = 2


def configs_folder() -> Path:
    """`configs/` of the working tree: the current folder's or the nearest parent's."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "configs" / "scales").is_dir():
            return folder / "configs"
    raise UserError("no configs/ folder here or above: run the command inside a checkout of estr")


def parse(model: type[Model], data: Any, source: str) -> Model:
    """Validate `data`; the first problem becomes one line with source and key."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(top level)"
        found = f"key {_SHORT.repr(key)}: {first['msg']} (got {_SHORT.repr(first['input'])})"
        raise UserError(f"{source}: {found}") from error


def _content(kind: str, name: str) -> Any:
    folder = configs_folder() / kind
    files = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if name not in files:
        raise UserError(f"unknown {kind[:-1]} {_SHORT.repr(name)}: {folder.name}/ has {', '.join(files)}")
    return read_yaml(files[name])


def _read(model: type[Model], kind: str, name: str) -> Model:
    return parse(model, _content(kind, name), f"configs/{kind}/{name}.yaml")


@cache
def load_scale(name: str) -> ScaleConfig:
    """A scale of the embedded engine."""
    found = load_any_scale(name)
    if isinstance(found, ClusterScale):
        raise UserError(f"scale {name!r} trains in verl; this is for the embedded engine's: choose smoke or laptop")
    return found


@cache
def load_any_scale(name: str) -> ScaleConfig | ClusterScale:
    """A scale of either engine; the key `engine` says which."""
    content, source = _content("scales", name), f"configs/scales/{name}.yaml"
    if isinstance(content, dict) and content.get("engine") == "verl":
        return parse(ClusterScale, content, source)
    return parse(ScaleConfig, content, source)


def load_study() -> StudyConfig:
    """`configs/config.yaml`."""
    return parse(StudyConfig, read_yaml(configs_folder() / "config.yaml"), "configs/config.yaml")


@cache
def load_site() -> Site:
    """`configs/site.yaml`."""
    path = configs_folder() / "site.yaml"
    return parse(Site, read_yaml(path), "configs/site.yaml")


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
        for name in ("policy", "data", "pretrain", "train", "evaluation", "concurrent")
    }
    return TaskSizes(
        seeds=chosen.seeds or sizes.seeds,
        counterpart=parse(COUNTERPARTS[task], chosen.counterpart, f"{source}, tasks.{task}.counterpart"),
        policy=parse(PolicySizes, sections["policy"], f"{source}, tasks.{task}.policy"),
        data=parse(DataSizes, sections["data"], f"{source}, tasks.{task}.data"),
        pretrain=parse(PretrainSettings, sections["pretrain"], f"{source}, tasks.{task}.pretrain"),
        train=parse(TrainSettings, sections["train"], f"{source}, tasks.{task}.train"),
        evaluation=parse(EvaluationSettings, sections["evaluation"], f"{source}, tasks.{task}.evaluation"),
        concurrent=parse(ConcurrentSettings, sections["concurrent"], f"{source}, tasks.{task}.concurrent"),
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
