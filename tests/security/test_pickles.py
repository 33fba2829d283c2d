"""Weights come from safetensors: a model folder whose pickle would run something is refused before it is opened."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from estr.cluster.launch.driver import model_folder
from estr.config import ClusterRun, load_site, resolve_any
from estr.data.sources import open_source
from estr.embedded.checkpoint import load_state
from estr.embedded.policy import load_policy
from estr.errors import UserError
from estr.evaluation.standalone import fingerprint
from estr.llm.model import load_llama
from estr.provenance import file_digest
from estr.tools.dense import DenseIndex, Qwen3Encoder
from estr.tools.documents import NOTE
from estr.tools.service import open_index
from tests.data.invented import SMALL


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """Does not exist as long as nothing of the folder `model` was run."""
    return tmp_path / "sprung"


@pytest.fixture
def model(tmp_path: Path, sprung: Path) -> Path:
    """What a repository of a model may hold: pickled weights and code, but no safetensors."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("pytorch_model.bin", "model.pt"):
        torch.save({"weights": Trap(sprung)}, folder / name)
    code = {"auto_map": {"AutoModel": "trap.Model", "AutoConfig": "trap.Config", "AutoTokenizer": ["trap.Words", None]}}
    (folder / "config.json").write_text(json.dumps({"model_type": "trap"} | code))
    (folder / "tokenizer_config.json").write_text(json.dumps(code))
    (folder / "trap.py").write_text(f"open({str(sprung)!r}, 'w')\n")
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    return folder


def in_verl(folder: Path) -> Path:
    run = resolve_any("paper", "dapo_math", "estr", 0)
    assert isinstance(run, ClusterRun)
    policy = run.policy.model_copy(update={"model": str(folder)})
    return model_folder(run.model_copy(update={"policy": policy}), load_site())


def test_the_trap_works(model: Path, sprung: Path) -> None:
    torch.load(model / "pytorch_model.bin", weights_only=False)
    assert sprung.exists()


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (fingerprint, "model.pt: weights in a pickle are not loaded; convert them to safetensors"),
        (in_verl, "model.pt: weights in a pickle are not loaded; convert them to safetensors"),
        (load_policy, "not a policy that the embedded engine can read"),
        (load_llama, "not a Llama model"),
        (lambda folder: Qwen3Encoder(str(folder)), "not an embedding model"),
    ],
)
def test_pickled_weights_and_code_of_a_model_are_not_run(
    model: Path, sprung: Path, load: Callable[[Path], object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(model)
    assert not sprung.exists()


def test_code_beside_safetensors_is_not_run_either(model: Path, sprung: Path) -> None:
    (model / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="not an embedding model"):
        Qwen3Encoder(str(model))
    assert not sprung.exists()


def test_a_checkpoint_or_index_that_is_a_pickle_is_not_read(tmp_path: Path, sprung: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    torch.save(Trap(sprung), state / "step0000001.safetensors")
    (state / "step0000001.json").write_text(
        json.dumps({"step": 1, "sha256": file_digest(state / "step0000001.safetensors")})
    )
    index = tmp_path / "index"
    index.mkdir()
    for name in ("documents.jsonl", "vectors.npy"):
        torch.save(Trap(sprung), index / name)
    hashes = {name: file_digest(index / name) for name in ("documents.jsonl", "vectors.npy")}
    note = {"format": 1, "kind": "dense", "documents": 1, "settings": {"encoder": "x"}, "sha256": hashes}
    (index / NOTE).write_text(json.dumps(note))
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        load_state(state)
    with pytest.raises(UserError, match="not a dense index"):
        DenseIndex.load(index)
    (index / NOTE).write_text(json.dumps(note | {"kind": "pickle"}))
    with pytest.raises(UserError, match="unknown kind 'pickle'"):
        open_index(index)
    assert not sprung.exists()


def test_a_data_sets_loading_script_is_not_run(tmp_path: Path, sprung: Path) -> None:
    source = SMALL["gsm8k"]["train"]
    folder = tmp_path / source.repo
    folder.mkdir(parents=True)
    for name in ("gsm8k.py", "train.py"):
        (folder / name).write_text(f"open({str(sprung)!r}, 'w')\n")
    with pytest.raises(UserError, match="no copy of openai/gsm8k"):
        open_source(source, tmp_path)
    assert not sprung.exists()
