"""The difference between two evaluations of the same problems."""

from pathlib import Path
from typing import Any

import numpy as np

from estr.errors import UserError
from estr.evaluation.metrics import bootstrap_interval_over_sets
from estr.evaluation.paired import PairedDifference
from estr.provenance import read_json


def compare(a: Path, b: Path, seed: int = 0) -> PairedDifference:
    """avg@k of the evaluation.json `a` minus that of `b`, as fractions, paired by problem.

    The interval resamples problems (within each set, where there are several): one evaluation says nothing about the
    spread between training seeds.

    Raises:
        UserError: a file is not an evaluation, or the two differ in problems, k, rule or judge.
    """
    first, second = read_json(a), read_json(b)
    for name in ("task", "problems_sha256", "k", "rule", "judge"):
        values = [_field(content, name, path) for content, path in ((first, a), (second, b))]
        if values[0] != values[1]:
            raise UserError(
                f"{a} and {b} cannot be compared: {name} is {values[0]!r} in one, {values[1]!r} in the other"
            )
    differences = [x - y for x, y in zip(_shares(first, a), _shares(second, b), strict=True)]
    low, high = bootstrap_interval_over_sets(differences, seed)
    return PairedDifference(float(np.mean([difference.mean() for difference in differences])), low, high)


def _shares(content: dict[str, Any], path: Path) -> list[np.ndarray]:
    """Per set, the share of each problem's samples that are correct."""
    sets = content.get("sets", {"": content})
    return [
        np.asarray(_field(one, "per_problem_correct", path), dtype=np.float64) / content["k"] for one in sets.values()
    ]


def _field(content: dict[str, Any], name: str, path: Path) -> Any:
    try:
        return content[name]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: the field {name!r} is missing; evaluate again") from error
