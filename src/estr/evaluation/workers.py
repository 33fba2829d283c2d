"""Jobs in a bounded number of threads, results as they finish."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Result]]:
    """Yields (position in `jobs`, result) in the order of finishing; jobs are begun in their own order.

    The first exception of a job is raised here. Then, and when the caller stops early, no further job is begun, and
    nobody waits for those under way: an interrupted evaluation must not hang on a slow server.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for position in range(len(jobs)):
        todo.put(position)
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                position = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((position, function(jobs[position]), None))
            except BaseException as error:
                done.put((position, None, error))
                return

    for _ in range(min(workers, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in jobs:
            position, result, error = done.get()
            if error is not None:
                raise error
            yield position, result  # type: ignore[misc]  # None only together with an error
    finally:
        stop.set()
