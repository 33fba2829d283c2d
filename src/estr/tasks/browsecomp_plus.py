"""BrowseComp-Plus: questions that take many searches over a fixed corpus of 100,195 web documents.

Prompt, tools and answer format are those of the benchmark's own client: `search` returns 5 documents, each cut to its
first 512 tokens; `get_document` is optional, and off as in the benchmark's runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import TOOL_AGENT, Problem
from estr.tasks.retrieval import Truncate, cut_characters, require
from estr.tools.base import Tool
from estr.tools.conversation import Limits
from estr.tools.search import GetDocumentTool, SearchBackend, SearchTool
from estr.tools.toolbox import Toolbox

DATA_SOURCE = "browsecomp_plus"
RESULTS, SNIPPET_TOKENS = 5, 512
_PROMPT = (
    "You are a deep research agent. You need to answer the given question by interacting with a search engine, "
    "using the {tools} provided. Please perform reasoning and use the {them} step by step, in an interleaved manner. "
    "You may use the {tools} multiple times.\n\n"
    "Question: {question}\n\n"
    "Your response should be in the following format:\n"
    "Explanation: {{your explanation for your final answer. For this explanation section only, you should cite your "
    "evidence documents inline by enclosing their docids in square brackets [] at the end of sentences. For example, "
    "[20].}}\n"
    "Exact Answer: {{your succinct, final answer}}\n"
    "Confidence: {{your confidence score between 0% and 100% for your answer}}"
)


@dataclass(frozen=True)
class BrowseCompPlus:
    """747 training and 83 evaluation questions. `get_document` adds the second tool; the data's prompts name the same.

    `truncate(text, tokens)` cuts a snippet, in the policy's own tokens if it can be had.
    """

    backend: SearchBackend | None = None
    get_document: bool = False
    truncate: Truncate = cut_characters

    name: str = field(default="browsecomp_plus", init=False)
    version: int = field(default=1, init=False)

    @property
    def limits(self) -> Limits:
        """The paper's 100 turns; a tool message holds all snippets with their docids."""
        return Limits(turns=100, tool_output_tokens=RESULTS * SNIPPET_TOKENS + 256)

    @property
    def rule(self) -> ScoringRule:
        """Exact match, for want of the benchmark's judge model: it misses answers that are right in other words."""
        return scoring_rule("browsecomp_plus_exact")

    def toolbox(self, problem: Problem) -> Toolbox:
        backend = require(self.backend, self.name)
        tools: list[Tool] = [SearchTool(backend, self.truncate, k=RESULTS, snippet_tokens=SNIPPET_TOKENS)]
        if self.get_document:
            tools.append(GetDocumentTool(backend))
        return Toolbox(tools)

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)


def browsecomp_problem(row: Mapping[str, Any], index: int, split: str, get_document: bool) -> Problem:
    """A problem from a decrypted row: query_id, query, answer, and the docids of its evidence."""
    tools, them = ("search and get_document tools", "tools") if get_document else ("search tool", "tool")
    return Problem(
        prompt=({"role": "user", "content": _PROMPT.format(tools=tools, them=them, question=row["query"])},),
        ground_truth=row["answer"],
        data_source=DATA_SOURCE,
        ability="search",
        split=split,
        index=index,
        agent=TOOL_AGENT,
        question=row["query"],
        id=str(row["query_id"]),
        evidence=tuple(row["evidence"]),
    )
