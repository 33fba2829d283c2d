"""What a run is called, whichever engine trains it: scale, task, method, overrides, seed, and what follows."""

import hashlib
import json
from typing import Any, ClassVar

from estr.config.sections import Count, Section, Staleness


class Identity(Section):
    """The part of a run's configuration that both engines have."""

    IRRELEVANT: ClassVar[dict[str, Any]]
    """Keys that change no number of the training, for `hash`."""

    scale: str
    task: str
    method: str
    overrides: dict[str, str | int | float]
    seed: Count
    engine: str
    staleness: Staleness
    rule: str
    thresholds: dict[str, float | str]
    matched_budget: bool

    @property
    def label(self) -> str:
        """The method with its overrides, as it stands in the run's path: `estr__tau=1.0`."""
        return "__".join([self.method, *(f"{key}={value}" for key, value in sorted(self.overrides.items()))])

    @property
    def run_id(self) -> str:
        return f"{self.scale}/{self.task}/{self.label}/seed{self.seed}"

    @property
    def hash(self) -> str:
        """Twelve hex digits over all keys that change the training's numbers."""
        content = json.dumps(self.model_dump(exclude=self.IRRELEVANT), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]
