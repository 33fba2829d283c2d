"""The difference between two evaluations of the same problems."""

from pathlib import Path
from typing import Any

import numpy as np

from estr.errors import UserError
from estr.evaluation.metrics import bootstrap_interval_over_sets
from estr.evaluation.paired import PairedDifference
from estr.files.typed import Kind, require_fields
from estr.provenance import read_json

COUNTS = "per_problem_correct"
FIELDS: dict[str, Kind] = {"task": str, "problems_sha256": str, "k": int, "rule": dict, "judge": (str, None)}


def compare(a: Path, b: Path, seed: int = 0) -> PairedDifference:
    """avg@k of the evaluation.json `a` minus that of `b`, as fractions, paired by problem.

    The interval resamples problems (within each set, where there are several): one evaluation says nothing about the
    spread between training seeds.

    Raises:
        UserError: a file is not an evaluation, or the two differ in problems, k, rule or judge.
    """
    first, second = (require_fields(path, read_json(path), FIELDS) for path in (a, b))
    for name in ("task", "problems_sha256", "k", "rule", "judge"):
        values = [first[name], second[name]]
        if values[0] != values[1]:
            raise UserError(
                f"{a} and {b} cannot be compared: {name} is {values[0]!r} in one, {values[1]!r} in the other"
            )
    shares = _shares(first, a), _shares(second, b)
    if list(map(len, shares[0])) != list(map(len, shares[1])) or not shares[0]:
        raise UserError(f"{a} and {b} cannot be compared: they differ in the number of problems")
    differences = [x - y for x, y in zip(*shares, strict=True)]
    low, high = bootstrap_interval_over_sets(differences, seed)
    return PairedDifference(float(np.mean([difference.mean() for difference in differences])), low, high)


def _shares(content: dict[str, Any], path: Path) -> list[np.ndarray]:
    """Per set, the share of each problem's samples that are correct."""
    k, sets, shares = content["k"], content.get("sets", {"": content}), []
    for name, part in require_fields(path, {"sets": sets}, {"sets": dict})["sets"].items():
        counts = require_fields(path, part, {COUNTS: list}, f"sets.{name}." if name else "")[COUNTS]
        if not counts or not all(type(count) is int and 0 <= count <= k for count in counts):
            raise UserError(f"{path}: field '{COUNTS}' is no list of counts between 0 and k = {k}; evaluate again")
        shares.append(np.asarray(counts, dtype=np.float64) / k)
    return shares
