"""`run.json`: where a run's numbers come from, and the checksums by which damage to its files is found."""

import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from estr.errors import UserError
from estr.files.atomic import replacing

CHECKSUM = "checksum"
"""Key of the last entry of a sealed JSON object."""
PACKAGES = (
    "estr",
    "torch",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "pydantic",
    "snakemake",
    "mlflow",
    "verl",
    "sglang",
    "ray",
    "transformers",
)
logger = logging.getLogger(__name__)


@cache
def commit() -> str:
    """The checkout's commit, with `+dirty` if tracked files differ from it; "unknown" outside a checkout."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def packages() -> dict[str, str]:
    """Versions of those that are installed; the environments of the two engines differ."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, str | int]:
    """What decides speed and rounding: processor, cores, system. No host name."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": os.cpu_count() or 1,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, sealed, to a file that either is whole or does not exist."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(seal(content), indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote, or a JSON object without a seal. Raises `UserError` if it is unreadable or damaged."""
    try:
        return read_sealed(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable ({error}); delete it and rerun the rule that makes it") from error


def read_sealed(path: Path) -> dict[str, Any]:
    """As `read_json`. Raises `OSError` or `ValueError`."""
    return unseal(json.loads(path.read_bytes()))


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` with its checksum as the last entry."""
    return {**content, CHECKSUM: _checksum(content)}


def unseal(content: Any) -> dict[str, Any]:
    """A parsed JSON object without its checksum; one that never had a checksum is taken as it is.

    Raises:
        ValueError: no object, or not the one that was sealed.
    """
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    rest = dict(content)
    if rest and rest.popitem()[1] == _checksum(rest):  # whatever damage made of the key
        return rest
    if CHECKSUM in content:
        raise ValueError("its content does not match its checksum")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """SHA-256 by path below `folder` of the files that match: what a note lists under `files`."""
    found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    return {str(path.relative_to(folder)): file_digest(path) for path in found}


def check_files(note: Path, within: str = "") -> None:
    """Compare the files beside `note` that it lists and whose path begins with `within`; without a note there are none.

    Raises:
        UserError: one is missing or damaged, or the note is.
    """
    listed: dict[str, str] = read_json(note).get("files", {}) if note.exists() else {}
    for name, digest in listed.items():
        path = note.parent / name
        if name.startswith(within) and (not path.is_file() or file_digest(path) != digest):
            state = f"is not the one that {note.name} lists" if path.is_file() else f"is missing, {note.name} lists it"
            raise UserError(f"{path}: damaged (the file {state}); delete it and rerun the rule that makes it")


def is_intact(note: Path) -> bool:
    """Are the files beside `note` as it lists them? If not, a warning says so."""
    try:
        check_files(note)
    except UserError as error:
        logger.warning("%s", error)
        return False
    return True
