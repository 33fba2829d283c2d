"""An append-only JSON-lines file that survives being killed at any byte."""

import json
import os
from pathlib import Path
from typing import Any

from estr.errors import UserError


class Journal:
    """One JSON object per line, in ASCII. A line counts once its newline is on disk.

    Opening drops a torn last line, so that the next line starts on its own; what was whole is in `lines`.

    Raises:
        UserError: a whole line is no JSON object: another program has written here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].split(b"\n")[:-1], 1):
            try:
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    raise ValueError("no JSON object")
            except (ValueError, RecursionError) as error:
                self.close()
                raise UserError(f"{path}: line {number} is damaged ({error}); delete the file to start over") from error
            self.lines.append(entry)
        if whole < len(content):
            self._file.truncate(whole)

    def append(self, entry: dict[str, Any]) -> None:
        """Write one line through to the disk."""
        self._file.write(json.dumps(entry).encode("ascii") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
