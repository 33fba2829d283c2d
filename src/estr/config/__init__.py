"""Typed configuration: YAML files under `configs/` -> one resolved, hashed `RunConfig` per run."""

from estr.config.files import (
    configs_folder,
    load_experiment,
    load_method,
    load_scale,
    load_sizes,
    load_task,
    parse,
    read_yaml,
)
from estr.config.runs import BUDGET_FROM, MATCHED, PROBES, RunConfig, expand, keep_rule, parse_label, resolve
from estr.config.sections import (
    ConcurrentSettings,
    DataSizes,
    Deviations,
    EvaluationSettings,
    PolicySizes,
    PretrainSettings,
    SampleSettings,
    StudyConfig,
)

__all__ = [
    "BUDGET_FROM",
    "MATCHED",
    "PROBES",
    "ConcurrentSettings",
    "DataSizes",
    "Deviations",
    "EvaluationSettings",
    "PolicySizes",
    "PretrainSettings",
    "RunConfig",
    "SampleSettings",
    "StudyConfig",
    "configs_folder",
    "expand",
    "keep_rule",
    "load_experiment",
    "load_method",
    "load_scale",
    "load_sizes",
    "load_task",
    "parse",
    "parse_label",
    "read_yaml",
    "resolve",
]
