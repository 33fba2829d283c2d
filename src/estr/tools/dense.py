"""Dense search: a FAISS inner-product index of Qwen3 embeddings (an option: `pip install -e .[dense]`)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from estr.errors import UserError
from estr.tools.documents import DOCUMENTS, Documents, open_folder, read_note, write_note
from estr.tools.search import Hit

QUERY_PREFIX = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
END_OF_TEXT = "<|endoftext|>"
_VECTORS = "vectors.npy"
_CHUNK = 256  # documents encoded between two steps of the progress bar


class Encoder(Protocol):
    """Texts to float32 unit vectors `[texts, dimensions]`; may be called from several threads at once."""

    @property
    def name(self) -> str: ...

    def queries(self, texts: Sequence[str]) -> np.ndarray: ...

    def documents(self, texts: Sequence[str]) -> np.ndarray: ...


class Qwen3Encoder:
    """Qwen3 embeddings as BrowseComp-Plus makes them.

    Last-token pooling over an appended `<|endoftext|>`, L2-normalised; queries carry `QUERY_PREFIX`, documents nothing;
    half precision on a GPU, float32 on a CPU. Texts are cut to `max_tokens` (4,096 there), the end token included.
    """

    def __init__(self, model: str, device: str | None = None, batch_size: int = 8, max_tokens: int = 4096) -> None:
        """`model` is a folder in the Hugging Face format or a Hub id.

        Raises `UserError` if transformers is missing or the model cannot be read.
        """
        try:
            import transformers
        except ImportError as error:
            raise UserError("dense search needs transformers: pip install -e .[dense]") from error
        import torch

        self.name = model
        self._torch = torch
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        dtype = torch.float32 if self._device == "cpu" else torch.float16
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            # safetensors only: other weight files are pickles
            loaded: Any = transformers.AutoModel.from_pretrained(
                model, dtype=dtype, use_safetensors=True, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise UserError(f"{model}: not an embedding model that transformers can read ({reason})") from error
        self._model = loaded.to(self._device).eval()
        if END_OF_TEXT not in self._tokenizer.get_vocab():
            raise UserError(f"{model}: its tokenizer has no {END_OF_TEXT}; is it a Qwen3 embedding model?")
        self._end = self._tokenizer.convert_tokens_to_ids(END_OF_TEXT)

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode([QUERY_PREFIX + text for text in texts])

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        cut = self._tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=self._max_tokens - 1
        ).input_ids
        ids = [[*row, self._end] for row in cut]
        vectors = np.empty((len(ids), self._model.config.hidden_size), dtype=np.float32)
        by_length = sorted(range(len(ids)), key=lambda row: len(ids[row]))  # little padding in a batch
        for start in range(0, len(ids), self._batch_size):
            rows = by_length[start : start + self._batch_size]
            vectors[rows] = self._encode_batch([ids[row] for row in rows])
        return vectors

    def _encode_batch(self, ids: list[list[int]]) -> np.ndarray:
        torch = self._torch
        lengths = torch.tensor([len(row) for row in ids])
        # padded on the right: a causal model's last real position never sees the padding
        padded = torch.full((len(ids), int(lengths.max())), self._end)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = torch.tensor(tokens)
        mask = torch.arange(padded.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            states = self._model(
                input_ids=padded.to(self._device), attention_mask=mask.to(self._device), use_cache=False
            ).last_hidden_state
            pooled = states[torch.arange(len(ids)), lengths - 1].float()
            normalised = torch.nn.functional.normalize(pooled, dim=-1)
        return np.asarray(normalised.cpu().numpy())


class DenseIndex:
    """Exact inner-product search over all documents; with unit vectors the score is the cosine.

    The folder keeps the vectors as a NumPy array. BrowseComp-Plus's published indexes are pickles, which this never
    reads: encode the corpus instead.
    """

    kind = "dense"

    def __init__(self, documents: Documents, vectors: np.ndarray, encoder: Encoder) -> None:
        """`vectors` is `[documents, dimensions]`, float32; use `build` or `load`."""
        try:
            import faiss
        except ImportError as error:
            raise UserError("dense search needs faiss: pip install -e .[dense]") from error

        self._documents = documents
        self._vectors = vectors
        self._encoder = encoder
        self._index: Any = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    @classmethod
    def build(cls, docs: Iterable[tuple[str, str]], encoder: Encoder) -> "DenseIndex":
        """Encode and index (docid, text) pairs; a longer build shows a progress bar. Raises as `Documents` does."""
        from tqdm import tqdm

        documents = Documents(docs)
        starts = tqdm(range(0, len(documents), _CHUNK), desc="Encode", delay=3, leave=False)
        vectors = [encoder.documents(documents.texts[start : start + _CHUNK]) for start in starts]
        return cls(documents, np.concatenate(vectors), encoder)

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, k: int) -> list[Hit]:
        """The `k` nearest documents; none for a blank query."""
        if not query.strip() or k < 1:
            return []
        scores, positions = self._index.search(self._encoder.queries([query]), min(k, len(self)))
        found = sorted(zip((-scores[0]).tolist(), positions[0].tolist(), strict=True))
        return [Hit(self._documents.ids[place], -score, self._documents.texts[place]) for score, place in found]

    def get(self, docid: str) -> str:
        return self._documents.text(docid)

    def save(self, folder: Path) -> None:
        """Write vectors, documents and the encoder's name into `folder` (made if need be)."""
        open_folder(folder)
        self._documents.write(folder)
        np.save(folder / _VECTORS, self._vectors, allow_pickle=False)
        write_note(folder, self.kind, len(self), (DOCUMENTS, _VECTORS), {"encoder": self._encoder.name})

    @classmethod
    def load(cls, folder: Path, encoder: Encoder | None = None) -> "DenseIndex":
        """`encoder` defaults to a `Qwen3Encoder` of the model that built the index.

        Raises `UserError` if the folder holds no dense index or a damaged one, or if the encoder does not fit it.
        """
        note = read_note(folder)
        try:
            if note["kind"] != cls.kind or set(note["sha256"]) != {DOCUMENTS, _VECTORS}:
                raise ValueError(f"kind {note['kind']!r}")
            vectors = np.load(folder / _VECTORS, allow_pickle=False)
            documents = Documents.read(folder)
            if vectors.ndim != 2 or vectors.dtype != np.float32 or not len(vectors) == len(documents):
                raise ValueError("shape of the vectors")
            name = str(note["settings"]["encoder"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder}: not a dense index ({error}); build it again") from error
        encoder = encoder or Qwen3Encoder(name)
        width = encoder.queries(["width"]).shape[1]
        if width != vectors.shape[1]:
            raise UserError(
                f"{folder}: {encoder.name} makes vectors of {width} numbers, the index of {name} has {vectors.shape[1]}"
            )
        return cls(documents, vectors, encoder)
