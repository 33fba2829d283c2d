"""Benchmarks: one module each, the laptop counterpart beside the real one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from estr.config import parse
from estr.config.sections import COUNTERPARTS
from estr.errors import UserError
from estr.files.typed import require_fields
from estr.provenance import read_json
from estr.tasks.base import Task, TrainableFromScratch
from estr.tasks.benchmarks import benchmark
from estr.tasks.browsecomp_plus_laptop import BrowseCompPlusLaptop
from estr.tasks.dapo_math_laptop import DapoMathLaptop
from estr.tasks.gsm8k_laptop import Gsm8kLaptop
from estr.tasks.retrieval import Truncate, open_retriever

_LAPTOP: dict[str, Callable[..., TrainableFromScratch]] = {
    "dapo_math": DapoMathLaptop,
    "gsm8k": Gsm8kLaptop,
    "browsecomp_plus": BrowseCompPlusLaptop,
}


def laptop_counterpart(name: str, sizes: dict[str, Any]) -> TrainableFromScratch:
    """The task that the embedded engine trains in place of the benchmark `name`."""
    if name not in _LAPTOP:
        raise UserError(f"task {name!r} has no laptop counterpart; there is one for {', '.join(_LAPTOP)}")
    return _LAPTOP[name](**sizes)


def prepared_task(
    name: str, data: Path, retriever: str | Path | None, truncate: Truncate, *, search: bool = True
) -> Task:
    """The task whose prepared sets lie in `data`: a published benchmark, or a laptop counterpart.

    A benchmark that searches asks `retriever` (a service's URL or an index), or else indexes the corpus in `data`;
    `truncate` cuts its snippets. Without `search` it opens none of these, for who wants the reward alone.

    Raises:
        UserError: the data is missing or another task's, or there is nothing to search.
    """
    path = data / "data.json"
    note = require_fields(path, read_json(path), {"task": str})
    if "counterpart" in note:
        if note["task"] != name:
            raise UserError(f"{data}: holds data of {note['task']}, not of {name}")
        if name not in COUNTERPARTS:
            raise UserError(f"{path}: there is a laptop counterpart for {', '.join(COUNTERPARTS)} only")
        sizes = parse(COUNTERPARTS[name], note["counterpart"], f"{path}, counterpart")
        return laptop_counterpart(name, sizes.model_dump())
    require_fields(path, {"tools": [], **note}, {"tools": list})
    searches = search and "search" in note.get("tools", ())
    backend = open_retriever(retriever or data) if searches else None
    return benchmark(name, data, search_backend=backend, truncate=truncate)
