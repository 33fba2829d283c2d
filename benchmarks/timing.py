"""Interleaved timing: the arms of a comparison take turns, and every turn gives one ratio."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


class Spent(NamedTuple):
    """Seconds of one turn: on the clock, and of this process's threads on a processor."""

    wall: float
    cpu: float


ALONE = """
import resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)
sys.exit(done.returncode)
"""
ESTR = ("-c", "from estr.cli import main; main()")
"""Python's arguments for a command of estr."""


class ProcessSpent(NamedTuple):
    """Of a process and its children: seconds on the clock, CPU seconds, and the largest process's memory in MB."""

    wall: float
    cpu: float
    memory: float


def of_a_process(*arguments: str) -> ProcessSpent:
    """Runs Python with these arguments, from a small process: a large one would pass on its own peak of memory."""
    command = [sys.executable, "-c", ALONE, sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return ProcessSpent(*map(float, done.stdout.splitlines()[-1].split()))


class Clock:
    """Counts from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> Spent:
        return Spent(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class Spread(NamedTuple):
    """Lower quartile, median, upper quartile."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(*np.percentile(values, [25, 50, 75]).tolist())


@dataclass(frozen=True)
class Measurement:
    """What `arm` costs in units of `baseline`: a ratio per turn, of seconds on the clock and of CPU seconds.

    `seconds` and `baseline_seconds` are CPU seconds of one call, `wall_seconds` those of the arm on the clock.
    `at_most` or `at_least` is the target of the ratio.
    """

    benchmark: str
    case: str
    arm: str
    baseline: str
    turns: int
    wall: Spread
    cpu: Spread
    seconds: Spread
    baseline_seconds: Spread
    wall_seconds: Spread
    at_most: float | None = None
    at_least: float | None = None

    @property
    def verdict(self) -> str:
        """Of the median CPU ratio; "" without a target."""
        if self.at_most is None and self.at_least is None:
            return ""
        met = self.cpu.median <= self.at_most if self.at_most is not None else self.cpu.median >= (self.at_least or 0)
        return "met" if met else "missed"

    def aim(self, *, at_most: float | None = None, at_least: float | None = None) -> "Measurement":
        return replace(self, at_most=at_most, at_least=at_least)


def spent(call: Callable[[], object]) -> Spent:
    """What a call takes; one that returns `Spent` has timed itself."""
    clock = Clock()
    result = call()
    return result if isinstance(result, Spent) else clock.stop()


def take_turns(arms: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[Spent]]:
    """Time every arm once a turn, after an untimed call of each; the arm that goes first changes every turn."""
    for call in arms.values():
        call()
    names = list(arms)
    found: dict[str, list[Spent]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(spent(arms[name]))
    return found


def plus(turns: Sequence[Spent], others: Sequence[Spent], times: float = 1.0) -> list[Spent]:
    """Turn by turn, the first and `times` the second."""
    return [Spent(a.wall + times * b.wall, a.cpu + times * b.cpu) for a, b in zip(turns, others, strict=True)]


def measured(
    benchmark: str, case: str, arm: str, baseline: str, turns: Sequence[Spent], baseline_turns: Sequence[Spent]
) -> Measurement:
    """The ratios of the turns of two arms."""
    pairs = list(zip(turns, baseline_turns, strict=True))
    return Measurement(
        benchmark=benchmark,
        case=case,
        arm=arm,
        baseline=baseline,
        turns=len(pairs),
        wall=Spread.of([ours.wall / theirs.wall for ours, theirs in pairs]),
        cpu=Spread.of([ours.cpu / theirs.cpu for ours, theirs in pairs]),
        seconds=Spread.of([turn.cpu for turn in turns]),
        baseline_seconds=Spread.of([turn.cpu for turn in baseline_turns]),
        wall_seconds=Spread.of([turn.wall for turn in turns]),
    )
