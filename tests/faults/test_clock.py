"""A wall clock that jumps by years while a run trains, is killed, resumes and is evaluated."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import EVALUATE, EVALUATE_WARM_START, PATIENCE, RUN, SCALE, TRAIN
from same import assert_same_evaluation, assert_same_training

ESTR = Path(sys.executable).with_name("estr")
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
OFFSETS = ("-4000d", "+3000d", "-1d", "+9000d", "-2h")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed: apt-get install faketime"),
]


@contextmanager
def jumping_clock(folder: Path) -> Iterator[dict[str, str]]:
    """An environment whose wall clock is off by other years several times a second; clocks for durations run on."""
    offset, stop = folder / "offset", threading.Event()
    offset.write_text(OFFSETS[0])

    def jump() -> None:
        number = 0
        while not stop.wait(0.15):
            number += 1
            new = folder / "new offset"
            new.write_text(OFFSETS[number % len(OFFSETS)])
            new.replace(offset)

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        yield os.environ | {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    finally:
        stop.set()
        thread.join()


def begin(folder: Path, environment: dict[str, str], *command: str) -> "subprocess.Popen[str]":
    arguments = [str(ESTR), *command, "--scale", SCALE]
    return subprocess.Popen(arguments, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def test_a_clock_that_jumps_changes_nothing(prepared: Path, unbroken: Path, tmp_path: Path) -> None:
    with jumping_clock(tmp_path) as environment:
        training = begin(prepared, environment, *TRAIN)
        deadline = time.monotonic() + PATIENCE
        while not any((prepared / RUN).glob("state/*/step*.json")):
            assert training.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        training.send_signal(signal.SIGKILL)
        training.wait()
        for command in (TRAIN, EVALUATE_WARM_START, EVALUATE):
            process = begin(prepared, environment, *command)
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
    assert_same_training(prepared, unbroken)
    assert_same_evaluation(prepared, unbroken)


def test_the_jumps_are_real(tmp_path: Path) -> None:
    ask = "import time; a = time.time(); m = time.monotonic()\nwhile abs(time.time() - a) < 3600: pass\n"
    ask += "print(time.monotonic() - m)"
    with jumping_clock(tmp_path) as environment:
        found = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert 0 <= float(found.stdout) < PATIENCE
