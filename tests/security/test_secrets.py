"""Keys stay in the environment: a unique value for each goes through real runs, and is then looked for everywhere."""

import base64
import gzip
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from estr.cli import main
from estr.cluster.launch.command import Place, tool_file, verl_command
from estr.cluster.launch.server import search_service
from estr.config import ClusterRun, Site, StudyConfig, load_site, parse, resolve_any
from estr.errors import UserError
from tests.evaluation.chat_server import Body, ChatServer, completion, failure
from tests.security.conftest import RUN, estr
from tests.security.leaks import leaks, watched
from tests.servers import free_port


@pytest.mark.slow
def test_a_training_leaves_no_key_anywhere(trained: tuple[Path, list[str]], keys: dict[str, str]) -> None:
    folder, said = trained
    assert (folder / RUN / "run.json").exists() and (folder / "results/mlflow.db").exists()
    assert leaks(keys.values(), folder, *said) == []


@pytest.mark.slow
def test_an_evaluation_whose_judge_repeats_the_key_leaves_it_nowhere(
    trained: tuple[Path, list[str]], keys: dict[str, str], environment: dict[str, str]
) -> None:
    """The judge refuses one answer with the key in its message, and repeats the key in its other replies."""
    folder, _ = trained
    judge_key, server_key = keys["ESTR_JUDGE_API_KEY"], keys["ESTR_SERVER_API_KEY"]
    replies = iter(range(10**6))

    def judged(body: Body) -> object:
        if next(replies) == 3:
            return failure(400, f"not for Bearer {judge_key}")
        return completion(f"reasoning: your key is {judge_key}\ncorrect: yes\nconfidence: 90")

    out = folder / "judged"
    with ChatServer(lambda body: completion(f"#### 4 {server_key}")) as policy, ChatServer(judged) as judge:
        command = f"evaluate --model {RUN}/policy --data results/smoke/data/dapo_math --task dapo_math --samples 1 "
        command += f"--server {policy.url} --judge-url {judge.url} --judge-model judge --out judged"
        with watched() as commands:
            done = estr(folder, environment, command)
        assert done.returncode == 0, done.stderr
        assert policy.keys == {f"Bearer {server_key}"} and judge.keys == {f"Bearer {judge_key}"}
    assert "refuses a response" in done.stderr and "***" in done.stderr
    assert json.loads((out / "evaluation.json").read_text())["n_problems"] > 0
    assert leaks(keys.values(), out, done.stdout, done.stderr, *commands) == []


@pytest.mark.slow
def test_a_server_that_wants_another_key_is_told_of_without_it(
    trained: tuple[Path, list[str]], keys: dict[str, str], environment: dict[str, str]
) -> None:
    folder, _ = trained
    key = keys["ESTR_SERVER_API_KEY"]
    command = f"evaluate --model {RUN}/policy --data results/smoke/data/dapo_math --task dapo_math --out refused "
    with ChatServer(lambda body: failure(401, f"wrong key {key}")) as server:
        done = estr(folder, environment, command + f"--server {server.url}")
        # a key that was copied with its line break: the HTTP library would show it
        broken = environment | {"ESTR_SERVER_API_KEY": f"{key}\nx"}
        odd = estr(folder, broken, command + f"--server {server.url}")
    assert done.returncode == 2 and "the key is read from ESTR_SERVER_API_KEY" in done.stderr
    assert odd.returncode == 2 and "ESTR_SERVER_API_KEY: the key holds a character" in odd.stderr
    assert leaks([key], folder / "refused", done.stdout, done.stderr, odd.stdout, odd.stderr) == []


@pytest.fixture
def hub() -> Iterator[str]:
    """In the place of the Hugging Face Hub: refuses everything, and repeats what it was sent."""

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.headers.get("authorization", "nothing")
            asked.append(sent)
            self.send_response(401)
            self.send_header("X-Error-Message", f"refused {sent}")
            self.end_headers()
            self.wfile.write(sent.encode())

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    assert any("HF_T" in sent for sent in asked), "the token was sent"


@pytest.mark.slow
def test_a_hub_that_refuses_the_token_is_told_of_without_it(
    checkout: Path, keys: dict[str, str], environment: dict[str, str], hub: str, tmp_path: Path
) -> None:
    given = environment | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path)}
    done = estr(checkout, given, "data prepare gsm8k --scale paper --results hub")
    assert done.returncode == 2 and "cannot be had from the Hugging Face Hub" in done.stderr
    assert leaks(keys.values(), tmp_path, done.stdout, done.stderr) == []


