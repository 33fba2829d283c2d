"""Names and display order of methods and of their variants.

A run's label is ``method[__key=value...]``; the variant at the matched masking budget is
``method__thresholds=matched``. Every table, legend and list takes its names and its order from here.
"""

from estr.config import load_method

METHODS = ("sync", "async", "icepop", "kpop", "m2po", "estr")
"""The paper's methods in display order; others follow by name."""

MATCHED = "thresholds=matched"
KEEP_ALL_METHODS = ("sync", "async")


def split_label(label: str) -> tuple[str, tuple[str, ...]]:
    """Split a label into its method and its ``key=value`` overrides."""
    method, *overrides = label.split("__")
    return method, tuple(overrides)


def is_matched(label: str) -> bool:
    """True for the variant whose threshold was calibrated to the matched masking budget."""
    return split_label(label)[1] == (MATCHED,)


def matched(method: str) -> str:
    """Label of the method's matched-budget variant."""
    return f"{method}__{MATCHED}"


def display(label: str) -> str:
    """Name shown to the reader, e.g. ``IcePop (matched)``."""
    method, overrides = split_label(label)
    name = load_method(method).title
    if not overrides:
        return name
    return f"{name} (matched)" if overrides == (MATCHED,) else f"{name} ({', '.join(overrides)})"


def short_name(method: str) -> str:
    """Name in running text: ``sync``, ``async``, ``ESTR``."""
    return method if method in KEEP_ALL_METHODS else load_method(method).title


def order(label: str) -> tuple[int, str, int, str]:
    """Sort key: methods in display order, each followed by its variants."""
    method, overrides = split_label(label)
    position = METHODS.index(method) if method in METHODS else len(METHODS)
    return position, method, len(overrides), label
