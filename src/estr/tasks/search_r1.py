"""Search-R1: open-domain questions over Wikipedia passages, trained on NQ and HotpotQA, evaluated on seven sets.

Prompts are those of verl's port (`preprocess_search_r1_dataset`), whose policy searches with tool calls and answers in
`<answer>` tags; the retriever shows 3 passages. The paper's own settings of this benchmark are not public.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import TOOL_AGENT, Problem
from estr.tasks.retrieval import Truncate, cut_characters, require
from estr.tools.conversation import Limits
from estr.tools.search import SearchBackend, SearchTool
from estr.tools.toolbox import Toolbox

RESULTS = 3
_SYSTEM = "You are a helpful and harmless assistant."
_INSTRUCTION = (
    "Answer the given question. You must conduct step by step reasoning first every time you get new information. "
    "If you need external information, call the search tool by returning a JSON object inside <tool_call> tags. "
    'For example: <tool_call>{"name": "search", "arguments": {"query": "your query"}}</tool_call>. '
    "and it will return the top searched results between <tool_response> and </tool_response>. "
    "You can search as many times as your want. If you find no further external knowledge needed, you can directly "
    "provide the answer inside <answer> and </answer>, without detailed illustrations. "
    "For example, <answer> Beijing </answer>. Question: "
)


@dataclass(frozen=True)
class SearchR1:
    """169,615 training and 51,713 evaluation questions, each with the answers that are accepted.

    `truncate(text, tokens)` cuts a passage, in the policy's own tokens if it can be had.
    """

    backend: SearchBackend | None = None
    truncate: Truncate = cut_characters

    name: str = field(default="search_r1", init=False)
    version: int = field(default=1, init=False)

    @property
    def limits(self) -> Limits:
        """Search-R1's public defaults: four searches and an answer, 500 tokens of passages per search."""
        return Limits(turns=5, tool_output_tokens=500)

    @property
    def rule(self) -> ScoringRule:
        return scoring_rule("search_r1_em")

    def toolbox(self, problem: Problem) -> Toolbox:
        tool = SearchTool(
            require(self.backend, self.name),
            self.truncate,
            k=RESULTS,
            snippet_tokens=self.limits.tool_output_tokens,
        )
        return Toolbox([tool])

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)


def data_source(name: str) -> str:
    """As verl calls the rows of the set `name`."""
    return f"searchR1_{name}"


def search_r1_problem(row: Mapping[str, Any], index: int, split: str) -> Problem:
    """A problem from a row of `PeterJinGo/nq_hotpotqa_train`. Raises `ValueError` if no answer is accepted."""
    answers = row["golden_answers"]
    if not any(answer and answer.strip() for answer in answers):
        raise ValueError("golden_answers is empty")
    return Problem(
        prompt=(
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _INSTRUCTION + row["question"]},
        ),
        ground_truth=json.dumps([answer for answer in answers if answer], ensure_ascii=False),
        data_source=data_source(row["data_source"]),
        ability="search",
        split=split,
        index=index,
        agent=TOOL_AGENT,
        question=row["question"],
        id=row["id"],
    )
