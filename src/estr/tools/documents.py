"""The documents of a search index, and the folder an index is kept in.

The folder holds plain data only (JSON lines, NumPy arrays without objects) and `index.json`: kind, settings, number of
documents, and the SHA-256 of every other file. The note is written last and checked before anything is read.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from estr.errors import UserError

NOTE = "index.json"
DOCUMENTS = "documents.jsonl"
FORMAT = 1


class Documents:
    """Ids and texts, in memory. Raises `UserError` if there are none, and for a repeated or empty id or broken text."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.ids: list[str] = []
        self.texts: list[str] = []
        self._positions: dict[str, int] = {}
        for row, (docid, text) in enumerate(pairs):
            if not isinstance(docid, str) or not isinstance(text, str):
                raise UserError(f"document {row}: docid and text must be text")
            if not docid or docid in self._positions:
                raise UserError(f"document {row}: {'repeated' if docid else 'empty'} docid {docid!r}")
            try:
                docid.encode()
                text.encode()
            except UnicodeEncodeError as error:
                raise UserError(f"document {row} ({docid!r}): not Unicode text ({error.reason})") from error
            self._positions[docid] = row
            self.ids.append(docid)
            self.texts.append(text)
        if not self.ids:
            raise UserError("no documents to index")

    def __len__(self) -> int:
        return len(self.ids)

    def text(self, docid: str) -> str:
        """Raises `KeyError` for an unknown id."""
        return self.texts[self._positions[docid]]

    def write(self, folder: Path) -> None:
        with (folder / DOCUMENTS).open("w", encoding="utf-8") as lines:
            for docid, text in zip(self.ids, self.texts, strict=True):
                lines.write(json.dumps({"id": docid, "text": text}, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Documents":
        with (folder / DOCUMENTS).open(encoding="utf-8") as lines:
            rows = map(json.loads, lines)
            return cls((row["id"], row["text"]) for row in rows)


def open_folder(folder: Path) -> None:
    """Make `folder` ready for a new index: what it held is no index any more."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).unlink(missing_ok=True)


def write_note(folder: Path, kind: str, documents: int, files: Iterable[str], settings: dict[str, Any]) -> None:
    """Finish an index: note its settings and the hash of each of its files."""
    hashes = {name: _sha256(folder / name) for name in sorted(files)}
    note = {"format": FORMAT, "kind": kind, "documents": documents, "settings": settings, "sha256": hashes}
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n")


def read_note(folder: Path) -> dict[str, Any]:
    """The note of an index whose files are whole. Raises `UserError` naming the file that is missing or damaged."""
    note = _parse_note(folder)
    for name, expected in note["sha256"].items():
        file = folder / Path(name).name
        if not file.is_file():
            raise UserError(f"{file}: missing; build the index again")
        if _sha256(file) != expected:
            raise UserError(f"{file}: damaged (its hash is not the one in {NOTE}); build the index again")
    return note


def _parse_note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    if not path.is_file():
        raise UserError(f"{folder}: no search index (there is no {NOTE}); build it first")
    try:
        note = json.loads(path.read_text())
        version = note["format"]
        if not (isinstance(note["sha256"], dict) and isinstance(note["settings"], dict)):
            raise TypeError("sha256 or settings")
        if not (isinstance(note["kind"], str) and isinstance(note["documents"], int)):
            raise TypeError("kind or documents")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error!r}); build the index again") from error
    if version != FORMAT:
        raise UserError(f"{path}: format {version!r}, this version reads {FORMAT}; build the index again")
    return cast(dict[str, Any], note)


def read_kind(folder: Path) -> str:
    """The kind of the index in `folder`, by its note alone. Raises `UserError` if there is none."""
    return str(_parse_note(folder)["kind"])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
