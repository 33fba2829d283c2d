"""Loading runs: order, and one-line complaints that name the broken file."""

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.report.runs import by_task, format_thresholds, load_run, load_runs


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_runs_come_in_display_order_and_by_seed(study: ResultsFolder) -> None:
    runs = load_runs(list(reversed(study.run_dirs)))
    names = [(run.label, run.seed) for run in runs]
    assert names[:4] == [("sync", 0), ("sync", 1), ("async", 0), ("async", 1)]
    assert names[4:8] == [(label, s) for label in ("icepop", "icepop__thresholds=matched") for s in (0, 1)]
    assert names[-1] == ("estr", 1)


def test_a_run_carries_its_record(study: ResultsFolder) -> None:
    run = load_run(study.run_dirs[-1])
    assert (run.scale, run.task, run.engine, run.commit) == ("laptop", "dapo_math", "embedded", "0123abc")
    tokens = run.read_tokens()
    assert ((tokens["target_logprob"] - tokens["behavior_logprob"]) == tokens["log_ratio"]).all()


def test_thresholds_are_written_out() -> None:
    assert format_thresholds({"name": "entropy_scaled", "tau": 1.6, "eps": 0.01}) == "tau=1.6, eps=0.01"
    rule = {"name": "second_moment", "budget": 0.123456, "eligible": "all"}
    assert format_thresholds(rule) == "budget=0.1235, eligible=all"
    assert format_thresholds({"name": "keep_all"}) == ""


@pytest.mark.parametrize("name", ["metrics.parquet", "run.json", "evaluation.json", "tokens.parquet"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_missing_or_truncated_file_is_named(folder: ResultsFolder, name: str, damage: str) -> None:
    run_dir = folder.write("estr", 0)
    path = run_dir / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError) as error:
        run = load_run(run_dir)
        run.read_evaluation()
        run.read_tokens()
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_an_unfinished_run_is_refused(folder: ResultsFolder) -> None:
    run_dir = folder.write("estr", 0)
    edit_json(run_dir / "run.json", status="running")
    with pytest.raises(UserError, match="status is 'running'"):
        load_run(run_dir)


@pytest.mark.parametrize("rows", [slice(0, 40), [0, *range(60)]])
def test_lost_or_doubled_steps_are_refused(folder: ResultsFolder, rows) -> None:
    path = folder.write("estr", 0) / "metrics.parquet"
    pd.read_parquet(path).iloc[rows].to_parquet(path)
    with pytest.raises(UserError, match=r"metrics\.parquet: holds \d+ steps in \d+ rows, run\.json says 60"):
        load_run(path.parent)


def test_missing_fields_and_columns_are_named(folder: ResultsFolder) -> None:
    run_dir = folder.write("estr", 0)
    frame = pd.read_parquet(run_dir / "metrics.parquet").drop(columns="kl_to_behavior")
    frame.to_parquet(run_dir / "metrics.parquet")
    with pytest.raises(UserError, match="lacks the columns kl_to_behavior"):
        load_run(run_dir)
    edit_json(run_dir / "run.json", config={})
    with pytest.raises(UserError, match=r"config\.engine"):
        load_run(run_dir)
    edit_json(run_dir / "run.json", seed="0")
    with pytest.raises(UserError, match="'seed'"):
        load_run(run_dir)


def test_runs_that_do_not_belong_together_are_refused(folder: ResultsFolder) -> None:
    with pytest.raises(UserError, match="no run folders"):
        load_runs([])
    run_dir = folder.write("estr", 0)
    with pytest.raises(UserError, match=r"the same run \(dapo_math, estr, seed 0\)"):
        load_runs([run_dir, run_dir])
    edit_json(folder.write("async", 0) / "run.json", scale="smoke")
    with pytest.raises(UserError, match=r"several scales .* laptop, smoke"):
        load_runs(folder.run_dirs)


def test_runs_of_several_tasks_come_in_the_order_of_the_papers_table(folder: ResultsFolder) -> None:
    for task in ("dapo_math", "browsecomp_plus", "gsm8k"):
        for label in ("estr", "sync"):
            folder.write(label, 0, task=task)
    edit_json(folder.write("sync", 1) / "run.json", task="aardvark")
    tasks = by_task(load_runs(folder.run_dirs))
    assert list(tasks) == ["browsecomp_plus", "gsm8k", "dapo_math", "aardvark"]
    assert [run.label for run in tasks["gsm8k"]] == ["sync", "estr"]
    assert {run.task for run in tasks["gsm8k"]} == {"gsm8k"}
