"""Synthetic results folders of several tasks, written by the contract of the run files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.config import parse_label

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
COMPONENT_RULES = {
    "fixed_magnitude": {"name": "fixed_magnitude", "c": 0.6931},
    "exploration_preserving": {"name": "exploration_preserving", "c": 0.6931, "tau": 1.0, "eps": 0.01},
    "outlier_suppressing": {"name": "outlier_suppressing", "c": 0.6931, "tau": 1.0, "eps": 0.01},
}
LEVEL = {"sync": 0.50, "async": 0.28, "icepop": 0.36, "kpop": 0.38, "m2po": 0.42, "estr": 0.46}
LEVEL |= {"fixed_magnitude": 0.36, "exploration_preserving": 0.40, "outlier_suppressing": 0.39}
MASKED = {"sync": 0.0, "async": 0.0, "icepop": 8e-3, "kpop": 5e-3, "m2po": 3e-3, "estr": 6e-4}
MASKED |= {"fixed_magnitude": 8e-3, "exploration_preserving": 5e-4, "outlier_suppressing": 9e-3}
STEPS, PROBLEMS = 60, 40
TASKS: dict[str, dict[str, Any]] = {
    "browsecomp_plus": {"rule": "browsecomp_plus_exact", "k": 2, "turns": 4.0, "recall": 0.6, "level": -0.1},
    "gsm8k": {"rule": "gsm8k_flexible", "k": 4, "turns": 3.0, "level": 0.3},
    "dapo_math": {"rule": "dapo_math", "k": 4, "turns": 1.0, "level": 0.0},
}


class ResultsFolder:
    """Writes runs under <root>/results/laptop and remembers their folders."""

    def __init__(self, root: Path) -> None:
        self.scale_dir = root / "results" / "laptop"
        self.run_dirs: list[Path] = []

    def write(
        self,
        label: str,
        seed: int,
        *,
        task: str = "dapo_math",
        correct: list[int] | None = None,
        metrics: dict | None = None,
    ) -> Path:
        """One finished run; `correct` and `metrics` (columns of equal length) replace the made-up data."""
        method, overrides = parse_label(label)
        rng = np.random.default_rng([seed, *label.encode(), *task.encode()])
        frame = _metrics(label, rng) if metrics is None else pd.DataFrame(metrics)
        k, level = TASKS[task]["k"], LEVEL[method] + TASKS[task]["level"]
        if correct is None:
            correct = rng.binomial(k, np.clip(rng.normal(level, 0.25, PROBLEMS), 0, 1)).tolist()
        folder = self.scale_dir / "runs" / task / label / f"seed{seed}"
        folder.mkdir(parents=True)
        run_id = f"laptop/{task}/{label}/seed{seed}"
        frame.to_parquet(folder / "metrics.parquet")
        _tokens(rng, dialogue=TASKS[task]["turns"] > 1).to_parquet(folder / "tokens.parquet")
        write_json(
            folder / "evaluation.json",
            {
                "task": task,
                "scale": "laptop",
                "run_id": run_id,
                "steps": len(frame),
                "engine": "embedded",
                "rule": {"name": TASKS[task]["rule"], "version": 1},
                "judge": None,
                "k": k,
                "n_problems": len(correct),
                "problems_sha256": f"set of {len(correct)}",
                "missing": 0,
                **scores(np.array(correct), k),
                "agent": _agent(task, 1 + seed),
                "warm_start": {
                    f"avg@{k}": 0.31,
                    f"avg@{k}_ci": [0.28, 0.34],
                    f"pass@{k}": 0.55,
                    f"pass@{k}_ci": [0.5, 0.6],
                    f"best@{k}": 0.52,
                    f"best@{k}_ci": [0.47, 0.57],
                    "agent": _agent(task, 0),
                },
                "per_problem_correct": correct,
            },
        )
        write_json(
            folder / "run.json",
            {
                "run_id": run_id,
                "scale": "laptop",
                "task": task,
                "method": method,
                "label": label,
                "seed": seed,
                "overrides": overrides,
                "config": _config(overrides),
                "config_hash": f"{rng.integers(16**12):012x}",
                "commit": "0123abc",
                "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
                "machine": {"processor": "test cpu", "cores": 2, "python": "3.11"},
                "wall_seconds": 90.0,
                "status": "complete",
                "steps": len(frame),
                "mlflow_run_id": f"mlflow-{task}-{method}-{seed}",
                "rule": _rule(method, overrides),
            },
        )
        self.run_dirs.append(folder)
        return folder

    def write_calibration(self, task: str = "dapo_math", steps: tuple[int, int] = (1, 50)) -> Path:
        path = self.scale_dir / "calibration" / f"{task}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        rules = {method: rule | {"achieved": 5e-4} for method, rule in MATCHED_RULES.items()}
        shared = {"budget": 6e-4, "tokens": 50_000, "steps": list(steps), "source_runs": [f"laptop/{task}/async/seed0"]}
        write_json(path, shared | {"rules": rules})
        return path


def write_study(results: ResultsFolder, seeds: dict[str, int]) -> list[Path]:
    """Every method and matched-budget variant, so many seeds per task; returns the calibration files."""
    for task, count in seeds.items():
        for label in [*RULES, *MATCHED_LABELS]:
            for seed in range(count):
                results.write(label, seed, task=task)
    return [results.write_calibration(task) for task in seeds]


def write_json(path: Path, record: dict) -> None:
    path.write_text(json.dumps(record))


def scores(correct: np.ndarray, k: int) -> dict[str, Any]:
    """avg@k, pass@k and verl's best@k with intervals that nothing reads."""
    values = {"avg": correct / k, "pass": correct > 0, "best": 1 - (1 - correct / k) ** k}
    means = {f"{name}@{k}": float(value.mean()) for name, value in values.items() if len(correct)}
    return means | {f"{name}_ci": [0.0, 1.0] for name in means}


