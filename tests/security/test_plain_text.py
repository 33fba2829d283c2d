"""BrowseComp-Plus in plain text stays in its data folder and in the samples of an evaluation alone."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from estr.config import keep_rule, resolve_any
from estr.data.browsecomp import held_out
from estr.provenance import read_json, write_json
from estr.run_record import run_record
from tests.conftest import REPOSITORY
from tests.data import invented
from tests.evaluation.chat_server import Body, ChatServer, completion, failure
from tests.security.conftest import RUN, estr
from tests.security.leaks import leaks

CANARY_GUID = "2c7c9d047919c8e41df91d6f40f34afc8c8d6661d369a0676bcb5edad38b6452"
"""SHA-256 of the GUID in BrowseComp-Plus's canary text."""
GUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
PREPARED = re.compile(rb"\"data_source\"\s*:\s*\"browsecomp_plus\"")
"""A row of a prepared set, in JSON."""
MAGIC = (b"PAR1", b"ARROW1", b"SQLite format 3")

QUESTION = "Which keeper of the vermilion gatehouse catalogued nine hundred unheard bells?"
ANSWER = "Ottoline Quarrenby-Vask"
PLAIN = "results/paper/runs/browsecomp_plus/estr/seed0"
DATA = "results/paper/data/browsecomp_plus"
PREPARE = """
import sys
from pathlib import Path
from estr.data.benchmarks import prepare_benchmark
from tests.data import invented
prepare_benchmark("browsecomp_plus", Path(sys.argv[1]), Path("copies"), sources=invented.SMALL["browsecomp_plus"])
"""


def git(*arguments: str, folder: Path = REPOSITORY, **options: Any) -> bytes:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, **options).stdout


def committed() -> list[tuple[str, bytes]]:
    """Name and content of every file that any commit of HEAD's history holds."""
    listed = [line.split(" ", 1) for line in git("rev-list", "--objects", "HEAD").decode().splitlines()]
    names = {found[0]: found[1] for found in listed if len(found) == 2}
    out = git("cat-file", "--batch", input="\n".join(names).encode())
    files, at = [], 0
    while at < len(out):
        end = out.index(b"\n", at)
        name, kind, size = out[at:end].decode().split()
        if kind == "blob":
            files.append((names[name], out[end + 1 : end + 1 + int(size)]))
        at = end + 2 + int(size)
    return files


def offences(content: bytes) -> list[str]:
    """What must not stand in a committed file."""
    found = []
    if any(hashlib.sha256(guid.lower()).hexdigest() == CANARY_GUID for guid in GUID.findall(content)):
        found.append("the canary")
    if PREPARED.search(content):
        found.append("prepared rows")
    if content.startswith(MAGIC):
        found.append("a table or store, whatever is in it")
    return found


def test_no_commit_holds_the_canary_or_a_prepared_set() -> None:
    files = committed()
    assert len(files) > 400
    assert {name: found for name, content in files if (found := offences(content))} == {}


def test_what_must_not_be_committed_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    guid = "01234567-89AB-cdef-0123-456789abcdef"
    monkeypatch.setattr(sys.modules[__name__], "CANARY_GUID", hashlib.sha256(guid.lower().encode()).hexdigest())
    assert offences(f"canary GUID browsecomp:{guid}.".encode()) == ["the canary"]
    assert offences(json.dumps(dict(data_source="browsecomp_plus")).encode()) == ["prepared rows"]
    assert offences(b"PAR1...") == ["a table or store, whatever is in it"]
    assert offences(b"browsecomp_plus fedcba98-89ab-cdef-0123-456789abcdef") == []


def test_results_and_figures_are_ignored_by_git() -> None:
    paths = [f"{DATA}/eval.parquet", f"{PLAIN}/samples.jsonl", "results/mlflow.db", "figures/paper/x.png", "logs/x.log"]
    assert git("check-ignore", *paths).decode().split() == paths


@dataclass(frozen=True)
class Pass:
    """A folder with git, and all that was said on the way."""

    folder: Path
    said: list[str]


