import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from estr.errors import UserError
from estr.tools.dense import END_OF_TEXT, QUERY_PREFIX, DenseIndex, Qwen3Encoder
from estr.tools.service import open_index

DOCS = [
    (f"d{row}", text) for row, text in enumerate(["red fox", "blue fox", "red whale swims far away", "", "red fox"])
]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen2 model of two layers, with a byte-level BPE tokenizer as Qwen's."""
    from transformers import Qwen2Config, Qwen2Model, Qwen2Tokenizer

    folder = tmp_path_factory.mktemp("encoder")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator([QUERY_PREFIX, *(text for _, text in DOCS)], trainer)
    learnt = json.loads(bpe.to_str())["model"]
    merges: Any = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=learnt["vocab"], merges=merges, pad_token=END_OF_TEXT, eos_token=END_OF_TEXT)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    Qwen2Model(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def encoder(model_folder: str) -> Qwen3Encoder:
    return Qwen3Encoder(model_folder, device="cpu", batch_size=2)


def last_state(folder: str, text: str) -> np.ndarray:
    """The definition, one text at a time and without padding."""
    from transformers import AutoModel, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(text + END_OF_TEXT, return_tensors="pt").input_ids
    with torch.inference_mode():
        state = AutoModel.from_pretrained(folder)(input_ids=ids).last_hidden_state[0, -1]
    return np.asarray((state / state.norm()).numpy())


def test_an_embedding_is_the_normalised_state_of_the_end_token(model_folder: str, encoder: Qwen3Encoder) -> None:
    texts = [text for _, text in DOCS]
    vectors = encoder.documents(texts)
    assert vectors.dtype == np.float32
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, last_state(model_folder, text), atol=1e-5)
    assert np.triu(vectors[:4] @ vectors[:4].T, k=1).max() < 0.99  # four different texts


def test_queries_carry_the_instruction(model_folder: str, encoder: Qwen3Encoder) -> None:
    np.testing.assert_allclose(
        encoder.queries(["red fox"])[0], last_state(model_folder, QUERY_PREFIX + "red fox"), atol=1e-5
    )
    assert not np.allclose(encoder.queries(["red fox"]), encoder.documents(["red fox"]), atol=1e-2)


def test_a_long_text_is_cut_and_still_ends_with_the_end_token(model_folder: str) -> None:
    from transformers import AutoTokenizer

    tokens = len(AutoTokenizer.from_pretrained(model_folder)("red fox").input_ids)
    short = Qwen3Encoder(model_folder, device="cpu", max_tokens=tokens + 1)
    vectors = short.documents(["red fox", "red fox swims far"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    np.testing.assert_allclose(vectors[0], last_state(model_folder, "red fox"), atol=1e-5)


def test_search_ranks_by_cosine_and_breaks_ties_by_position(encoder: Qwen3Encoder) -> None:
    index = DenseIndex.build(DOCS, encoder)
    hits = index.search("blue fox", 9)
    cosines = encoder.documents([text for _, text in DOCS]) @ encoder.queries(["blue fox"])[0]
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines.tolist(), reverse=True), abs=1e-5)
    places = {hit.docid: place for place, hit in enumerate(hits)}
    assert places["d4"] == places["d0"] + 1
    assert index.search("blue fox", 2) == hits[:2]
    assert index.search("  ", 5) == index.search("fox", 0) == []
    assert len(index) == 5
    assert index.get("d1") == "blue fox"
    with pytest.raises(KeyError):
        index.get("d7")


def test_a_saved_index_answers_as_before(encoder: Qwen3Encoder, tmp_path: Path) -> None:
    index = DenseIndex.build(DOCS, encoder)
    index.save(tmp_path)
    for loaded in (DenseIndex.load(tmp_path, encoder), DenseIndex.load(tmp_path), open_index(tmp_path)):
        assert loaded.search("red whale", 3) == index.search("red whale", 3)
    (tmp_path / "vectors.npy").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match=r"vectors\.npy: damaged"):
        DenseIndex.load(tmp_path, encoder)


class Narrow:
    name = "narrow"

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), 1), dtype=np.float32)

    documents = queries


def test_an_encoder_of_another_width_is_refused(encoder: Qwen3Encoder, tmp_path: Path) -> None:
    DenseIndex.build(DOCS, encoder).save(tmp_path)
    with pytest.raises(UserError, match=r"narrow makes vectors of 1 numbers, the index of .* has 32"):
        DenseIndex.load(tmp_path, Narrow())


def test_a_bm25_index_is_no_dense_one(tmp_path: Path) -> None:
    from estr.tools.bm25 import BM25Index

    BM25Index.build(DOCS).save(tmp_path)
    with pytest.raises(UserError, match="not a dense index"):
        DenseIndex.load(tmp_path, Narrow())


@pytest.mark.parametrize("package", ["faiss", "transformers"])
def test_a_missing_package_is_named_with_its_remedy(
    package: str, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs {package}: pip install -e \.\[dense\]"):
        DenseIndex.build(DOCS, Narrow() if package == "faiss" else Qwen3Encoder(model_folder))


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not an embedding model"):
        Qwen3Encoder(str(tmp_path))


def test_weights_in_a_pickle_are_not_read(model_folder: str, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "pickled"
    shutil.copytree(model_folder, folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="not an embedding model"):
        Qwen3Encoder(str(folder))
