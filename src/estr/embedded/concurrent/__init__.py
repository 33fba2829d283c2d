"""The embedded engine in concurrent mode: two operating-system processes, for measuring what asynchrony gains."""

from estr.embedded.concurrent.learner import Recipe
from estr.embedded.concurrent.modes import Update, colocated, disaggregated, groups_allowed
from estr.embedded.concurrent.processes import WorkerFailed

__all__ = ["Recipe", "Update", "WorkerFailed", "colocated", "disaggregated", "groups_allowed"]
