import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import REPOSITORY

ESTR = [sys.executable, "-c", "from estr.cli import main; main()"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(process: psutil.Process) -> list[psutil.Process]:
    """The process and all that descend from it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


@contextlib.contextmanager
def served(command: list[str], url: str, folder: Path) -> Iterator[psutil.Process]:
    """`estr COMMAND` run in `folder` until `url` answers; ended with all that descend from it."""
    with (folder / "server.log").open("wb") as log:
        server = psutil.Popen([*ESTR, *command], cwd=folder, env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 180
        while True:
            assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-2000:]
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url, trust_env=False, timeout=30).status_code == 200:
                    break
            time.sleep(0.2)
        yield server
    finally:
        started = family(server)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(started, 20)[1]:
            process.kill()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `estr` finds its configuration."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    return folder
