"""The real benchmarks by name, opened as their data folder was prepared."""

from pathlib import Path
from typing import Any

from estr.errors import UserError
from estr.provenance import read_sealed
from estr.tasks.base import Task
from estr.tasks.browsecomp_plus import BrowseCompPlus
from estr.tasks.dapo_math import DapoMath
from estr.tasks.gsm8k import Gsm8k
from estr.tasks.retrieval import Truncate, cut_characters
from estr.tasks.search_r1 import SearchR1
from estr.tools.search import SearchBackend

BENCHMARKS: dict[str, type[DapoMath] | type[Gsm8k] | type[BrowseCompPlus] | type[SearchR1]] = {
    "dapo_math": DapoMath,
    "gsm8k": Gsm8k,
    "browsecomp_plus": BrowseCompPlus,
    "search_r1": SearchR1,
}


def benchmark(
    name: str,
    data_folder: Path,
    *,
    search_backend: SearchBackend | None = None,
    truncate: Truncate = cut_characters,
    oracle: bool | None = None,
) -> Task:
    """The benchmark whose prepared sets lie in `data_folder`, with the tools that their prompts name.

    `search_backend` (see `estr.tasks.retrieval.open_retriever`) is needed for dialogues of the two search benchmarks
    only; `truncate` cuts their snippets. `oracle`, if given, must be what the GSM8K data was prepared for.

    Raises `UserError` for an unknown name, and for data that is missing, of another task, version or tool.
    """
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; the benchmarks are {', '.join(BENCHMARKS)}")
    prepared = _prepared_for(name, data_folder)
    if name == "gsm8k":
        if oracle is not None and oracle != prepared["oracle"]:
            have, want = ("with", "without") if prepared["oracle"] else ("without", "with")
            raise UserError(
                f"{data_folder}: the prompts were prepared {have} the oracle tool; run `estr data prepare gsm8k` again "
                f"{want} it"
            )
        return Gsm8k(oracle=prepared["oracle"])
    if name == "browsecomp_plus":
        return BrowseCompPlus(search_backend, get_document=prepared["get_document"], truncate=truncate)
    if name == "search_r1":
        return SearchR1(search_backend, truncate=truncate)
    return DapoMath()


def _prepared_for(name: str, folder: Path) -> dict[str, Any]:
    """The switches that `data.json` notes."""
    path, again = folder / "data.json", f"run `estr data prepare {name} --scale paper`"
    try:
        note = read_sealed(path)
        task, version, tools = note["task"], note["version"], note["tools"]
        switches = {"oracle": "calc_gsm8k_reward" in tools, "get_document": "get_document" in tools}
    except OSError as error:
        raise UserError(f"{path}: no prepared data ({error.strerror}); {again}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not the note of a prepared benchmark ({error!r}); {again}") from error
    expected = BENCHMARKS[name]().version
    if (task, version) != (name, expected):
        raise UserError(f"{path}: holds {task} version {version}, wanted is {name} version {expected}; {again}")
    return switches
