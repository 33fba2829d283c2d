import gzip
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import invented
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estr.data.sources import Source, open_source
from estr.errors import UserError

ROWS = [{"name": f"n{i}", "size": i, "more": "x"} for i in range(25)]
SOURCE = Source(
    repo="owner/things",
    split="train",
    rows=25,
    columns={"name": pa.string(), "size": pa.int64()},
    files=("data/train*.parquet", "*.jsonl"),
)


def place(folder: Path, rows: list[dict[str, Any]], name: str = "owner/things/data/train-0.parquet") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in path.name:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read(folder: Path, source: Source = SOURCE) -> list[dict[str, Any]]:
    return [row for batch in open_source(source, folder).batches(10) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "name",
    [
        "owner/things/data/train-0.parquet",
        "things/data/train-0.parquet",
        "things/all.jsonl",
        "datasets--owner--things/snapshots/abc123/data/train-0.parquet",
        "[odd] * path/../owner/things/data/train-0.parquet",
    ],
)
def test_a_copy_is_found_in_each_layout_and_read_in_order(tmp_path: Path, name: str, cache: Path) -> None:
    if name.startswith("["):
        tmp_path = tmp_path / "[odd] *"
        name = "owner/things/data/train-0.parquet"
    place(tmp_path, ROWS, name)
    assert read(tmp_path) == [{"name": f"n{i}", "size": i} for i in range(25)]
    assert not list(cache.iterdir())


def test_the_files_of_a_split_are_read_one_after_the_other(tmp_path: Path) -> None:
    place(tmp_path, ROWS[:20], "owner/things/data/train-00000-of-00002.parquet")
    place(tmp_path, ROWS[20:], "owner/things/data/train-00001-of-00002.parquet")
    place(tmp_path, ROWS, "owner/things/data/test-00000-of-00001.parquet")
    assert [row["size"] for row in read(tmp_path)] == list(range(25))


def test_a_hub_cache_names_the_revision_that_main_points_to(tmp_path: Path) -> None:
    place(tmp_path, ROWS, "datasets--owner--things/snapshots/aaa/data/train-0.parquet")
    place(tmp_path, ROWS[:3], "datasets--owner--things/snapshots/000/data/train-0.parquet")
    refs = tmp_path / "datasets--owner--things/refs"
    refs.mkdir()
    (refs / "main").write_text("aaa\n")
    reading = open_source(SOURCE, tmp_path)
    assert reading.note() == {
        "id": "owner/things",
        "config": None,
        "split": "train",
        "rows": 25,
        "revision": "aaa",
        "licence": "https://huggingface.co/datasets/owner/things",
    }
    assert sum(len(batch) for batch in reading.batches()) == 25


def test_no_copy(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_source(SOURCE, tmp_path)
    message = str(caught.value)
    for part in ("owner/things (train)", str(tmp_path), "data/train*.parquet or *.jsonl", "hf download", SOURCE.card):
        assert part in message
    assert "\n" not in message


def with_cell(name: str, value: Any) -> list[dict[str, Any]]:
    return [row | ({name: value} if i == 13 else {}) for i, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:24], r"24 rows, where the published set has 25"),
        ([*ROWS, ROWS[0]], r"26 rows, where the published set has 25"),
        ([], r"no column 'name'"),
        ([{"name": "a"}] * 25, r"train-0.parquet: no column 'size' of owner/things, only name"),
        ([row | {"size": str(row["size"])} for row in ROWS], r"column 'size' is string; expected int64"),
        ([row | {"name": [row["name"]]} for row in ROWS], r"column 'name' is list<.*>; expected string"),
        (with_cell("name", None), r"row 13: name is empty"),
        (with_cell("name", " \n"), r"row 13: name is empty"),
        (with_cell("size", None), r"row 13: size is empty"),
    ],
)
def test_what_is_not_the_published_set(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = place(tmp_path, rows)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path)
    assert path.name in str(caught.value)


def test_json_lines_of_another_form(tmp_path: Path) -> None:
    place(tmp_path, [{"name": "a"}] * 25, "things/all.jsonl")
    with pytest.raises(UserError, match=r"all.jsonl: no column 'size', only name"):
        read(tmp_path)


def test_a_field_may_be_empty_where_that_is_known(tmp_path: Path) -> None:
    place(tmp_path, with_cell("name", None))
    assert read(tmp_path, replace(SOURCE, blank=("name",)))[13]["name"] is None


