"""Ctrl-C and SIGTERM end a run between two steps, not within one."""

import signal
from types import FrameType, TracebackType
from typing import Self


class StopRequest:
    """Context manager: the first SIGINT or SIGTERM sets `requested`, a second one acts as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, signal.Handlers] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._request)  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
