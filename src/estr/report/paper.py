"""The paper's own numbers (configs/paper/reported.csv) and its known contradictions."""

import csv
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from estr.config import configs_folder
from estr.errors import UserError

UNITS = {"%", "fraction", "nats", "bool", "1", "s", "x", "tokens", "turns", "tokens/s/GPU"}
BASES = {"table", "prose", "derived"}
SOURCES = {"v1", "v2"}


@dataclass(frozen=True)
class PaperScores:
    """What Table 1 of the paper says about a task: the name in reported.csv, the setting, the metrics."""

    benchmark: str
    setting: str
    avg: str
    passed: str | None

    def metric(self, name: str, k: int) -> str | None:
        """The metric to put beside ours at k samples.

        avg@k has the same expectation at every k, so that avg@1 is the counterpart of avg@4; pass@k has not.
        """
        if name == "avg":
            return self.avg
        return self.passed if self.passed == f"{name}@{k}" else None


TABLE1 = {
    "browsecomp_plus": PaperScores("browsecomp_plus", "Qwen3-30B-A3B", "avg@1", None),
    "gsm8k": PaperScores("gsm8k", "multi-turn, Qwen2.5-7B", "avg@4", "pass@4"),
    "dapo_math": PaperScores("aime_mean", "mean of AIME 2024, 2025 and 2026, Qwen2.5-7B", "avg@4", "pass@4"),
}
"""By our task; the paper trains on DAPO-Math and evaluates on AIME."""

CONTRADICTIONS = (
    "KPop at the matched budget: v1 (Table 7) says that it holds the budget (0.07 % to 0.25 % masked); "
    "v2's prose says that neither magnitude rule does (more than 17 %).",
    "BrowseComp-Plus masking of 4.8 % is placed at step 800, yet 5 epochs of 747 questions in batches of "
    "16 are about 233 steps; v2 elsewhere puts IcePop's jump after step 170, which fits 233.",
    "v2 says that ESTR wins fifteen of sixteen columns. In v1's numbers the lost column is already AIME25 "
    "avg@4 (ESTR 15.64, IcePop 15.78), while v2's appendix has M2PO ahead on PopQA.",
    "No AIME pass@4 value is a multiple of 1/30, so none is an any-of-4 over 30 problems of one run. All "
    "fifteen fit verl's bootstrap best@4 (drawn with replacement) within 0.2 points: support, no proof. "
    "Verdicts are on the unbiased pass@4; our best@4 stands beside it.",
    "The BrowseComp-Plus values of the main table are multiples of 1/83 (a held-out tenth of 830 "
    "questions); those of the sensitivity and ablation tables are not, so they come from another "
    "aggregation.",
    "Sequences with a masked token on DAPO-Math: v1 says IcePop 40-65 % and ESTR below about 5 %; v2 says "
    "40-70 % and below 8 %, with a spike at step 465.",
    "Masked fraction in the batch-size sweep: below 0.6e-3 in v1, below 1.3e-3 in v2.",
)


@dataclass(frozen=True)
class PaperValue:
    """One number of the paper, in the unit that the paper prints (a percentage stays a percentage)."""

    source: str
    artifact: str
    task: str
    setting: str
    method: str
    metric: str
    value: float
    unit: str
    basis: str

    @property
    def provenance(self) -> str:
        """Where the number stands, e.g. ``v1 table`` or ``v2 prose``."""
        return f"{self.source} {self.basis}"


class PaperValues:
    """Look-up of the paper's numbers by (artifact, task, method, metric) and setting."""

    def __init__(self, values: list[PaperValue]) -> None:
        self._values = {(v.artifact, v.task, v.method, v.metric, v.setting): v for v in values}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, artifact: str, task: str, method: str, metric: str, setting: str = "") -> PaperValue | None:
        """The value, in its own unit, or None where the paper gives no number."""
        return self._values.get((artifact, task, method, metric, setting))


def load_paper_values(path: Path | None = None) -> PaperValues:
    """Read and validate the paper's numbers, by default those of configs/paper/reported.csv.

    Raises:
        UserError: missing file, wrong columns, or a bad row; names the file and the line.
    """
    path = path or configs_folder() / "paper" / "reported.csv"
    expected = [field.name for field in fields(PaperValue)]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != expected:
                raise UserError(f"{path}: the columns must be {','.join(expected)}")
            values, keys = [], set()
            for row in reader:
                value = _parse(row, f"{path}, line {reader.line_num}")
                key = (value.artifact, value.task, value.method, value.metric, value.setting)
                if key in keys:
                    raise UserError(f"{path}, line {reader.line_num}: {' '.join(filter(None, key))} stands twice")
                keys.add(key)
                values.append(value)
    except OSError as error:
        raise UserError(f"{path}: the paper's numbers cannot be read ({error.strerror})") from error
    return PaperValues(values)


def _parse(row: dict[str, str], where: str) -> PaperValue:
    if None in row or None in row.values():
        raise UserError(f"{where}: wrong number of fields")
    try:
        number = float(row["value"])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: value '{row['value']}' is not a finite number")
    for column, allowed in (("source", SOURCES), ("unit", UNITS), ("basis", BASES)):
        if row[column] not in allowed:
            raise UserError(f"{where}: {column} '{row[column]}' is not one of {', '.join(sorted(allowed))}")
    for column in ("artifact", "task", "method", "metric"):
        if not row[column]:
            raise UserError(f"{where}: {column} is empty")
    typed: dict[str, Any] = {**row, "value": number}
    return PaperValue(**typed)
