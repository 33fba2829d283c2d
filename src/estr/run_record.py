"""`run.json`: the record of a finished run, the same from either engine."""

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estr.algorithm.rules import KeepRule
from estr.config import Run, load_method
from estr.files.typed import require_fields
from estr.provenance import commit, file_digests, is_intact, machine, packages, read_json

OUTPUTS = ("metrics.parquet", "tokens.parquet", "policy/*")
logger = logging.getLogger(__name__)


def run_record(
    config: Run,
    rule: KeepRule,
    inputs_hash: str,
    seconds: float,
    steps: int,
    mlflow_run_id: str | None,
    folder: Path,
) -> dict[str, Any]:
    """Its contents; `seconds` is the time spent training, `steps` the rows of `metrics.parquet`.

    `files` are the SHA-256 of what the run left in `folder`.
    """
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
        "files": file_digests(folder, OUTPUTS),
    }


def is_complete(folder: Path, inputs_hash: str) -> bool:
    """Is the run of these inputs there, with every file as it was written? If not, a warning names the file.

    Another warning says what to delete to train a complete run again: verl's keeps its state, from which `run.json`
    alone would be made anew.
    """
    path = folder / "run.json"
    if not path.exists() or not is_intact(path):
        return False
    record = require_fields(path, read_json(path), {"inputs_hash": str, "run_id": str})
    if record["inputs_hash"] != inputs_hash:
        return False
    state = folder / "state" / inputs_hash
    remains = f"{path} and {state}" if state.exists() else str(path)
    logger.warning("%s is complete; delete %s to train it again", record["run_id"], remains)
    return True
