"""evaluation.json: what is read of it, evaluation sets of unequal size, and complaints about a broken one."""

import json
from pathlib import Path

import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.evaluation.judge import ExactMatchJudge
from estr.report.evaluations import read_evaluation
from estr.report.runs import load_runs
from estr.report.scores import score_columns, scores_of


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_evaluation_carries_its_record(folder: ResultsFolder) -> None:
    run_dir = folder.write("estr", 0, task="browsecomp_plus", correct=[2, 1, 0])
    evaluation = read_evaluation(run_dir / "evaluation.json")
    assert (evaluation.k, evaluation.correct.tolist(), evaluation.missing) == (2, [2, 1, 0], 0)
    assert evaluation.warm_start == ((0.31, 0.28, 0.34), (0.55, 0.5, 0.6), (0.52, 0.47, 0.57))
    assert evaluation.behaviour["recall"] == 0.6 and "calibration_error" not in evaluation.behaviour
    assert evaluation.warm_behaviour["tokens"] == 40


@pytest.mark.parametrize(
    ("task", "judge", "said"),
    [
        ("browsecomp_plus", None, "exact match, no judge model, rule browsecomp_plus_exact v1"),
        ("browsecomp_plus", ExactMatchJudge.label, "exact match, no judge model, rule browsecomp_plus_exact v1"),
        ("browsecomp_plus", "Qwen3-32B", "judge Qwen3-32B, rule browsecomp_plus_exact v1"),
        ("gsm8k", None, "rule gsm8k_flexible v1"),
    ],
)
def test_who_scored_is_said(folder: ResultsFolder, task: str, judge: str | None, said: str) -> None:
    path = folder.write("estr", 0, task=task) / "evaluation.json"
    edit_json(path, judge=judge)
    assert read_evaluation(path).scored_by == said


def test_the_scores_of_several_sets_are_the_means_over_the_sets(folder: ResultsFolder) -> None:
    """4 of 4, then 2, 0, 0 of 4: means 1 and 1/6 over problems, 7/12 over sets; pass@4 1 and 1/3, best@4 1 and 5/16."""
    path = folder.write("estr", 0, correct=[2, 4, 0, 0]) / "evaluation.json"
    sets = {"aime24": {"per_problem_correct": [4]}, "aime25": {"per_problem_correct": [2, 0, 0]}}
    edit_json(path, sets=sets)
    with pytest.raises(UserError, match=r"avg@4 is 0\.375, its per-problem counts give 0\.583"):
        read_evaluation(path)
    edit_json(path, **{"avg@4": 7 / 12})
    [run] = load_runs(folder.run_dirs)
    row = score_columns(scores_of([run], {run.run_id: run.read_evaluation()}), bootstrap_seed=0)
    assert row["ours_avg_percent"] == pytest.approx(100 * 7 / 12)
    assert row["ours_pass_percent"] == pytest.approx(100 * (1 + 1 / 3) / 2)
    assert row["ours_best_percent"] == pytest.approx(100 * (1 + 15 / 16 / 3) / 2)
    assert row["n_problems"] == 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"avg@4": 0.9}, "its per-problem counts give"),
        ({"per_problem_correct": [5]}, "between 0 and 4"),
        ({"per_problem_correct": []}, "non-empty"),
        ({"warm_start": {}}, "avg@4"),
        ({"rule": {"name": "dapo_math"}}, "version"),
        ({"agent": {"turns": 1}}, "tool_calls"),
        ({"missing": None}, "missing or malformed"),
    ],
)
def test_an_evaluation_at_odds_with_itself_is_refused(folder: ResultsFolder, change: dict, complaint: str) -> None:
    path = folder.write("estr", 0, correct=[4, 2, 0]) / "evaluation.json"
    edit_json(path, **change)
    with pytest.raises(UserError) as error:
        read_evaluation(path)
    assert complaint in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["rule", "judge", "engine", "missing", "agent", "problems_sha256"])
def test_a_missing_field_is_named(folder: ResultsFolder, field: str) -> None:
    path = folder.write("estr", 0) / "evaluation.json"
    record = json.loads(path.read_text())
    del record[field]
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=f"'{field}'"):
        read_evaluation(path)
