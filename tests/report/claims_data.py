"""Evidence for the claims' tests: runs with given curves and scores, and claims judged by their id."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from synthetic import PROBLEMS, TASKS, ResultsFolder

from estr.report.claims.definitions import load_claims
from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import Outcome, attempted

CLAIMS = {claim.entry.id: claim for claim in load_claims()}
STEPS = 40
FALLEN = np.r_[np.full(5, 0.6), np.full(STEPS - 5, 0.05)]  # a reward that collapses at step 12, of 40
FALLEN_LATE = np.r_[np.full(25, 0.6), np.full(STEPS - 25, 0.05)]


def judge(name: str, evidence: Evidence | ResultsFolder, calibrations: Sequence[Path] = ()) -> Outcome:
    """The outcome of a claim of claims.yaml."""
    if isinstance(evidence, ResultsFolder):
        evidence = Evidence(evidence.run_dirs, calibrations)
    return attempted(lambda: CLAIMS[name].check(evidence))


def curves(**columns: float | np.ndarray) -> dict[str, Any]:
    """metrics.parquet of STEPS steps: constants, or what is given."""
    values: dict[str, Any] = {
        "reward": 0.5,
        "masked_fraction": 0.001,
        "masked_entropy": 0.2,
        "response_tokens": 1000.0,
        "ratio_deviation": 0.01,
        "kl_to_behavior": 0.001,
        "entropy": 0.3,
        "sequences_masked_fraction": 0.02,
        "turns": 3.0,
        "response_length": 15.0,
    }
    frame = {name: np.broadcast_to(value, STEPS).astype(float) for name, value in (values | columns).items()}
    return {"step": np.arange(1, STEPS + 1)} | frame


def write(
    folder: ResultsFolder, task: str, label: str, seeds: int = 2, percent: float = 50, **columns: float | np.ndarray
) -> None:
    """Runs of one label whose every answer to that share of the problems is right."""
    k, solved = TASKS[task]["k"], round(PROBLEMS * percent / 100)
    for seed in range(seeds):
        correct = [k] * solved + [0] * (PROBLEMS - solved)
        folder.write(label, seed, task=task, correct=correct, metrics=curves(**columns))
