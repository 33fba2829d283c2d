"""Bounds of every fuzz test, and the count of the cases that were tried."""

import contextlib
import faulthandler
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fuzzing import PROFILE, forget_configs

HERE = Path(__file__).parent
HANG_SECONDS = 300  # of a test with all its cases in CI
MEMORY = 3 << 30  # bytes of address space beyond what the tests start with
CASES: Counter[str] = Counter()


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """A blow-up becomes a `MemoryError`."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang becomes a failure, or the end of the process if it is inside of compiled code."""
    seconds = HANG_SECONDS * max(1, PROFILE.max_examples // 100)

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(2 * seconds, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the cases of each Hypothesis test of this folder, by module."""
    for item in items:
        test = getattr(getattr(item, "obj", None), "hypothesis", None)
        if test is not None and item.path.parent == HERE and not hasattr(test.inner_test, "counted"):
            test.inner_test = _counted(test.inner_test, item.path.stem)


def _counted(inner: Callable[..., None], surface: str) -> Callable[..., None]:
    @wraps(inner)
    def case(*arguments: Any, **named: Any) -> None:
        inner(*arguments, **named)
        CASES[surface] += 1

    case.counted = True  # type: ignore[attr-defined]
    return case


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CASES:
        parts = ", ".join(f"{surface.removeprefix('test_fuzz_')} {count:,}" for surface, count in sorted(CASES.items()))
        terminalreporter.write_line(f"fuzz cases: {sum(CASES.values()):,} ({parts})")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a copy of configs/, entered. A test that changes a file goes through `changed`."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(HERE.parents[1] / "configs", folder / "configs")
    with contextlib.chdir(folder):
        yield folder
    forget_configs()
