"""A second process beside this one: messages, memory that both see, and an end that leaves nothing behind."""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from estr.embedded.policy import Policy
from estr.errors import UserError

PATIENCE = 600.0
"""Seconds without a message after which the other process counts as stuck."""
GRACE = 5.0
"""Seconds that a process has to end by itself."""
CHILD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # freed memory stays with the process (glibc): half the time of a training step is page faults
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
context = multiprocessing.get_context("spawn")


class WorkerFailed(RuntimeError):
    """The second process failed, ended or got stuck; the message says which."""


class Channel:
    """One end of a pipe; `waited` sums the seconds spent waiting for messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.waited = 0.0

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def receive(self) -> Any:
        started = time.monotonic()
        self._wait()
        self.waited += time.monotonic() - started
        return self._connection.recv()

    def _wait(self) -> None:
        self._connection.poll(None)


class Worker(Channel):
    """Runs `main(channel, stopping, *arguments)` in a process of its own while the context lasts.

    `stopping()` turns true when the context ends or this process is gone; `main` returns soon after. Arguments are
    pickled or are shared memory of this module. `receive` raises `WorkerFailed` as soon as the process is gone, or the
    `UserError` that `main` raised.
    """

    def __init__(self, name: str, main: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = context.Pipe()
        self._failures, failures = context.Pipe(duplex=False)
        super().__init__(ours)
        self._stop = context.RawValue("b", 0)
        self._theirs = (theirs, failures)
        self._process = context.Process(
            target=_run, args=(main, theirs, failures, self._stop, os.getpid(), arguments), name=name, daemon=True
        )

    def __enter__(self) -> Self:
        with _environment(CHILD_ENVIRONMENT):
            self._process.start()
        for end in self._theirs:  # so that the process's end is the end of the pipe
            end.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.value = 1
        self._connection.close()
        self._process.join(GRACE)
        for end in (self._process.terminate, self._process.kill):
            if self._process.exitcode is None:
                end()
                self._process.join(GRACE)
        self._failures.close()
        self._process.close()

    def send(self, message: Any) -> None:
        try:
            super().send(message)
        except OSError:
            raise self._failure() from None

    def receive(self) -> Any:
        try:
            return super().receive()
        except (EOFError, OSError):
            raise self._failure() from None

    def _wait(self) -> None:
        ready = wait([self._failures, self._connection], PATIENCE)
        if not ready:
            raise WorkerFailed(f"the {self._process.name} process said nothing for {PATIENCE:.0f} s")
        if self._failures in ready:
            raise self._failure()

    def _failure(self) -> Exception:
        name = self._process.name
        try:
            error = self._failures.recv() if self._failures.poll(GRACE) else None
        except (EOFError, OSError):
            error = None
        if isinstance(error, UserError):
            return error
        if error is not None:
            return WorkerFailed(f"the {name} process failed: {error}")
        self._process.join(GRACE)
        code = self._process.exitcode
        if code is None or code >= 0:
            return WorkerFailed(f"the {name} process ended with exit code {code}")
        reason = ", as it is when memory runs out" if -code == signal.SIGKILL else ""
        return WorkerFailed(f"the {name} process was ended by signal {signal.Signals(-code).name}{reason}")


def _run(
    main: Callable[..., None], connection: Connection, failures: Connection, stop: Any, parent: int, arguments: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, and it ends this process
    torch.set_num_threads(1)

    def stopping() -> bool:
        return bool(stop.value) or os.getppid() != parent

    try:
        main(Channel(connection), stopping, *arguments)
    except BaseException as error:
        if stopping() and isinstance(error, EOFError | OSError):
            return  # the pipe was closed under it
        with suppress(OSError):
            failures.send(error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        if not isinstance(error, UserError):
            raise


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class SharedWeights:
    """The newest behavior weights (bfloat16, as `behavior_copy` rounds) with their version; -1 before the first."""

    def __init__(self, policy: Policy) -> None:
        size = sum(parameter.numel() for parameter in policy.parameters())
        self._memory = context.RawArray(ctypes.c_uint16, size)
        self._version = context.RawValue(ctypes.c_int64, -1)
        self._lock = context.Lock()

    @property
    def version(self) -> int:
        return int(self._version.value)

    def publish(self, policy: Policy, version: int) -> None:
        with self._locked(), torch.no_grad():
            self._tensor().copy_(parameters_to_vector(policy.parameters()))
            self._version.value = version

    def take(self, policy: Policy) -> int:
        """Load the weights into `policy`; returns their version."""
        with self._locked(), torch.no_grad():
            vector_to_parameters(self._tensor().float(), policy.parameters())
            return self.version

    def _tensor(self) -> Tensor:
        return torch.frombuffer(self._memory, dtype=torch.bfloat16)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=PATIENCE):
            raise WorkerFailed("the process that holds the shared weights does not let go of them")
        try:
            yield
        finally:
            self._lock.release()


class SharedGradients:
    """A float32 gradient of each of two processes, as one tensor `[2, parameters]`."""

    def __init__(self, policy: Policy) -> None:
        self._memory = context.RawArray(ctypes.c_float, 2 * sum(p.numel() for p in policy.parameters()))

    @property
    def tensor(self) -> Tensor:
        return torch.frombuffer(self._memory, dtype=torch.float32).view(2, -1)


def shared_numbers(count: int) -> Any:
    """`count` float64 zeros that both processes see and set, by index."""
    return context.RawArray(ctypes.c_double, count)
