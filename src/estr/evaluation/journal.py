"""An append-only JSON-lines file that survives being killed at any byte, a full disk and damage."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from estr.errors import UserError
from estr.files.atomic import named
from estr.provenance import seal, unseal

logger = logging.getLogger(__name__)


class Journal:
    """One sealed JSON object per line, in ASCII. A line counts once its newline is written.

    Opening drops a torn last line, so that the next line starts on its own; what was whole is in `lines`. A damaged
    line is reported and left out: what it held is missing. A process that is killed loses nothing; a machine that loses
    power loses the last second. A new file is for its owner alone: a benchmark's questions and answers may stand in it.

    Raises:
        UserError: no line is a JSON object: another program has written here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._synced, self._on_disk = 0.0, True
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        self._file = path.open("ab", buffering=0)
        content = path.read_bytes()
        self._size = content.rfind(b"\n") + 1
        damaged = ""
        for number, line in enumerate(content[: self._size].split(b"\n")[:-1], 1):
            try:
                self.lines.append(unseal(json.loads(line)))
            except (ValueError, RecursionError) as error:
                damaged = f"line {number} is damaged ({error})"
                logger.warning("%s: %s: it is left out", path, damaged)
        if damaged and not self.lines:
            self._file.close()
            raise UserError(f"{path}: {damaged}, and so is every other; delete the file to start over")
        if self._size < len(content):
            self._file.truncate(self._size)

    def append(self, entry: dict[str, Any]) -> None:
        """Hand one line to the operating system, and all so far to the disk if that is more than a second ago.

        Raises:
            OSError: the line could not be written, and nothing of it was.
        """
        line = json.dumps(seal(entry)).encode("ascii") + b"\n"
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            self._size += len(line)
            self._on_disk = False
            if time.monotonic() - self._synced > 1:
                self._sync()
        except OSError as error:
            self._file.truncate(self._size)
            raise named(error, self.path) from error

    def close(self) -> None:
        if not self._on_disk:
            self._sync()
        self._file.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced, self._on_disk = time.monotonic(), True
