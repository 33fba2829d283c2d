"""The real Snakemake at scale smoke, and the store that it fills behind its real server."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def snakemake(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [str(BIN / "snakemake"), "--config", "scale=smoke", "--", *arguments]
    if arguments and arguments[0].startswith("-"):
        command = [str(BIN / "snakemake"), *arguments, "--config", "scale=smoke"]
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    assert result.returncode == code, output[-4000:]
    return output


def planned(folder: Path, *targets: str) -> dict[str, int]:
    """Jobs per rule of a dry run."""
    output = snakemake(folder, "-n", *targets)
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE) if name != "total"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int, host: str = "127.0.0.1") -> Iterator[str]:
    """`estr ui` in a checkout; its address once it answers."""
    address = f"http://{host}:{port}"
    with (folder / "server.log").open("a") as log:
        server = subprocess.Popen(
            [str(BIN / "estr"), "ui", "--port", str(port), "--host", host],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
        while not _answers(address):
            assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-2000:]
            time.sleep(0.5)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
