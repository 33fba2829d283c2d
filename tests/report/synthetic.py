"""Synthetic results folders, written by the contract of the run files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

RULES = {
    "sync": {"name": "keep_all"},
    "async": {"name": "keep_all"},
    "icepop": {"name": "ratio_interval", "low": 0.5, "high": 5.0},
    "kpop": {"name": "binary_kl", "phi": 0.1},
    "m2po": {"name": "second_moment", "budget": 0.04, "eligible": "all"},
    "estr": {"name": "entropy_scaled", "tau": 1.6, "eps": 0.01},
}
MATCHED_RULES = {
    "icepop": {"name": "ratio_interval", "low": 0.25, "high": 26.1},
    "kpop": {"name": "binary_kl", "phi": 0.31},
    "m2po": {"name": "second_moment", "budget": 0.11, "eligible": "all"},
}
MATCHED_LABELS = [f"{method}__thresholds=matched" for method in MATCHED_RULES]
LEVEL = {"sync": 0.50, "async": 0.28, "icepop": 0.36, "kpop": 0.38, "m2po": 0.42, "estr": 0.46}
MASKED = {"sync": 0.0, "async": 0.0, "icepop": 8e-3, "kpop": 5e-3, "m2po": 3e-3, "estr": 6e-4}
STEPS, PROBLEMS, K = 60, 40, 4


class ResultsFolder:
    """Writes runs under <root>/results/laptop and remembers their folders."""

    def __init__(self, root: Path) -> None:
        self.scale_dir = root / "results" / "laptop"
        self.run_dirs: list[Path] = []

    def write(self, label: str, seed: int, *, correct: list[int] | None = None, metrics: dict | None = None) -> Path:
        """One finished run; `correct` and `metrics` (columns of equal length) replace the made-up data."""
        method = label.split("__")[0]
        rng = np.random.default_rng([seed, *label.encode()])
        frame = _metrics(label, rng) if metrics is None else pd.DataFrame(metrics)
        if correct is None:
            correct = rng.binomial(K, np.clip(rng.normal(LEVEL[method], 0.25, PROBLEMS), 0, 1)).tolist()
        folder = self.scale_dir / "runs" / "dapo_math" / label / f"seed{seed}"
        folder.mkdir(parents=True)
        run_id = f"laptop/dapo_math/{label}/seed{seed}"
        frame.to_parquet(folder / "metrics.parquet")
        _tokens(rng).to_parquet(folder / "tokens.parquet")
        counts = np.array(correct)
        write_json(
            folder / "evaluation.json",
            {
                "task": "dapo_math",
                "scale": "laptop",
                "run_id": run_id,
                "steps": len(frame),
                "k": K,
                "n_problems": len(counts),
                "avg@4": counts.mean() / K,
                "avg@4_ci": [0.0, 1.0],
                "pass@4": (counts > 0).mean(),
                "pass@4_ci": [0.0, 1.0],
                "warm_start": {
                    "avg@4": 0.31,
                    "avg@4_ci": [0.28, 0.34],
                    "pass@4": 0.55,
                    "pass@4_ci": [0.5, 0.6],
                },
                "per_problem_correct": correct,
            },
        )
        write_json(
            folder / "run.json",
            {
                "run_id": run_id,
                "scale": "laptop",
                "task": "dapo_math",
                "method": method,
                "label": label,
                "seed": seed,
                "overrides": {},
                "config": {
                    "engine": "embedded",
                    "train": {"learning_rate": 1e-4},
                    "staleness": {"intra": 8, "inter": 10},
                },
                "config_hash": f"{rng.integers(16**12):012x}",
                "commit": "0123abc",
                "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
                "machine": {"cpu": "test cpu", "cores": 2},
                "wall_seconds": 90.0,
                "status": "complete",
                "steps": len(frame),
                "mlflow_run_id": f"mlflow-{method}-{seed}",
                "rule": MATCHED_RULES[method] if "matched" in label else RULES[method],
            },
        )
        self.run_dirs.append(folder)
        return folder

    def write_calibration(self) -> Path:
        path = self.scale_dir / "calibration" / "dapo_math.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        rules = {method: rule | {"achieved": 5e-4} for method, rule in MATCHED_RULES.items()}
        write_json(path, {"budget": 6e-4, "source_runs": [], "rules": rules})
        return path


def write_json(path: Path, record: dict) -> None:
    path.write_text(json.dumps(record))


def _metrics(label: str, rng: np.random.Generator) -> pd.DataFrame:
    method = label.split("__")[0]
    step = np.arange(1, STEPS + 1)
    progress = step / STEPS
    masked = MASKED[method] * (0.1 if "matched" in label else 1) * (0.5 + progress) * rng.lognormal(0, 0.3, STEPS)
    masked[::7] = 0
    return pd.DataFrame(
        {
            "step": step,
            "reward": 0.3 + (LEVEL[method] - 0.3) * progress + rng.normal(0, 0.02, STEPS),
            "masked_fraction": masked,
            "masked_entropy": np.where(masked > 0, 0.2 if method == "estr" else 1.6, np.nan),
            "response_tokens": rng.integers(1200, 1500, STEPS).astype(float),
            "ratio_deviation": (0.01 + 0.05 * (0.5 - LEVEL[method])) * (1 + progress) * rng.lognormal(0, 0.1, STEPS),
            "probe_estr_masked_fraction": 2e-3,
            "kl_to_behavior": 1e-3 * (1 + 8 * (0.5 - LEVEL[method]) * progress) * rng.lognormal(0, 0.1, STEPS),
        }
    )


def _tokens(rng: np.random.Generator, sequences: int = 60, length: int = 12, switch: int = 6) -> pd.DataFrame:
    position = np.tile(np.arange(length), sequences)
    offset = position - switch
    entropy = rng.gamma(0.6, 0.35, len(position)) * np.where(offset == 0, 1.8, 1)
    log_ratio = 0.15 * np.sqrt(entropy + 0.01) * rng.standard_t(3, len(position))
    behavior = -entropy - 0.01
    return pd.DataFrame(
        {
            "step": np.repeat(np.arange(sequences) // 20 + 1, length),
            "sequence": np.repeat(np.arange(sequences), length),
            "position": position,
            "token": 1,
            "weight_version": np.where(offset < 0, 0, 1),
            "target_version": 5,
            "behavior_logprob": behavior.astype(np.float32),
            "target_logprob": (behavior + log_ratio).astype(np.float32),
            "entropy": entropy.astype(np.float32),
            "advantage": np.float32(0.5),
            "reward": np.float32(1),
            "kept": log_ratio**2 / (entropy + 0.01) <= 1.6,
            "switch_offset": offset,
        }
    )
