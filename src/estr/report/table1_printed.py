"""The paper's Table 1 in the columns of its two versions."""

from estr.report.labels import display
from estr.report.paper import PaperValues
from estr.report.run_views import NOT_REPORTED
from estr.report.views import View, number

METHODS = ("sync", "async", "icepop", "kpop", "m2po", "estr")
AIME = ("aime24", "aime25", "aime26", "aime_mean")
SEARCH_R1 = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2WikiMultiHopQA", "MuSiQue", "Bamboogle")
COLUMNS: dict[str, list[tuple[str, str, str]]] = {
    "BrowseComp-Plus": [("avg@1", "browsecomp_plus", "avg@1")],
    "GSM8K": [(metric, "gsm8k", metric) for metric in ("avg@4", "pass@4")],
    **{
        name: [(metric, benchmark, metric) for metric in ("avg@4", "pass@4")]
        for name, benchmark in zip(("AIME 2024", "AIME 2025", "AIME 2026", "AIME mean"), AIME, strict=True)
    },
    "Search-R1, exact match (v2)": [
        *((name, f"search_r1_{name}", "exact_match") for name in SEARCH_R1),
        ("mean", "search_r1_mean", "exact_match"),
    ],
}
"""By group: header, benchmark and metric in reported.csv."""
MARKS = {"v1 table": "", "v2 prose": " †", "v2 derived": " ‡"}


def printed_view(paper: PaperValues) -> View:
    """A row per method, all of the paper's columns, without our numbers."""
    headers = ["Method", *(header for columns in COLUMNS.values() for header, *_ in columns)]
    groups = [("", 1), *((name, len(columns)) for name, columns in COLUMNS.items())]
    rows = tuple(
        (
            display(method),
            *(
                _cell(paper, method, benchmark, metric)
                for columns in COLUMNS.values()
                for _, benchmark, metric in columns
            ),
        )
        for method in METHODS
    )
    note = (
        "The paper's numbers alone, percentages: v1's ten columns, and what v2's text says of its own: † in prose, ‡ "
        f"derived from differences in prose. '{NOT_REPORTED}': the sources lost it or never printed it. Ours stand "
        "beside the columns that have a counterpart, in the table above; Search-R1 has none at laptop scale."
    )
    return View("The paper's Table 1 as printed", note, tuple(headers), rows, groups=tuple(groups))


def _cell(paper: PaperValues, method: str, benchmark: str, metric: str) -> str:
    value = paper.get("table1", benchmark, method, metric)
    return NOT_REPORTED if value is None else number(value.value, ".2f") + MARKS[value.provenance]
