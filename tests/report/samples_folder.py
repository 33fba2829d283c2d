"""A synthetic token sample of a language model, written by the contract of results/<scale>/samples/<name>."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from synthetic import write_json

from estr.records import NO_SWITCH

SEQUENCES, LENGTH, GROUP = 90, 40, 3
SCENARIOS: dict[str, dict[str, Any]] = {
    "mismatch": {"gradient_steps": 0, "sigma": 0.02},
    "stale": {"gradient_steps": 4, "sigma": 0.15},
    "switch": {"gradient_steps": 4, "sigma": 0.15},
}


def write_sample(folder: Path, scenarios: tuple[str, ...] = tuple(SCENARIOS), seed: int = 0) -> Path:
    """Tokens whose log-ratios have the second moment sigma^2 H, with off-mode outliers at low entropy.

    In `switch` every sequence changes its version at a place of its own, where its entropy is four times as large.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    parts, records = [], {}
    for name in scenarios:
        tokens = _tokens(rng, name)
        parts.append(tokens)
        records[name] = {
            "description": f"made-up tokens, {name}",
            "tokens": len(tokens),
            "behavior_dtype": "bfloat16",
            "target_dtype": "float32",
            "gradient_steps": SCENARIOS[name]["gradient_steps"],
        }
    pd.concat(parts, ignore_index=True).to_parquet(folder / "tokens.parquet")
    write_json(
        folder / "sample.json",
        {
            "name": folder.name,
            "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "sha256": "0" * 64,
            "licence": "Apache-2.0",
            "prompts": SEQUENCES // GROUP,
            "settings": {"group": GROUP},
            "commit": "0123abc",
            "machine": {"processor": "test cpu", "cores": 2},
            "packages": {"torch": "2.13.0"},
            "seconds": 60.0,
            "scenarios": records,
        },
    )
    return folder


def _tokens(rng: np.random.Generator, scenario: str) -> pd.DataFrame:
    place = np.tile(np.arange(LENGTH), SEQUENCES)
    sequence = np.repeat(np.arange(SEQUENCES), LENGTH)
    steps = SCENARIOS[scenario]["gradient_steps"]
    entropy = rng.gamma(0.5, 1.2, len(place))
    offset, version = np.full(len(place), NO_SWITCH), np.zeros(len(place), int)
    if scenario == "switch":
        switch = rng.integers(12, LENGTH - 12, SEQUENCES)[sequence]
        offset, version = place - switch, np.where(place >= switch, steps, 0)
        entropy = entropy * np.where(offset == 0, 4, 1)
    log_ratio = SCENARIOS[scenario]["sigma"] * np.sqrt(entropy) * rng.standard_normal(len(place))
    behavior = -entropy - 0.01
    off_mode = (entropy < 0.03) & (rng.random(len(place)) < 0.1)
    behavior[off_mode] = np.log(0.003)
    log_ratio[off_mode] *= 40
    return pd.DataFrame(
        {
            "step": np.where(version == steps, 0, steps) if scenario == "switch" else steps,
            "sequence": sequence,
            "position": place,
            "token": 1,
            "weight_version": version,
            "target_version": steps,
            "behavior_logprob": behavior.astype(np.float32),
            "target_logprob": (behavior + log_ratio).astype(np.float32),
            "entropy": entropy.astype(np.float32),
            "advantage": np.float32(0.5),
            "reward": np.float32(1),
            "kept": log_ratio**2 / (entropy + 0.01) <= 1.6,
            "switch_offset": offset,
            "scenario": scenario,
        }
    )
