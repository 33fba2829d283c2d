"""Benchmarks: one module each, the laptop counterpart beside the real one."""

from typing import Any

from estr.errors import UserError
from estr.tasks.base import TrainableFromScratch
from estr.tasks.dapo_math_laptop import DapoMathLaptop

_LAPTOP = {"dapo_math": DapoMathLaptop}


def laptop_counterpart(name: str, sizes: dict[str, Any]) -> TrainableFromScratch:
    """The task that the embedded engine trains in place of the benchmark `name`."""
    if name not in _LAPTOP:
        raise UserError(f"task {name!r} has no laptop counterpart; there is one for {', '.join(_LAPTOP)}")
    return _LAPTOP[name](**sizes)
