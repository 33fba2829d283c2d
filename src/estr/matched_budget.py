"""The matched budget: thresholds at which every baseline masks as many tokens as ESTR on one shared batch."""

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from estr.algorithm.calibration import calibrate
from estr.algorithm.signals import TokenSignals
from estr.config import BUDGET_FROM, MATCHED, ClusterRun, Run, RunConfig, keep_rule, load_any_scale, resolve_any
from estr.errors import UserError
from estr.files.typed import read_frame, require_fields
from estr.layout import Layout, existing
from estr.provenance import check_files, read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

RunT = TypeVar("RunT", RunConfig, ClusterRun)
DTYPES = {float: np.float32, int: np.int64}
SIGNAL_COLUMNS: dict[str, type] = {
    **{name: float for name in ("behavior_logprob", "target_logprob", "entropy", "advantage")},
    "weight_version": int,
}


def calibrate_matched_budget(layout: Layout, task: str, reference: Run) -> None:
    """Thresholds at which each baseline masks as many tokens as ESTR on the early tokens of a vanilla async run.

    The paper calibrates on one step-0 batch (`calibration_steps` 1). A tiny policy's step-0 mismatch is far below every
    threshold, so at laptop scale more steps of the reference run are shared, until staleness has set in.
    """
    source = existing(layout.run(reference) / "tokens.parquet", f"estr train {task} {reference.label}")
    check_files(source.with_name("run.json"), source.name)
    last_step = load_any_scale(reference.scale).calibration_steps
    updates = _updates(read_frame(source, {"step": int} | SIGNAL_COLUMNS, "train the run again"), last_step)
    if not updates:
        raise UserError(f"{source}: holds no token of the first {last_step} steps; train the run again")
    tokens = sum(update.response_tokens for update in updates)
    budget_rule = keep_rule(resolve_any(reference.scale, task, BUDGET_FROM, reference.seed))
    budget = 1 - sum(int(budget_rule.keep(update).sum()) for update in updates) / tokens
    rules = {}
    for method in MATCHED:
        published = keep_rule(resolve_any(reference.scale, task, method, reference.seed))
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


def with_thresholds(layout: Layout, config: RunT) -> RunT:
    """The configuration with the calibrated thresholds, if it asks for the matched budget."""
    if not config.matched_budget:
        return config
    path = existing(layout.calibration(config.task), f"estr calibrate {config.task}")
    rules = require_fields(path, read_json(path), {"rules": dict})["rules"]
    if config.method not in rules:
        raise UserError(f"{path}: no matched thresholds for {config.method!r}; it has {', '.join(rules)}")
    rule = require_fields(path, rules[config.method], {"name": str}, f"rules.{config.method}.")
    found = {key: value for key, value in rule.items() if key not in ("name", "achieved")}
    calibrated = config.model_copy(update={"thresholds": found})
    try:
        keep_rule(calibrated)
    except UserError as error:
        raise UserError(f"{path}: field 'rules.{config.method}': {error}; calibrate again") from error
    return calibrated


def _updates(tokens: "pd.DataFrame", last_step: int) -> list[TokenSignals]:
    """The recorded tokens of each update up to `last_step`, as one row per update."""
    updates = []
    for step in range(1, last_step + 1):
        columns = tokens[tokens["step"] == step]
        if len(columns) == 0:
            continue
        row = {name: torch.tensor(columns[name].to_numpy(DTYPES[kind]))[None] for name, kind in SIGNAL_COLUMNS.items()}
        updates.append(TokenSignals(**row, response_mask=torch.ones(1, len(columns), dtype=torch.bool)))
    return updates
