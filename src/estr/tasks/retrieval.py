"""What the two search benchmarks share: the retriever they are given, and how a snippet is cut."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from estr.errors import UserError
from estr.net.address import parse_address
from estr.tools.bm25 import BM25Index
from estr.tools.search import SearchBackend, SearchIndex

Truncate = Callable[[str, int], str]

CORPUS = "corpus.parquet"
INDEX = "index"


def cut_characters(text: str, tokens: int) -> str:
    """The stand-in where no tokenizer is at hand: a token of English text is about four characters."""
    return text[: 4 * tokens]


def require(backend: SearchBackend | None, task: str) -> SearchBackend:
    if backend is None:
        raise UserError(f"{task} needs a retriever: the URL of a search service, an index folder or its corpus.parquet")
    return backend


def is_service(where: str | Path) -> bool:
    """True for the URL of a search service, False for a path. Raises `UserError` for a URL that holds a key."""
    if not str(where).startswith(("http://", "https://")):
        return False
    parse_address(str(where), "a search service asks for none")
    return True


def open_retriever(where: str | Path) -> SearchBackend:
    """A retriever from the URL of a search service, or from what `open_local` takes."""
    if is_service(where):
        from estr.tools.client import HttpSearch

        return HttpSearch(str(where))
    return open_local(Path(where))


def open_local(path: Path) -> SearchIndex:
    """A retriever from a saved index, a corpus in parquet, or a prepared data folder.

    A data folder is searched for `index/`, then for `corpus.parquet`, which is indexed with BM25 in memory. Raises
    `UserError` if it is none of these.
    """
    if (path / INDEX).is_dir():
        path = path / INDEX
    elif (path / CORPUS).is_file():
        path = path / CORPUS
    if path.is_dir():
        from estr.tools.service import open_index

        return open_index(path)
    return _bm25(path)


def build_index(corpus: Path, out: Path, encoder: str | None) -> None:
    """Index a prepared `corpus.parquet` and save it in `out`: with BM25, or with the embeddings of `encoder`.

    `encoder` is a model folder or Hub name, a Qwen3 embedding model. Raises `UserError` for a corpus that cannot be
    read and for a missing package or model.
    """
    if encoder is None:
        _bm25(corpus).save(out)
        return
    from estr.tools.dense import DenseIndex, Qwen3Encoder

    with _reading(corpus):
        DenseIndex.build(_documents(corpus), Qwen3Encoder(encoder)).save(out)


def _bm25(corpus: Path) -> BM25Index:
    with _reading(corpus):
        return BM25Index.build(_documents(corpus))


@contextmanager
def _reading(corpus: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{corpus}: not a prepared corpus ({reason}); run `estr data prepare`") from error
    except UserError as error:
        raise UserError(f"{corpus}: {error}") from error


def _documents(corpus: Path) -> Iterator[tuple[str, str]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(corpus).iter_batches(batch_size=1_000, columns=["docid", "text"]):
        for row in batch.to_pylist():
            yield row["docid"], row["text"]