@pytest.mark.parametrize("name", ["owner/things/data/train-0.parquet", "things/all.jsonl"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    path = place(tmp_path, ROWS, name)
    path.write_bytes(b"not what it should be\n" * 9)
    with pytest.raises(UserError, match=r"not.*readable") as caught:
        read(tmp_path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_cut_short_in_the_middle(tmp_path: Path) -> None:
    path = place(tmp_path, [{"name": os.urandom(20_000).hex(), "size": i} for i in range(25)])
    content = bytearray(path.read_bytes())
    content[100_000:600_000] = bytes(500_000)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train-0.parquet: not readable after row"):
        read(tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_in_the_place_of_json_lines(tmp_path: Path, mode: str) -> None:
    """The corpus of Search-R1 is a tar archive that is called wiki-18.jsonl.gz."""
    source = replace(SOURCE, files=("rows.jsonl", "rows.jsonl.gz"))
    inner = place(tmp_path, ROWS, "inner.jsonl")
    archive = place(tmp_path, [], "things/rows.jsonl.gz")
    with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
        tar.add(inner, "data/inner.jsonl")
    with pytest.raises(UserError, match=r"a tar archive, .*`(tar -xOf .*)`") as caught:
        read(tmp_path, source)
    subprocess.run(str(caught.value).split("`")[1], shell=True, check=True)  # noqa: S602 - as a user would paste it
    assert len(read(tmp_path, source)) == 25


def test_compressed_json_lines(tmp_path: Path) -> None:
    path = place(tmp_path, ROWS, "things/all.jsonl")
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert len(read(tmp_path, replace(SOURCE, files=("*.jsonl.gz",)))) == 25


UNREACHABLE = """
import sys, tempfile
from pathlib import Path
from estr.data.benchmarks import prepare_benchmark
from estr.errors import UserError

for name in ("gsm8k", "dapo_math", "browsecomp_plus", "search_r1"):
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "data" / name
        try:
            prepare_benchmark(name, folder, canary="any")
        except UserError as error:
            print(error)
        assert not folder.exists()
"""


@pytest.mark.parametrize(
    "environment",
    [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}],  # nothing listens on the discard port
    ids=["offline", "no network"],
)
def test_the_hub_out_of_reach_is_said_at_once(tmp_path: Path, environment: dict[str, str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", UNREACHABLE],
        env={**os.environ, **environment, "HF_HOME": str(tmp_path / "huggingface")},
        capture_output=True,
        text=True,
        timeout=60,  # datasets alone would retry for 23 s per data set
    )
    assert finished.returncode == 0, finished.stderr
    messages = finished.stdout.splitlines()
    assert len(messages) == 4
    for message, repo in zip(
        messages,
        (
            "openai/gsm8k",
            "BytedTsinghua-SIA/DAPO-Math-17k",
            "Tevatron/browsecomp-plus",
            "PeterJinGo/nq_hotpotqa_train",
        ),
        strict=True,
    ):
        for part in (f"{repo} cannot be had", f"https://huggingface.co/datasets/{repo}", "--from DIR"):
            assert part in message
    assert "Retrying" not in finished.stderr


@pytest.fixture
def hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A Hub that holds the invented copies; returns what `load_dataset` was asked for."""
    import datasets
    import huggingface_hub

    calls: list[dict[str, Any]] = []
    load = datasets.load_dataset

    def load_from_hub(repo: str, config: str | None, revision: str, **options: Any) -> Any:
        calls.append({"repo": repo, "config": config, "revision": revision, **options})
        folder = next(path for path in (published / repo, published / repo.split("/")[1]) if path.is_dir())
        return load(str(folder / config if config else folder), cache_dir=str(tmp_path / "cache"), **options)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda self, repo, timeout: SimpleNamespace(sha=f"{repo}@main")
    )
    monkeypatch.setattr(datasets, "load_dataset", load_from_hub)
    return calls


def test_from_the_hub(hub: list[dict[str, Any]]) -> None:
    source = invented.SMALL["gsm8k"]["eval"]
    reading = open_source(source, None)
    rows = [row for batch in reading.batches(10) for row in batch.to_pylist()]
    assert rows == invented.gsm8k("eval")
    assert reading.revision == "openai/gsm8k@main"
    assert "Hugging Face Hub" in reading.place
    assert hub == [
        {
            "repo": "openai/gsm8k",
            "config": "main",
            "revision": "openai/gsm8k@main",
            "columns": ["question", "answer"],
            "batch_size": 10_000,
        }
    ]


def test_the_only_split_of_a_set_may_have_another_name(hub: list[dict[str, Any]]) -> None:
    source = invented.SMALL["dapo_math"]["aime26"]  # its invented copy calls the split train
    assert source.split == "test"
    assert sum(len(batch) for batch in open_source(source, None).batches()) == invented.AIME_ROWS
    with pytest.raises(UserError, match="has no split 'other', only train, test"):
        open_source(replace(invented.SMALL["gsm8k"]["eval"], split="other"), None)
