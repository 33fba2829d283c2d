"""Servers for the length of a job: SGLang for an evaluation, the retriever for a training."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from estr.errors import UserError

START_SECONDS = 1800.0


@contextlib.contextmanager
def sglang_server(
    model: Path,
    log: Path,
    *,
    gpus: int,
    model_tokens: int,
    port: int = 30_000,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Serve the model folder on 127.0.0.1 and yield the URL; the server is stopped at the end.

    Raises:
        UserError: the server ends or does not answer in time; the end of its log is shown.
    """
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--context-length", str(model_tokens)]
    command += ["--dp-size", str(gpus), *options] if gpus > 1 else list(options)
    # nobody asks for entropies in an evaluation
    environment = dict(os.environ) | {"SGLANG_PLUGINS": ""}
    with _running(command, f"http://127.0.0.1:{port}", log, "SGLang", environment) as url:
        yield url


@contextlib.contextmanager
def search_service(index: Path, host: str, port: int, log: Path) -> Iterator[str]:
    """Serve an index, or a prepared corpus, to all nodes of the job, and yield the URL.

    It listens on the address by which the nodes know each other and asks for no password. Raises `UserError` as
    `sglang_server` does.
    """
    estr = str(Path(sys.executable).with_name("estr"))
    command = [estr, "search", "serve", str(index), "--host", host, "--port", str(port)]
    command += [] if host.startswith("127.") else ["--expose"]
    with _running(command, f"http://{host}:{port}", log, "the retriever", dict(os.environ)) as url:
        yield url


@contextlib.contextmanager
def _running(command: list[str], url: str, log: Path, name: str, environment: dict[str, str]) -> Iterator[str]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _answers(url, process, log, name)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], patience: float = 20.0) -> None:
    """End a process and its children: asked first, killed after `patience` seconds."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=patience)


def _answers(url: str, process: subprocess.Popen[bytes], log: Path, name: str) -> str:
    import httpx

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UserError(f"{name} ended while it started; the end of {log}:\n{tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=10, trust_env=False).status_code == 200:
                return url
        time.sleep(2.0)
    raise UserError(f"{name} did not answer within {START_SECONDS:.0f} s; the end of {log}:\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
