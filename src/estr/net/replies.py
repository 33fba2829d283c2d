"""HTTP replies of bounded length, read as UTF-8."""

from collections.abc import Iterator
from typing import Any

LARGEST = 16 << 20  # bytes, decompressed; the longest response of a policy has some hundred thousand


class TooLong(Exception):
    """A reply of more than `LARGEST` bytes."""


def bound(response: Any) -> None:
    """A hook for the responses of httpx (and of openai's fork of it): reading one raises `TooLong` in time."""
    parts = response.iter_bytes

    def iter_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
        size = 0
        for part in parts(chunk_size):
            size += len(part)
            if size > LARGEST:
                raise TooLong(f"a reply of more than {LARGEST >> 20} MiB")
            yield part

    response.iter_bytes = iter_bytes
    response.encoding = "utf-8"  # whatever its header says: some of Python's codecs are no text encodings
