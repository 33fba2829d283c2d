"""An SGLang server for the length of an evaluation, on the GPUs of this node."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from estr.errors import UserError

logger = logging.getLogger(__name__)
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
    python: str = "",
) -> Iterator[str]:
    """Serve the model folder on 127.0.0.1 and yield the URL; the server is stopped at the end.

    Raises:
        UserError: the server ends or does not answer in time; the end of its log is shown.
    """
    command = [python or sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--context-length", str(model_tokens)]
    command += ["--dp-size", str(gpus), *options] if gpus > 1 else list(options)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=_environment(os.environ), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _answers(f"http://127.0.0.1:{port}", process, log)
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    # nobody asks for entropies in an evaluation
    return dict(environment) | {"SGLANG_PLUGINS": ""}


def _answers(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    import httpx

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UserError(f"SGLang ended while it started; the end of {log}:\n{_tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=10, trust_env=False).status_code == 200:
                return url
        time.sleep(2.0)
    raise UserError(f"SGLang did not answer within {START_SECONDS:.0f} s; the end of {log}:\n{_tail(log)}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