@pytest.fixture(scope="module")
def passed(
    tmp_path_factory: pytest.TempPathFactory, trained: tuple[Path, list[str]], environment: dict[str, str]
) -> Pass:
    """Encrypted copies, data, an evaluation with a judge, MLflow, table, figure, report: of a run in verl's form."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    shutil.copy(REPOSITORY / ".gitignore", folder)
    git("init", "--quiet", folder=folder)
    rows = [
        row | {"query": f"{QUESTION} ({number})", "answer": f"{ANSWER} {number}"}
        for number, row in enumerate(invented.browsecomp_plain())
    ]
    invented.write(folder / "copies", "browsecomp_plus/questions", [invented.encrypted(row) for row in rows])
    invented.write(folder / "copies", "browsecomp_plus/corpus", invented.browsecomp_documents())
    given = environment | {"ESTR_BROWSECOMP_PLUS_CANARY": invented.CANARY}
    given["PYTHONPATH"] = f"{REPOSITORY / 'src'}:{REPOSITORY}"
    prepare = [sys.executable, "-c", PREPARE, DATA]
    said = [_said(subprocess.run(prepare, cwd=folder, env=given, capture_output=True, text=True))]

    run = resolve_any("paper", "browsecomp_plus", "estr", 0)
    made = folder / PLAIN
    shutil.copytree(trained[0] / RUN, made, ignore=shutil.ignore_patterns("*.json", "*.jsonl", "state"))
    shutil.copytree(trained[0] / RUN / "policy", made / "policy", dirs_exist_ok=True)
    steps = json.loads((trained[0] / RUN / "run.json").read_text())["steps"]
    write_json(made / "run.json", run_record(run, keep_rule(run), "0" * 12, 1.0, steps, None, made))
    with ChatServer(policy) as server, ChatServer(judge) as judging:
        command = f"evaluate --model {PLAIN}/policy --task browsecomp_plus --data {DATA} --samples 2 --out {PLAIN} "
        command += f"--server {server.url} --judge-url {judging.url} --judge-model j"
        said.append(_said(estr(folder, given, command)))
    scores = read_json(made / "evaluation.json")
    about = {"scale": "paper", "run_id": run.run_id, "steps": steps}
    write_json(made / "evaluation.json", scores | about | {"warm_start": scores})
    table, figure = "results/paper/tables/table1.csv", "figures/paper/fig06_07_reward.png"
    made_public = estr(
        folder,
        given,
        "track open --scale paper",
        f"track runs {PLAIN} --out results/paper/mlflow/runs.json --scale paper",
        f"table table1 {PLAIN} --out {table}",
        f"figure fig06_07_reward {PLAIN} --out {figure}",
        f"report {PLAIN} --table {table} --figure {figure} --mlflow results/paper/mlflow/runs.json "
        "--out results/paper/report.html --scale paper",
        f"track publish --table {table} --figure {figure} --report results/paper/report.html --scale paper",
    )
    return Pass(folder, [*said, _said(made_public)])


EVALUATED = sorted(int(name) - 700 for name in held_out([row["query_id"] for row in invented.browsecomp_plain()]))


def policy(body: Body) -> Any:
    """Answers; but one question it refuses as some servers do, with what it was sent in its message."""
    text = str(body["messages"])
    if body.get("max_tokens") != 1 and f"({EVALUATED[0]})" in text:
        return failure(422, f"too long: {text[text.index(QUESTION) :]}")
    return completion(f"Explanation: I know it.\nExact Answer: {ANSWER}\nConfidence: 90%")


def judge(body: Body) -> Any:
    """Fails for another one, in the same way."""
    text = str(body["messages"])
    if body.get("max_tokens") != 1 and f"({EVALUATED[1]})" in text:
        return failure(400, f"cannot judge: {text[text.index(QUESTION) :]}")
    return completion(f"extracted_final_answer: {ANSWER}\nreasoning: {QUESTION}\ncorrect: yes\nconfidence: 90")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_plain_text_is_where_it_must_be_and_nowhere_else(passed: Pass) -> None:
    allowed = {f"{DATA}/train.parquet", f"{DATA}/eval.parquet", f"{PLAIN}/samples.jsonl", f"{PLAIN}/judge.jsonl"}
    found = leaks([QUESTION, ANSWER], passed.folder, *passed.said)
    assert {str(Path(name).relative_to(passed.folder)) if "/" in name else name for name in found} == allowed
    for name in ("results/mlflow.db", "results/paper/report.html", "figures/paper/fig06_07_reward.csv"):
        assert (passed.folder / name).stat().st_size > 0, "it was looked at"
    artifacts = {path.name for path in (passed.folder / "results/mlartifacts").rglob("*")}
    assert {"evaluation.json", "report.html", "table1.csv", "run.json"} <= artifacts


@pytest.mark.slow
def test_what_holds_plain_text_is_its_owners_alone(passed: Pass) -> None:
    for name in (f"{DATA}/train.parquet", f"{DATA}/eval.parquet", f"{PLAIN}/samples.jsonl", f"{PLAIN}/judge.jsonl"):
        assert (passed.folder / name).stat().st_mode & 0o777 == 0o600, name


@pytest.mark.slow
def test_git_would_commit_none_of_it(passed: Pass) -> None:
    git("add", "--all", folder=passed.folder)
    added = git("ls-files", folder=passed.folder).decode().splitlines()
    assert ".gitignore" in added and not any(name.startswith(("results/", "figures/")) for name in added)


@pytest.mark.slow
def test_a_message_that_repeats_a_question_is_not_shown_but_said_to_be_there(passed: Pass) -> None:
    [evaluated] = [said for said in passed.said if "avg@2" in said]
    assert "refuses turn 1 (422: its message repeats the request)" in evaluated
    assert "the judge j refuses a response (400: its message repeats the request)" in evaluated
