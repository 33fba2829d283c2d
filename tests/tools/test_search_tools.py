from collections.abc import Sequence

import pytest

from estr.errors import UserError
from estr.tools.base import Tool, ToolResult
from estr.tools.hermes import ToolCall
from estr.tools.search import MAX_DOCID, MAX_QUERY, GetDocumentTool, Hit, SearchTool
from estr.tools.toolbox import Toolbox

TEXTS = {"d1": "one two three four", "d2": "five six"}


class Shelf:
    """Finds everything, in order."""

    def search(self, query: str, k: int) -> list[Hit]:
        if query == "down":
            raise UserError("http://127.0.0.1:9: the search service cannot be reached")
        if query == "nothing":
            return []
        return [Hit(docid, 1.0, text) for docid, text in TEXTS.items()][:k]

    def get(self, docid: str) -> str:
        return TEXTS[docid]


def words(text: str, limit: int) -> str:
    return " ".join(text.split()[:limit])


def run(tool: Tool, **arguments: str) -> ToolResult:
    return Toolbox([tool]).run(ToolCall(tool.name, arguments))


def test_search_shows_docid_and_the_first_tokens_of_each_hit() -> None:
    result = run(SearchTool(Shelf(), words, snippet_tokens=3), query="x")
    assert result == ToolResult("docid: d1\none two three\n\ndocid: d2\nfive six", documents=("d1", "d2"))


def test_k_bounds_the_hits() -> None:
    assert run(SearchTool(Shelf(), words, k=1), query="x").documents == ("d1",)


def test_the_setting_of_browsecomp_plus_is_the_default() -> None:
    asked: list[int] = []

    class Recorder(Shelf):
        def search(self, query: str, k: int) -> list[Hit]:
            asked.append(k)
            return super().search(query, k)

    def recording(text: str, limit: int) -> str:
        asked.append(limit)
        return text

    run(SearchTool(Recorder(), recording), query="x")
    assert asked == [5, 512, 512]


def test_compact_rendering() -> None:
    def texts(hits: Sequence[Hit]) -> str:
        return " ; ".join(hit.text for hit in hits)

    result = run(SearchTool(Shelf(), words, snippet_tokens=2, render=texts), query="x")
    assert result.content == "one two ; five six"


def test_no_hit_is_an_answer_and_no_error() -> None:
    result = run(SearchTool(Shelf(), words), query="nothing")
    assert result == ToolResult("No document matches the query.")


def test_a_query_that_is_too_long_is_refused() -> None:
    assert not run(SearchTool(Shelf(), words), query="q" * MAX_QUERY).error
    result = run(SearchTool(Shelf(), words), query="q" * (MAX_QUERY + 1))
    assert result == ToolResult(f"Error: search: the query is longer than {MAX_QUERY} characters", error=True)


def test_a_retriever_that_is_down_stops_the_dialogue() -> None:
    with pytest.raises(UserError, match="cannot be reached"):
        run(SearchTool(Shelf(), words), query="down")


def test_get_document() -> None:
    assert run(GetDocumentTool(Shelf()), docid="d2") == ToolResult("five six", documents=("d2",))


@pytest.mark.parametrize(
    ("docid", "message"),
    [
        ("d3", "there is no document of docid 'd3'"),
        ("", "there is no document of docid ''"),
        ("\0\u00e9", r"there is no document of docid '\x00\xe9'"),
        ("d" * (MAX_DOCID + 1), "there is no document of this docid"),
    ],
)
def test_an_unknown_document_is_an_error_message(docid: str, message: str) -> None:
    assert run(GetDocumentTool(Shelf()), docid=docid) == ToolResult(f"Error: get_document: {message}", error=True)
