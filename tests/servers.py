"""Servers that users start, as processes of their own until they answer."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import psutil

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
def served(command: Sequence[str], url: str, folder: Path) -> Iterator[psutil.Process]:
    """`estr COMMAND` run in `folder` until `url` answers; ended with all that descend from it."""
    with (folder / "server.log").open("wb") as log:
        server = psutil.Popen(
            [*ESTR, *command],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
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


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int, host: str = "127.0.0.1") -> Iterator[str]:
    """`estr ui` in a checkout; its address once it answers."""
    address = f"http://{host}:{port}"
    with served(["ui", "--port", str(port), "--host", host], f"{address}/health", folder):
        yield address