@pytest.mark.slow
def test_a_job_of_the_cluster_shows_no_key(
    workspace: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's command and files, what `estr cluster command` prints, and the retriever that a job starts."""
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    run = resolve_any("paper", "browsecomp_plus", "estr", 0)
    assert isinstance(run, ClusterRun)
    site = load_site().model_copy(update={"judge_url": "http://127.0.0.1:9", "judge_model": "judge"})
    place = Place(workspace / "model", workspace / "data", workspace / "state", "http://127.0.0.1:9")
    command = verl_command(run, place, site, tools=True)
    assert any("judge_url" in setting for setting in command.settings)
    shown = [*command.arguments, json.dumps(command.environment), tool_file(run, place, [])]
    printed = CliRunner().invoke(main, ["cluster", "command", "browsecomp_plus", "estr"])
    assert printed.exit_code == 0 and "python -m verl" in printed.output
    corpus = pa.table({"docid": ["a"], "text": ["red fox"]})
    pq.write_table(corpus, workspace / "corpus.parquet")
    with (
        watched() as commands,
        search_service(workspace / "corpus.parquet", "127.0.0.1", free_port(), workspace / "log"),
    ):
        pass
    assert any("search serve" in line for line in commands)
    assert leaks(keys.values(), workspace, *shown, printed.output, *commands) == []


PASSWORD = "hunter2-correct-horse"
SERVICES = [
    f"http://user:{PASSWORD}@127.0.0.1:9",
    f"http://{PASSWORD}@127.0.0.1:9",
    f"http://127.0.0.1:9/?key={PASSWORD}",
    f"http://127.0.0.1:9/#{PASSWORD}",
    f"http://user:{PASSWORD}@127.0.0.1:port",
    f"user:{PASSWORD}@127.0.0.1:9",
    f"http://user:{PASSWORD}@[::1",
]


@pytest.mark.parametrize("url", SERVICES)
@pytest.mark.parametrize("option", ["--server", "--judge-url", "--retriever"])
def test_an_address_with_a_key_is_refused_and_not_repeated(workspace: Path, option: str, url: str) -> None:
    folder = workspace / "policy"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text(
        '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )
    assert CliRunner().invoke(main, ["data", "prepare", "dapo_math", "--scale", "smoke"]).exit_code == 0
    command = [
        "evaluate",
        "--model",
        "policy",
        "--data",
        "results/smoke/data/dapo_math",
        "--task",
        "dapo_math",
        "--out",
        "out",
    ]
    judge = ["--judge-model", "judge"] if option == "--judge-url" else []
    done = CliRunner().invoke(main, [*command, "--out", "out", option, url, *judge])
    if option == "--retriever" and not url.startswith("http"):
        return  # a path like any other
    assert done.exit_code == 2 and "estr: error: " in done.output, done.exception
    assert leaks([PASSWORD], workspace, done.output) == []


@pytest.mark.parametrize(
    "uri",
    [
        f"http://user:{PASSWORD}@mlflow.example",
        f"http://{PASSWORD}@mlflow.example",
        f"http://mlflow.example/?token={PASSWORD}",
        f"postgresql://user:{PASSWORD}@db.example/mlflow",
        f"postgresql://db.example/mlflow?user=u&password={PASSWORD}",
    ],
)
def test_a_tracking_store_with_a_password_is_refused_and_not_repeated(uri: str) -> None:
    content = {"scale": "smoke", "experiments": [], "results": "results", "figures": "figures", "tracking_uri": uri}
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        parse(StudyConfig, content, "configs/config.yaml")
    assert PASSWORD not in str(caught.value)
    with pytest.raises(UserError, match=r"tracking store's URI is none"):
        parse(StudyConfig, content | {"tracking_uri": "http://[::1"}, "configs/config.yaml")
    for harmless in (
        None,
        "sqlite:////tmp/mlflow.db",
        "http://mlflow.example:5000",
        "postgresql://user@db.example/mlflow",
    ):
        parse(StudyConfig, content | {"tracking_uri": harmless}, "configs/config.yaml")


@pytest.mark.parametrize(
    "change",
    [
        {"environment": {"WANDB_API_KEY": PASSWORD}},
        {"environment": {"HF_TOKEN": PASSWORD}},
        {"judge_url": f"http://user:{PASSWORD}@judge.example"},
        {"retrievers": {"search_r1": f"http://user:{PASSWORD}@search.example"}},
    ],
)
def test_a_key_in_the_sites_file_is_refused_and_not_repeated(change: dict[str, object]) -> None:
    site = load_site().model_dump()
    parse(Site, site | {"environment": {"NCCL_DEBUG": "WARN", "TOKENIZERS_PARALLELISM": "0"}}, "configs/site.yaml")
    with pytest.raises(UserError) as caught:
        parse(Site, site | change, "configs/site.yaml")
    assert PASSWORD not in str(caught.value)


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    """In every kind of file, in every form."""
    key = "ab+/cd=%?ef0123456789"
    (tmp_path / "plain.log").write_text(f"x{key}y")
    (tmp_path / "url.json").write_text("https://x/?k=ab%2B%2Fcd%3D%25%3Fef0123456789")
    for number in range(3):
        (tmp_path / f"basic{number}.txt").write_bytes(base64.b64encode(b"u" * number + b":" + key.encode() + b"!"))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(key.encode()))
    pq.write_table(pa.table({"text": [key] * 3}), tmp_path / "table.parquet", compression="zstd")
    with sqlite3.connect(tmp_path / "store.db") as store:
        store.execute("create table t (x text)")
        store.execute("insert into t values (?)", (key,))
    (tmp_path / "clean.txt").write_text("ab+/cd")
    with watched() as commands:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(3)", key], check=True)
    found = leaks([key], tmp_path, *commands)
    said = {name for name in found if name.startswith("text ")}
    assert said  # a command line, perhaps its fork's as well
    assert {Path(name).name for name in found if name not in said} == {p.name for p in tmp_path.iterdir()} - {
        "clean.txt"
    }
