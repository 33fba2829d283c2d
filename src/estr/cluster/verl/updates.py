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
        """Number of the update that is being computed, from 1 on, over the whole run.

        Raises:
            ValueError: this version has had that many updates, so the number would be one of the next version's.
        """
        if self.update >= updates_per_version:
            raise ValueError(
                f"weight version {self.version or 0} has a training step {self.update + 1}, which is recorded with "
                f"updates_per_version={updates_per_version} and would get the number of another one: "
                "+actor_rollout_ref.actor.policy_loss.updates_per_version= must be the updates between two pushes of "
                "weights (separate_async: parameter_sync_step; fully_async: trigger_parameter_sync_step * "
                "require_batches; each times ppo_epochs)"
            )
        return (self.version or 0) * updates_per_version + self.update + 1

    def went_through(self, trajectories: int, of_update: int) -> None:
        """A micro-batch is done: `trajectories` of all data-parallel ranks together, of `of_update`."""
        self._trajectories += trajectories
        if self._trajectories >= of_update:
            self.update, self._trajectories = self.update + 1, 0


CLOCK = UpdateClock()
"""Of this process."""