def _rule(method: str, overrides: dict[str, Any]) -> dict[str, Any]:
    rule = (MATCHED_RULES if "thresholds" in overrides else RULES | COMPONENT_RULES)[method]
    return rule | {key: value for key, value in overrides.items() if key in rule}


def _config(overrides: dict[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration that the report reads."""
    train: dict[str, Any] = {"learning_rate": 1e-4, "prompts": 32, "validate_problems": 64, "steps": 60, "group": 8}
    train |= {"weight_decay": 0.01, "clip_low": 0.2, "clip_high": 0.28, "grad_norm_limit": 1.0, "temperature": 1.0}
    train |= {"max_tokens": 18, "on_switch": "retract"}
    staleness = {"intra": 8, "inter": 10}
    return {
        "engine": "embedded",
        "policy": {"num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 96},
        "counterpart": {},
        "data": {"train_problems": 8192},
        "pretrain": {"steps": 1600, "batch_size": 128, "learning_rate": 3e-3},
        "evaluation": {"samples": 4},
        "train": {key: overrides.get(key, value) for key, value in train.items()},
        "staleness": {key: overrides.get(key, value) for key, value in staleness.items()},
    }


def _agent(task: str, extra: int) -> dict[str, float]:
    """How the agent acted; `extra` makes the seeds differ."""
    turns = TASKS[task]["turns"]
    record = {"turns": turns, "tool_calls": turns - 1, "tool_errors": 0.0, "tokens": 10 * turns + extra}
    record["completed"] = 0.9
    return record | ({"recall": TASKS[task]["recall"]} if "recall" in TASKS[task] else {})


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
            "staleness_intra": np.minimum(step, 8.0),
            "staleness_inter": np.minimum(step, 10.0),
            "kl_to_behavior": 1e-3 * (1 + 8 * (0.5 - LEVEL[method]) * progress) * rng.lognormal(0, 0.1, STEPS),
            "entropy": 0.3 - 0.1 * progress + rng.normal(0, 0.01, STEPS),
            "sequences_masked_fraction": np.minimum(1, 20 * masked),
            "grad_norm": rng.lognormal(0, 0.3, STEPS),
            "turns": 4 - progress + rng.normal(0, 0.05, STEPS),
            "response_length": 20 - 5 * progress + rng.normal(0, 0.5, STEPS),
            "log_perplexity": 0.3 - 0.1 * progress + rng.normal(0, 0.01, STEPS),
        }
    )


def _tokens(rng: np.random.Generator, dialogue: bool, sequences: int = 60, length: int = 12) -> pd.DataFrame:
    """Three steps that switch version at different places; in a dialogue tool output lies in the middle."""
    place = np.tile(np.arange(length), sequences)
    step = np.repeat(np.arange(sequences) // 20 + 1, length)
    offset = place - (4 + step)
    tool_output = np.repeat(rng.integers(1, 9, sequences) if dialogue else np.zeros(sequences, int), length)
    entropy = rng.gamma(0.6, 0.35, len(place)) * np.where(offset == 0, 1.8, 1)
    log_ratio = 0.15 * np.sqrt(entropy + 0.01) * rng.standard_t(3, len(place))
    behavior = -entropy - 0.01
    return pd.DataFrame(
        {
            "step": step,
            "sequence": np.repeat(np.arange(sequences), length),
            "position": place + np.where(place < length // 2, 0, tool_output),
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
