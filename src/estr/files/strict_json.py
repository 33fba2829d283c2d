"""JSON without NaN and infinities, `1e999` included: no other program would read them back."""

import json
import math
from typing import Any


def loads(text: str | bytes) -> Any:
    """Raises `ValueError`, and `RecursionError` for what is nested too deeply."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"{literal[:20]} is not a finite number")
    return value
