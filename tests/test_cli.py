"""The command as a user meets it: one clear line and an exit code for every mistake, nothing lost."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from estr.tasks.retrieval import open_retriever

ESTR = [sys.executable, "-c", "from estr.cli import main; main()"]


def estr(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*ESTR, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    lines = result.stderr.strip().splitlines()
    assert (result.returncode, len(lines)) == (code, 1), result.stderr
    assert lines[0].startswith("estr: error: ")
    for part in parts:
        assert part in lines[0]


def test_help_teaches() -> None:
    result = estr("--help")
    assert result.returncode == 0
    for word in ("estr train dapo_math estr --seed 0", "icepop__thresholds=matched", "calibrate", "evaluate"):
        assert word in result.stdout
    assert "resumes" in estr("train", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("train", "dapo_math", "ppo"), ("unknown method 'ppo'", "icepop")),
        (("train", "chess", "estr"), ("unknown task 'chess'",)),
        (("train", "dapo_math", "estr", "--scale", "tablet"), ("unknown scale 'tablet'",)),
        (("train", "dapo_math", "estr__tau=-1"), ("configs/methods/estr.yaml", "tau must be >= 0")),
        (("train", "dapo_math", "estr"), ("train.parquet is missing", "estr data prepare dapo_math")),
        (("evaluate", "dapo_math", "estr"), ("run.json is missing", "estr train dapo_math estr --seed 0")),
        (("calibrate", "dapo_math"), ("tokens.parquet is missing",)),
        (("table", "table9", "x", "--out", "y"), ("unknown table 'table9'", "table1")),
        (("figure", "fig99", "x", "--out", "y"), ("unknown figure 'fig99'", "fig06_07_reward")),
        (("ui",), ("results is missing", "make reproduce")),
        (("data", "prepare", "gsm8k", "--from", "x"), ("--scale paper",)),
        (("data", "prepare", "gsm8k", "--scale", "paper", "--from", "x"), ("openai/gsm8k", "x")),
        (("data", "prepare", "chess", "--scale", "paper"), ("no benchmark 'chess'", "gsm8k")),
        (("evaluate", "gsm8k"), ("--model DIR --task NAME",)),
        (("evaluate", "--model", "x"), ("--task NAME",)),
        (("evaluate", "--model", "x", "--task", "gsm8k"), ("eval.parquet is missing", "estr data prepare gsm8k")),
        (("search", "serve", "nowhere"), ("nowhere",)),
        (("search", "serve", "nowhere", "--host", "0.0.0.0"), ("nowhere",)),
    ],
)
def test_mistakes_are_one_line_with_code_2(workspace: Path, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    assert_one_line(estr(*arguments, cwd=workspace), 2, *parts)


def test_unknown_key_in_a_file(workspace: Path) -> None:
    path = workspace / "configs/methods/estr.yaml"
    path.write_text(path.read_text() + "colour: red\n")
    assert_one_line(estr("check-config", cwd=workspace), 2, "configs/methods/estr.yaml", "'colour'")


def test_check_config_counts_runs(workspace: Path) -> None:
    result = estr("check-config", cwd=workspace)
    assert result.returncode == 0 and "laptop main_results: 54 runs" in result.stdout


def test_value_out_of_bounds_names_file_and_key(workspace: Path) -> None:
    path = workspace / "configs/scales/smoke.yaml"
    content = yaml.safe_load(path.read_text())
    content["evaluation"]["samples"] = 0
    path.write_text(yaml.safe_dump(content))
    assert_one_line(
        estr("data", "prepare", "dapo_math", "--scale", "smoke", cwd=workspace), 2, "smoke.yaml", "evaluation.samples"
    )


def test_check_config_reads_every_threshold(workspace: Path) -> None:
    path = workspace / "configs/methods/kpop.yaml"
    path.write_text(path.read_text().replace("phi: 0.1", "phi: -1.0"))
    assert_one_line(estr("check-config", cwd=workspace), 2, "configs/methods/kpop.yaml", "phi must be")


def test_unwritable_results_folder(workspace: Path) -> None:
    (workspace / "results").write_text("a file where the folder should be")
    result = estr("data", "prepare", "dapo_math", "--scale", "smoke", cwd=workspace)
    assert_one_line(result, 1, "results/smoke/data/dapo_math", "directory")


def test_missing_dependency(workspace: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from estr.cli import main; main()"
    command = [sys.executable, "-c", code, "data", "prepare", "dapo_math"]
    result = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    assert_one_line(result, 1, "'pyarrow' is not installed", "make setup")


def test_a_store_that_mlflow_refuses(workspace: Path) -> None:
    result = estr("track", "open", "--scale", "smoke", "--uri", "ftp://nowhere", cwd=workspace)
    assert_one_line(result, 1, "MLflow")


def test_score_gives_one_line_for_each_line() -> None:
    lines = [
        b'{"answer": "#### $18", "gold": "18", "id": 7}',
        b"not json",
        b"",
        b'{"answer": "#### 18", "gold": 18}',
        b"\xff\x00",
    ]
    strict = score(b"\n".join(lines), "--task", "gsm8k")
    flexible = score(b"\n".join(lines), "--task", "gsm8k", "--rule", "gsm8k_flexible")
    assert [row["correct"] for row in strict] == [False, False, False, True, False]
    assert [row["correct"] for row in flexible] == [True, False, False, True, False]
    assert flexible[0] == {"answer": "#### $18", "gold": "18", "id": 7, "extracted": "18", "correct": True}
    assert ["error" in row for row in strict] == [False, True, True, False, True]
    assert score(b"", "--task", "gsm8k") == []


def score(lines: bytes, *options: str) -> list[dict]:
    result = subprocess.run([*ESTR, "score", *options], input=lines, capture_output=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_search_is_indexed_and_served_until_it_is_told_to_stop(workspace: Path) -> None:
    documents = {"docid": ["a", "b"], "text": ["the lighthouse of Aal", "a town by the sea"], "url": ["", ""]}
    pq.write_table(pa.table(documents), workspace / "corpus.parquet")
    assert estr("search", "index", "corpus.parquet", "--out", "data/index", cwd=workspace).returncode == 0
    command = [*ESTR, "search", "serve", "data", "--port", "0"]
    with subprocess.Popen(command, cwd=workspace, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("serving ").strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/health") as reply:
            assert json.load(reply) == {"status": "ok", "backend": "bm25", "documents": 2}
        assert [hit.docid for hit in open_retriever(address).search("lighthouse", 5)] == ["a"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


@pytest.mark.slow
def test_search_is_not_exposed_by_accident(workspace: Path) -> None:
    pq.write_table(pa.table({"docid": ["a"], "text": ["sea"], "url": [""]}), workspace / "corpus.parquet")
    assert_one_line(estr("search", "serve", "corpus.parquet", "--host", "0.0.0.0", cwd=workspace), 2, "--expose")


@pytest.mark.slow
def test_any_policy_is_evaluated_without_runs(workspace: Path) -> None:
    scale = ("--scale", "smoke")
    assert estr("data", "prepare", "gsm8k", *scale, cwd=workspace).returncode == 0
    assert estr("pretrain", "gsm8k", *scale, cwd=workspace).returncode == 0
    command = ["evaluate", "--model", "results/smoke/warm_start/gsm8k", "--task", "gsm8k", "--samples", "2"]
    command += ["--data", "results/smoke/data/gsm8k", "--out", "scores"]
    first = estr(*command, cwd=workspace)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("gsm8k: avg@2 ") and "32 problems, 0 samples missing" in first.stdout
    record = json.loads((workspace / "scores/evaluation.json").read_text())
    assert (record["engine"], record["rule"]["name"], record["n_problems"]) == ("embedded", "gsm8k_strict", 32)
    assert record["agent"]["tool_calls"] > 0
    assert len((workspace / "scores/samples.jsonl").read_text().splitlines()) == 33
    assert estr(*command, cwd=workspace).stdout == first.stdout
    wrong = [part if part != "gsm8k" else "dapo_math" for part in command]
    assert_one_line(estr(*wrong, cwd=workspace), 2, "holds data of gsm8k, not of dapo_math")
