"""Which update of which weight version a trainer process is at: verl tells its loss neither."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UpdateClock:
    """Counts the updates since the last push of weights, by the trajectories that went through the loss.

    Attributes:
        version: of the last push to the rollout servers, or None before the first.
        update: updates done since then.
    """

    version: int | None = None
    update: int = 0
    _trajectories: int = 0

    def pushed(self, version: int) -> None:
        self.version, self.update, self._trajectories = version, 0, 0

    def step(self, updates_per_version: int) -> int:
        """Number of the update that is being computed, from 1 on, over the whole run."""
        return (self.version or 0) * updates_per_version + self.update + 1

    def went_through(self, trajectories: int, of_update: int) -> None:
        """A micro-batch is done: `trajectories` of all data-parallel ranks together, of `of_update`."""
        self._trajectories += trajectories
        if self._trajectories >= of_update:
            self.update, self._trajectories = self.update + 1, 0


CLOCK = UpdateClock()
"""Of this process."""
