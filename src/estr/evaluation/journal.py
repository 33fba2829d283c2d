"""An append-only JSON-lines file that survives being killed at any byte."""

import json
import os
import time
from pathlib import Path
from typing import Any

from estr.errors import UserError


class Journal:
    """One JSON object per line, in ASCII. A line counts once its newline is written.

    Opening drops a torn last line, so that the next line starts on its own; what was whole is in `lines`. A process
    that is killed loses nothing; a machine that loses power loses the last second. A new file is for its owner alone:
    a benchmark's questions and answers may stand in it.

    Raises:
        UserError: a whole line is no JSON object: another program has written here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._synced = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
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
        """Hand one line to the operating system, and all so far to the disk if that is more than a second ago."""
        self._file.write(json.dumps(entry).encode("ascii") + b"\n")
        self._file.flush()
        if time.monotonic() - self._synced > 1:
            self._sync()

    def close(self) -> None:
        if not self._file.closed:
            self._sync()
        self._file.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()
