"""Where did a secret go? Searches files of every kind that the pipeline writes, and the command lines of processes."""

import base64
import gzip
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, quote_plus

import psutil
import pyarrow.parquet as pq


def forms(secret: str) -> set[bytes]:
    """As it stands, escaped for JSON and for URLs, and in base64, wherever it begins there."""
    text = {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret), quote_plus(secret)}
    found = {form.encode() for form in text}
    for offset in range(3):
        # of characters before and after, only whole groups of ours are known
        coded = base64.b64encode(b"\0" * offset + secret.encode())
        found |= {(whole := coded[4 if offset else 0 : -4]), whole.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


def leaks(secrets: Iterable[str], folder: Path, *texts: str) -> list[str]:
    """Files below `folder`, and `texts`, that hold one of the secrets in some form."""
    wanted = set[bytes]().union(*map(forms, secrets))
    contents = [(str(file), content) for file in _files(folder) for content in _contents(file)]
    contents += [(f"text {number}", text.encode()) for number, text in enumerate(texts)]
    return sorted({name for name, content in contents if any(form in content for form in wanted)})


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def _contents(file: Path) -> Iterator[bytes]:
    yield file.read_bytes()
    if file.suffix == ".gz":
        yield gzip.decompress(file.read_bytes())
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        yield json.dumps(table.to_pylist(), default=str, ensure_ascii=False).encode()
        yield str(table.schema.metadata).encode()


@contextmanager
def watched() -> Iterator[list[str]]:
    """The command lines of all that descends from this process meanwhile, as any user of the machine sees them."""
    seen: set[str] = set()
    lines: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for process in psutil.Process().children(recursive=True):
                try:
                    seen.add(" ".join(process.cmdline()))
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lines
    finally:
        done.set()
        watcher.join()
        lines += sorted(seen)
