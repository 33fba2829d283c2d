"""Token samples of a real language model: sample.json and tokens.parquet of a folder results/<scale>/samples/<name>."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.files.typed import Kind, read_frame, require_fields
from estr.provenance import check_files, read_json
from estr.report.runs import AGAIN, TOKEN_COLUMNS

SAMPLE_FIELDS: dict[str, Kind] = {
    **{name: str for name in ("name", "model", "licence", "commit")},
    "prompts": int,
    "settings": dict,
}
SCENARIO_FIELDS: dict[str, Kind] = {
    "description": str,
    "tokens": int,
    "behavior_dtype": str,
    "target_dtype": str,
    "gradient_steps": int,
}
SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Scenario:
    """How the behavior and the target policy of some tokens differ. gradient_steps: updates between their weights."""

    description: str
    tokens: int
    behavior_dtype: str
    target_dtype: str
    gradient_steps: int

    @property
    def maker(self) -> str:
        """e.g. ``bf16 against fp32, 4 gradient steps apart``."""
        behavior, target = (SHORT_DTYPES.get(name, name) for name in (self.behavior_dtype, self.target_dtype))
        steps = f"{self.gradient_steps} gradient {'step' if self.gradient_steps == 1 else 'steps'} apart"
        return f"{behavior} against {target}, {steps if self.gradient_steps else 'same weights'}"


@dataclass(frozen=True)
class Sample:
    """A sample of tokens of one model, in one or more scenarios by name.

    Sequences are numbered within a scenario; `group` consecutive ones are responses to one problem.
    """

    path: Path
    name: str
    model: str
    licence: str
    commit: str
    prompts: int
    group: int
    scenarios: Mapping[str, Scenario]

    @property
    def short_model(self) -> str:
        """The model's name without its publisher, e.g. ``SmolLM2-135M``."""
        return self.model.rsplit("/", 1)[-1].removesuffix("-Instruct")

    def read_tokens(self, scenario: str) -> pd.DataFrame:
        """The tokens of a scenario with finite signals; adds log_ratio (nats, Eq. 7).

        Raises:
            UserError: the file is missing, damaged, malformed or not as long as sample.json says, a position of a
                sequence is there twice, or no token has finite signals.
        """
        path = self.path / "tokens.parquet"
        check_files(self.path / "sample.json")
        tokens = read_frame(path, TOKEN_COLUMNS | {"scenario": str}, AGAIN)
        tokens = tokens[tokens["scenario"] == scenario]
        expected = self.scenarios[scenario].tokens
        if len(tokens) != expected:
            raise UserError(f"{path}: {len(tokens)} tokens of scenario '{scenario}', sample.json says {expected}")
        if tokens.duplicated(["sequence", "position"]).any():
            raise UserError(f"{path}: scenario '{scenario}' has a position of one sequence twice")
        tokens = tokens.assign(log_ratio=tokens["target_logprob"] - tokens["behavior_logprob"])
        finite = np.isfinite(tokens[["log_ratio", "entropy"]].to_numpy()).all(axis=1)
        if not finite.any():
            raise UserError(f"{path}: scenario '{scenario}' holds no token with finite signals")
        usable: pd.DataFrame = tokens[finite].reset_index(drop=True)
        return usable


def load_sample(path: Path) -> Sample:
    """Load sample.json; tokens are read per scenario by `Sample.read_tokens`.

    Raises:
        UserError: sample.json is missing, or a field of it is missing or malformed.
    """
    record_path = path / "sample.json"
    record = read_json(record_path)
    require_fields(record_path, record, SAMPLE_FIELDS | {"scenarios": dict})
    require_fields(record_path, record["settings"], {"group": int}, "settings.")
    scenarios = {}
    for name, fields in record["scenarios"].items():
        require_fields(record_path, fields, SCENARIO_FIELDS, f"scenarios.{name}.")
        scenarios[name] = Scenario(**{field: fields[field] for field in SCENARIO_FIELDS})
    named = {field: record[field] for field in SAMPLE_FIELDS if field != "settings"}
    return Sample(path=path, group=record["settings"]["group"], scenarios=scenarios, **named)
