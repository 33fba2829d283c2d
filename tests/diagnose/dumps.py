"""Small dumps whose verdicts are computed by hand."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAN = float("nan")
TOKENS: dict[str, list[Any]] = {
    # log-ratio:        0,    0.8,  -0.8,    1,  nan,   0.1
    "behavior_logprob": [-0.1, -1.0, -1.0, -5.0, -0.3, -0.5],
    "target_logprob": [-0.1, -0.2, -1.8, -4.0, NAN, -0.4],
    "entropy": [0.2, 0.1, 2.0, 3.0, 0.5, 0.005],
    "step": [1, 1, 1, 2, 2, 2],
    "sequence": [0, 0, 1, 0, 0, 1],
}
"""Two steps of two trajectories; the fifth token is not finite."""

MASKED = {
    "estr": [1],  # 0.64 / 0.11 > 1.6; 0.64 / 2.01, 1 / 3.01 and 0.01 / 0.015 are not
    "estr_tau_0.5": [1, 5],
    "icepop": [2],  # exp(-0.8) < 0.5; exp(1) < 5
    "kpop": [1, 2],  # binary KL 0.50 and 0.12; 0.007 at the rare token
    "m2po": [1, 2, 3],  # per step only 0 and 0.01 stay
    "fixed_magnitude": [1, 2, 3],  # ln 2 = 0.69
}
"""The finite tokens that each rule drops at its published threshold (ESTR: tau 1.6 and 0.5)."""


def write(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def without(*names: str, **more: Any) -> dict[str, Any]:
    """TOKENS without some columns, and with others."""
    return {name: values for name, values in TOKENS.items() if name not in names} | more


def as_rows(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """The same tokens with one row per trajectory, as verl would name and pad them: two rows of 2 + 1 tokens each."""
    names = {
        "behavior_logprob": "rollout_log_probs",
        "target_logprob": "old_log_probs",
        "entropy": "rollout_entropy",
    }
    parts = [slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 6)]
    rows = {
        names[name]: [columns[name][part] + [0.0] * (3 - len(columns[name][part])) for part in parts] for name in names
    }
    mask = [[1] * len(range(*part.indices(6))) for part in parts]
    return rows | {
        "step": [1, 1, 2, 2],
        "response_mask": [row + [0] * (3 - len(row)) for row in mask],
    }
