"""What a run uses of its machine: `system.jsonl` in the run's folder, under MLflow's names of system metrics."""

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

SECONDS = 5.0
MEGABYTE = 1e6


class LoadLog:
    """Context manager: a thread that appends a sample to `path` every `seconds` and at the end.

    A line is {"time": unix seconds, metric: value}: CPU and memory of the whole machine, resident memory of this
    process and its children, and load and memory of every NVIDIA GPU where its library is installed. `fresh` starts the
    file over. What cannot be measured or written is left out: no training ends for its thermometer.
    """

    def __init__(self, path: Path, *, fresh: bool = False, seconds: float = SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self._over = threading.Event()
        self._gpus = _gpu_handles()
        if fresh:
            path.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        psutil.cpu_percent()  # of this thread the next call measures from here
        while True:
            over = self._over.wait(self.seconds)
            with suppress(OSError, psutil.Error):
                line = json.dumps({"time": time.time()} | self._sample())
                with self.path.open("a") as file:
                    file.write(line + "\n")
            if over:
                return

    def _sample(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "process_memory_megabytes": _resident() / MEGABYTE,
        }
        for index, (library, handle) in enumerate(self._gpus):
            with suppress(library.NVMLError):
                use, held = library.nvmlDeviceGetUtilizationRates(handle), library.nvmlDeviceGetMemoryInfo(handle)
                values[f"gpu_{index}_utilization_percentage"] = float(use.gpu)
                values[f"gpu_{index}_memory_usage_megabytes"] = held.used / MEGABYTE
        return values


def read_load(path: Path) -> list[dict[str, float]]:
    """The samples of a run, without a line that was cut off; none if the run has no such file."""
    samples = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            sample = json.loads(line)
            if isinstance(sample, dict) and "time" in sample:
                samples.append(sample)
    return samples


def _resident() -> int:
    total = 0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _gpu_handles() -> list[tuple[Any, Any]]:
    """NVIDIA's library with a handle of each GPU; empty without the library, its driver, or a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # every failure of the driver has a type of its own
        return []
