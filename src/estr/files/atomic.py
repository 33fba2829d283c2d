"""Files that are either whole or not there, whatever ends the process that writes them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; at the end it takes the place of `path`, after an error it is removed.

    Raises:
        OSError: that of the block, with `path` as its file: a full disk is not told by name.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise named(error, path) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def named(error: OSError, path: Path) -> OSError:
    """The same error, about `path`."""
    if error.errno is None:
        return OSError(f"{path}: {error}")
    return OSError(error.errno, os.strerror(error.errno), str(path))
