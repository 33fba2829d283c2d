"""`run.json`: the record of a finished run, the same from either engine."""

import os
from dataclasses import asdict
from typing import Any

from estr.algorithm.rules import KeepRule
from estr.config import Run, load_method
from estr.provenance import commit, machine, packages


def run_record(
    config: Run, rule: KeepRule, inputs_hash: str, seconds: float, steps: int, mlflow_run_id: str | None
) -> dict[str, Any]:
    """Its contents; `seconds` is the time spent training, `steps` the rows of `metrics.parquet`."""
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
        "steps": steps,
        "mlflow_run_id": mlflow_run_id,
        "slurm_jobs": [job] if (job := os.environ.get("SLURM_JOB_ID")) else [],
    }
