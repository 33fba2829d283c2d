"""One writer per folder: the lock of the operating system on `<folder>/.lock`, which goes with its process."""

import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from estr.errors import UserError

NAME = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
logger = logging.getLogger(__name__)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the only process that writes into `folder`, which is made if need be.

    The file stays behind, empty: removing it could take the lock from under a third process.

    Raises:
        UserError: another process writes there; its id and start time are named.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: {_holder(file)} writes here; wait for it to end, or stop it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            logger.warning("%s: this file system has no locks; see that no second command writes here", folder)
        file.truncate(0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        with suppress(OSError):  # a full disk has no room for it; the lock holds without
            file.write(json.dumps(holder).encode())
        try:
            yield
        finally:
            file.truncate(0)


def _holder(file: BinaryIO) -> str:
    try:
        file.seek(0)
        holder = json.loads(file.read())
        return f"process {holder['pid']} on {holder['host']}, started {holder['since']},"
    except (ValueError, KeyError, TypeError):  # it has just begun
        return "another process"
