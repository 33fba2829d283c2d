"""What a pipeline is: a job, what its stages cost, and the devices it runs on."""

import math
from dataclasses import dataclass

from estr.errors import UserError
from estr.pipeline.lengths import Lengths


@dataclass(frozen=True)
class Costs:
    """What the stages take on one kind of device.

    token_seconds, slot_seconds: of a token in each of n running slots of a replica, fixed and per slot.
    prefill_seconds: per prefix token that a replica reads again after a synchronization.
    train_seconds: per update, whatever its size. train_token_seconds: device-seconds per response token; more
    devices train proportionally faster. sync_seconds: per synchronization.
    """

    token_seconds: float
    slot_seconds: float = 0.0
    prefill_seconds: float = 0.0
    train_seconds: float = 0.0
    train_token_seconds: float = 0.0
    sync_seconds: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """A job, its costs, and the devices it runs on.

    Updates of `prompts` groups of `group` trajectories. Of `devices`, `rollout_devices` generate and the others train
    (disaggregated), or all do both in turn (colocated). `slots` trajectories run at once on a replica of
    `replica_devices`.

    Raises:
        UserError: a count below its least value, a negative cost or threshold, a pool without a device, or rollout
        devices that make no whole replicas.
    """

    prompts: int
    group: int
    lengths: Lengths
    costs: Costs
    devices: int
    rollout_devices: int
    slots: int
    replica_devices: int = 1
    threshold: float = 0.0
    interval: int = 1

    def __post_init__(self) -> None:
        for name in ("prompts", "group", "devices", "slots", "replica_devices", "interval"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        whole_replicas = self.rollout_devices % self.replica_devices == 0
        if not whole_replicas or not 0 < self.rollout_devices < self.devices:
            raise UserError(
                f"{self.rollout_devices} of {self.devices} devices for rollouts: they must make whole replicas of "
                f"{self.replica_devices}, at least one, and at least one device must train"
            )
        if not self.threshold >= 0:
            raise UserError(f"the staleness threshold must be >= 0, got {self.threshold:g}")
        for name, value in vars(self.costs).items():
            if not 0 <= value < math.inf:
                raise UserError(f"{name} must be a finite number >= 0, got {value:g}")
        if self.costs.token_seconds + self.costs.slot_seconds == 0:
            raise UserError("token_seconds or slot_seconds must be above 0")

    @property
    def group_limit(self) -> float:
        """Groups that may be started and not yet trained, counted at the last synchronization."""
        limit = (1 + self.threshold) * self.interval * self.prompts
        return int(limit) if math.isfinite(limit) else math.inf
