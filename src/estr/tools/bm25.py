"""Lexical search: BM25 scores of `bm25s`, with a query path of its own for single short queries."""

import logging
import re
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from estr.errors import UserError
from estr.tools.documents import DOCUMENTS, Documents, open_folder, read_note, write_note
from estr.tools.search import Hit

Tokenization = Literal["english", "whitespace"]

_FILES = (
    DOCUMENTS,
    "data.csc.index.npy",
    "indices.csc.index.npy",
    "indptr.csc.index.npy",
    "params.index.json",
    "vocab.index.json",
)
_WORD = re.compile(r"\w+")
# Lucene's English list
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such "
        "that the their then there these they this to was will with"
    )
)


def _english(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


_TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"english": _english, "whitespace": str.split}


def _bm25s() -> Any:
    """The package, without the debug messages that it turns on."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


class BM25Index:
    """BM25 over documents held in memory.

    Scores are Lucene's formula: idf = ln(1 + (N - df + 0.5)/(df + 0.5)), tf/(tf + k1 (1 - b + b length/mean length)),
    a query word counted as often as it occurs. k1 = 0.9 and b = 0.4 are Pyserini's defaults, which BrowseComp-Plus's
    BM25 uses.

    "english" tokenization: lower-cased runs of letters, digits and underscores, without Lucene's 33 stop words. It
    differs from Pyserini's analyzer in three ways: no Porter stemming (a query word must occur as it stands), words
    split at apostrophes and points, document lengths exact rather than rounded to Lucene's one byte. So rankings are
    close to BrowseComp-Plus's, not equal. "whitespace" tokenization is plain splitting: case counts, no stop words.
    """

    kind = "bm25"

    def __init__(self, documents: Documents, retriever: Any, tokenization: Tokenization) -> None:
        """`retriever` is a `bm25s.BM25` over `documents`; use `build` or `load`."""
        self._documents = documents
        self._retriever = retriever
        self._tokenization = tokenization
        self._tokenize = _TOKENIZERS[tokenization]
        self._vocabulary: dict[str, int] = retriever.vocab_dict
        self._scores: np.ndarray = retriever.scores["data"]
        self._positions: np.ndarray = retriever.scores["indices"]
        self._starts: list[int] = retriever.scores["indptr"].tolist()

    @classmethod
    def build(
        cls,
        docs: Iterable[tuple[str, str]],
        k1: float = 0.9,
        b: float = 0.4,
        tokenization: Tokenization = "english",
    ) -> "BM25Index":
        """Index (docid, text) pairs. A build of more than some seconds shows progress bars.

        Raises `UserError` for what `Documents` refuses, and if no document holds a word.
        """
        bm25s = _bm25s()
        from tqdm import tqdm

        documents = Documents(docs)
        tokenize = _TOKENIZERS[tokenization]
        vocabulary: dict[str, int] = {}
        token_ids = []
        for text in tqdm(documents.texts, desc="Tokenize", delay=3, leave=False):
            # 4 bytes a token: a list of ints would take twice the memory on a corpus of long documents
            token_ids.append(array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in tokenize(text)]))
        if not vocabulary:
            raise UserError("no document holds a word to index")
        retriever = bm25s.BM25(k1=k1, b=b, method="lucene")
        retriever.index((token_ids, vocabulary), create_empty_token=False, show_progress=len(documents) > 20_000)
        return cls(documents, retriever, tokenization)

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, k: int) -> list[Hit]:
        """The `k` best documents that hold a word of the query; equal scores in the order of indexing."""
        words = [self._vocabulary[word] for word in self._tokenize(query) if word in self._vocabulary]
        if not words or k < 1:
            return []
        # bm25s's own retrieval leaves the order of equal scores open, and is made for batches
        totals = np.zeros(len(self._documents), dtype=np.float32)
        for word in words:
            start, end = self._starts[word], self._starts[word + 1]
            totals[self._positions[start:end]] += self._scores[start:end]  # a document occurs once per word
        matches = np.flatnonzero(totals)
        scores = totals[matches]
        if len(matches) > k:
            kth = np.partition(scores, len(scores) - k)[len(scores) - k]
            matches, scores = matches[scores >= kth], scores[scores >= kth]
        best = np.argsort(-scores, kind="stable")[:k]
        return [
            Hit(self._documents.ids[position], score, self._documents.texts[position])
            for position, score in zip(matches[best].tolist(), scores[best].tolist(), strict=True)
        ]

    def get(self, docid: str) -> str:
        return self._documents.text(docid)

    def save(self, folder: Path) -> None:
        """Write the index into `folder` (made if need be), in `bm25s`'s own files and the documents."""
        open_folder(folder)
        self._documents.write(folder)
        self._retriever.save(folder, allow_pickle=False, show_progress=False)
        settings = {"k1": self._retriever.k1, "b": self._retriever.b, "tokenization": self._tokenization}
        write_note(folder, self.kind, len(self), _FILES, settings)

    @classmethod
    def load(cls, folder: Path) -> "BM25Index":
        """Raises `UserError` if the folder holds no BM25 index or a damaged one."""
        bm25s = _bm25s()
        note = read_note(folder)
        try:
            if note["kind"] != cls.kind or set(note["sha256"]) != set(_FILES):
                raise ValueError(f"kind {note['kind']!r}")
            retriever = bm25s.BM25.load(folder, mmap=False, allow_pickle=False, show_progress=False)
            index = cls(Documents.read(folder), retriever, note["settings"]["tokenization"])
            index._check(note["documents"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder}: not a BM25 index ({error}); build it again") from error
        return index

    def _check(self, documents: int) -> None:
        if not len(self) == documents == self._retriever.scores["num_docs"]:
            raise ValueError("number of documents")
        if not len(self._scores) == len(self._positions) == self._starts[-1]:
            raise ValueError("length of the arrays")
        if len(self._starts) != len(self._vocabulary) + 1:
            raise ValueError("size of the vocabulary")
