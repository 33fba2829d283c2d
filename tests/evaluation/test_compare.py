import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estr.errors import UserError
from estr.evaluation.compare import compare
from estr.evaluation.metrics import bootstrap_interval


def write(path: Path, counts: list[int], **changed: Any) -> Path:
    content = {
        "task": "sums",
        "problems_sha256": "abc",
        "k": 4,
        "rule": {"name": "r", "version": 1},
        "judge": None,
        "per_problem_correct": counts,
    }
    path.write_text(json.dumps(content | changed))
    return path


def test_the_difference_is_paired_by_problem(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 4, 200)
    a, b = write(tmp_path / "a", (counts + 1).tolist()), write(tmp_path / "b", counts.tolist())
    difference = compare(a, b)
    # one sample more on every problem: nothing varies, however much the problems differ
    assert (difference.mean, difference.low, difference.high) == (0.25, 0.25, 0.25)
    assert compare(b, a).mean == -0.25


def test_the_interval_is_that_of_the_problems(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 5, 100), rng.integers(0, 5, 100)
    difference = compare(write(tmp_path / "a", first.tolist()), write(tmp_path / "b", second.tolist()), seed=5)
    assert difference.mean == pytest.approx((first - second).mean() / 4)
    assert (difference.low, difference.high) == bootstrap_interval((first - second) / 4, seed=5)


def test_several_sets_weigh_alike(tmp_path: Path) -> None:
    def sets(small: list[int], large: list[int]) -> dict[str, Any]:
        return {"sets": {"small": {"per_problem_correct": small}, "large": {"per_problem_correct": large}}}

    a = write(tmp_path / "a", [4] + [2] * 9, **sets([4], [2] * 9))
    b = write(tmp_path / "b", [0] + [2] * 9, **sets([0], [2] * 9))
    assert compare(a, b).mean == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("problems_sha256", "def"),
        ("k", 8),
        ("task", "other"),
        ("rule", {"name": "r", "version": 2}),
        ("judge", "model"),
    ],
)
def test_evaluations_of_other_problems_or_scorers_are_refused(tmp_path: Path, name: str, value: object) -> None:
    a, b = write(tmp_path / "a", [1, 2]), write(tmp_path / "b", [1, 2], **{name: value})
    with pytest.raises(UserError, match=f"cannot be compared: {name} is"):
        compare(a, b)


def test_what_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [1])
    (tmp_path / "b").write_text("{}")
    with pytest.raises(UserError, match="'task' is missing"):
        compare(a, tmp_path / "b")
    with pytest.raises(UserError, match="not readable"):
        compare(a, tmp_path / "c")
