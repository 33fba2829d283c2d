"""Names and display order of tasks, methods and their variants.

A run's label is ``method[__key=value...]``; the variant at the matched masking budget is
``method__thresholds=matched``. Every table, legend and list takes its names and its order from here.
"""

import math
from collections.abc import Sequence

from estr.config import load_method
from estr.evaluation.judge import ExactMatchJudge

TASKS = {
    "browsecomp_plus": "BrowseComp-Plus",
    "gsm8k": "GSM8K",
    "dapo_math": "DAPO-Math (AIME)",
    "search_r1": "Search-R1",
}
"""Display names in the order of the paper's Table 1; other tasks follow by their own name."""

METHODS = ("sync", "async", "icepop", "kpop", "m2po", "estr")
"""The methods of the paper's Table 1 in display order."""

COMPONENTS = ("fixed_magnitude", "exploration_preserving", "outlier_suppressing")
"""The arms of v2's Table 2; ESTR is all of them together."""

DISPLAY_ORDER = (*METHODS[:-1], *COMPONENTS, METHODS[-1])
"""Other methods follow by name."""

MATCHED = "thresholds=matched"
KEEP_ALL_METHODS = ("sync", "async")
EXACT_MATCH_RULE = "browsecomp_plus_exact"
EXACT_MATCH = "exact match, no judge model"
PAPER_SCALE = "paper"


def task_name(task: str) -> str:
    """Name shown to the reader, e.g. ``BrowseComp-Plus``."""
    return TASKS.get(task, task)


def task_order(task: str) -> tuple[int, str]:
    """Sort key: the order of the paper's Table 1, then by name."""
    return (list(TASKS).index(task) if task in TASKS else len(TASKS)), task


def benchmarks(tasks: Sequence[str], scale: str) -> str:
    """What was run: ``GSM8K`` at paper scale, below it ``laptop counterpart of GSM8K``; several are listed."""
    names = [task_name(task) for task in tasks]
    text = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    if scale == PAPER_SCALE:
        return text
    return f"laptop {'counterpart' if len(names) == 1 else 'counterparts'} of {text}"


def judge_name(rule: str, judge: str | None) -> str | None:
    """Who judged where the benchmark asks for a judge model: the model, or exact match in its place."""
    if judge == ExactMatchJudge.label or (judge is None and rule == EXACT_MATCH_RULE):
        return EXACT_MATCH
    return f"judge {judge}" if judge else None


def judged(task: str, rule: str, judge: str | None) -> str:
    """The task's name, with its judge where there is one."""
    name = judge_name(rule, judge)
    return f"{task_name(task)} ({name})" if name else task_name(task)


def scored_by(rule: str, version: int, judge: str | None) -> str:
    """Everything that decided what is correct, e.g. ``rule gsm8k_strict v1``."""
    return ", ".join(filter(None, (judge_name(rule, judge), f"rule {rule} v{version}")))


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
    """Name shown to the reader, e.g. ``IcePop (matched)`` or ``ESTR (intra 5, inter 1)``."""
    method, overrides = split_label(label)
    name = load_method(method).title
    changes = sorted(overrides, key=lambda pair: not pair.startswith("intra="))
    return f"{name} ({', '.join(map(describe_override, changes))})" if overrides else name


def describe_override(pair: str) -> str:
    """A ``key=value`` override in words: ``intra 5``, ``tau 0.7``, ``32 prompts``, ``matched``."""
    if pair == MATCHED:
        return "matched"
    key, _, value = pair.partition("=")
    return f"{value} prompts" if key == "prompts" else f"{key.replace('_', ' ')} {value}"


def short_name(method: str) -> str:
    """Name in running text: ``sync``, ``async``, ``ESTR``."""
    return method if method in KEEP_ALL_METHODS else load_method(method).title


def order(label: str) -> tuple[int, str, int, tuple[tuple[str, float, str], ...]]:
    """Sort key: methods in display order, each followed by its variants, numbers by their value."""
    method, overrides = split_label(label)
    position = DISPLAY_ORDER.index(method) if method in DISPLAY_ORDER else len(DISPLAY_ORDER)
    return position, method, len(overrides), tuple(map(_override_order, overrides))


def _override_order(pair: str) -> tuple[str, float, str]:
    key, _, value = pair.partition("=")
    try:
        return key, float(value), value
    except ValueError:
        return key, math.inf, value
