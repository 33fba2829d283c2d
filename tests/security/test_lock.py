"""The lock of the laptop environment: every package with its hash, the same versions as pyproject.toml."""

import re
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import REPOSITORY
from tests.test_environment import PROJECT, pins

LOCK = REPOSITORY / "environments/laptop.lock"
ENTRY = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+?)(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)")


def locked() -> dict[str, str]:
    """Version by name. Fails for a line that is anything but a pin with hashes."""
    lines = LOCK.read_text().replace(" \\\n    ", " ").splitlines()
    entries = [ENTRY.fullmatch(line) for line in lines]
    assert [line for line, entry in zip(lines, entries, strict=True) if entry is None] == []
    return {canonicalize_name(entry["name"]): entry["version"] for entry in entries if entry}


def test_every_direct_pin_is_locked_in_its_version() -> None:
    direct = pins(PROJECT["dependencies"]) | pins(PROJECT["optional-dependencies"]["dev"])
    found = locked()
    assert {name: Version(found[canonicalize_name(name)]).public for name in direct} == {
        name: str(Version(number)) for name, number in direct.items()
    }
    build = (REPOSITORY / "pyproject.toml").read_text().partition('requires = ["setuptools==')[2].partition('"')[0]
    assert found["setuptools"] == build, "an editable install builds with the locked one"


def test_nothing_of_cuda_is_locked() -> None:
    found = locked()
    assert found["torch"].endswith("+cpu")
    assert not [name for name in found if name.startswith(("nvidia", "cuda", "triton"))]


def test_the_lock_is_complete(tmp_path: Path) -> None:
    """What the locked packages ask for here is locked as well: an installation in hash mode fails otherwise."""
    code = """
import sys
from importlib.metadata import distribution
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
for name in sys.stdin.read().split():
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            print(canonicalize_name(wanted.name))
"""
    found = locked()
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(found), capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) - found.keys() == set()
