"""The search tools, and what a retriever must offer them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from estr.tools.base import ToolError, ToolResult, function_schema

MAX_QUERY = 2_048  # characters
MAX_DOCID = 256  # characters


@dataclass(frozen=True)
class Hit:
    """A document found: its id, its score (higher is better), its text."""

    docid: str
    score: float
    text: str


class SearchBackend(Protocol):
    """A retriever. Both methods may be called from several threads at once."""

    def search(self, query: str, k: int) -> list[Hit]:
        """The best documents, best first; fewer than `k` if fewer match."""

    def get(self, docid: str) -> str:
        """A document's whole text. Raises `KeyError` if there is none of this id."""


class SearchIndex(SearchBackend, Protocol):
    """A retriever that holds its documents itself, so that it can be served."""

    @property
    def kind(self) -> str:
        """For example "bm25"."""

    def __len__(self) -> int:
        """Number of documents."""


def render_blocks(hits: Sequence[Hit]) -> str:
    """One block per hit: its docid, then its snippet."""
    return "\n\n".join(f"docid: {hit.docid}\n{hit.text}" for hit in hits) or "No document matches the query."


class SearchTool:
    """The tool `search(query)`.

    BrowseComp-Plus's setting by default: 5 hits, each cut to its first 512 tokens by `truncate(text, tokens)`, which
    should count the tokens of the policy. What the policy reads is `render(hits)` of the cut hits. The limit on a tool
    message (`Limits.tool_output_tokens`) applies to all of it, so it should exceed `k * snippet_tokens`.
    """

    name = "search"

    def __init__(
        self,
        backend: SearchBackend,
        truncate: Callable[[str, int], str],
        k: int = 5,
        snippet_tokens: int = 512,
        render: Callable[[Sequence[Hit]], str] = render_blocks,
    ) -> None:
        self._backend = backend
        self._truncate = truncate
        self._k = k
        self._snippet_tokens = snippet_tokens
        self._render = render
        self.schema = function_schema(
            self.name,
            f"Searches the documents and returns the best {k} with docid and snippet.",
            query="what to look for",
        )

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        query = arguments["query"]
        if len(query) > MAX_QUERY:
            raise ToolError(f"the query is longer than {MAX_QUERY} characters")
        found = self._backend.search(query, self._k)
        hits = [Hit(hit.docid, hit.score, self._truncate(hit.text, self._snippet_tokens)) for hit in found]
        return ToolResult(self._render(hits), documents=tuple(hit.docid for hit in hits))


class GetDocumentTool:
    """The tool `get_document(docid)`: a document's text, as far as a tool message may be long."""

    name = "get_document"
    schema = function_schema("get_document", "Returns the text of a document.", docid="id of the document")

    def __init__(self, backend: SearchBackend) -> None:
        self._backend = backend

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        docid = arguments["docid"]
        if len(docid) > MAX_DOCID:
            raise ToolError("there is no document of this docid")
        try:
            text = self._backend.get(docid)
        except KeyError:
            raise ToolError(f"there is no document of docid {docid!a}") from None
        return ToolResult(text, documents=(docid,))
