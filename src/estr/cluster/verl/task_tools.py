"""The tools of our benchmarks as verl's native tools: a policy meets the same ones in training and evaluation."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from pathlib import Path
from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from estr.errors import UserError
from estr.evaluation.openai_engine import load_tokenizer, truncation
from estr.tasks import prepared_task
from estr.tasks.base import TOOL_AGENT, Problem, Task
from estr.tools.hermes import ToolCall
from estr.tools.toolbox import Toolbox

PAUSE_SECONDS = 30.0
logger = logging.getLogger(__name__)


class TaskTool(BaseTool):
    """One tool of a prepared benchmark, `class_name: estr.cluster.verl.task_tools.TaskTool` in verl's tool file.

    Config: `task`, `data` (the prepared folder), `tokenizer` (the policy's folder: output is cut in its tokens), and
    `retriever` (a search service's URL or an index) where the task searches.

    What a policy did wrong is answered with an error text. A retriever that stays away is waited for: an error text
    would be trained on.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        super().__init__(config, tool_schema)
        self._task = task_of(config["task"], config["data"], config["tokenizer"], config.get("retriever"))
        self._cut = truncation(load_tokenizer(Path(config["tokenizer"])))
        self._open: dict[str, Toolbox] = {}

    async def create(
        self, instance_id: str | None = None, create_kwargs: dict[str, Any] | None = None, **named: Any
    ) -> tuple[str, ToolResponse]:
        """A toolbox for one call; `create_kwargs` holds the `problem`, which `agent_loops.ToolCalling` passes on."""
        name, response = await super().create(instance_id)
        toolbox = self._task.toolbox((create_kwargs or {})["problem"])
        if toolbox is None or self.name not in toolbox:
            raise UserError(f"the task {self._task.name} has no tool {self.name!r}")
        self._open[name] = toolbox
        return name, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **named: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        call, toolbox = ToolCall(self.name, parameters), self._open[instance_id]
        while True:
            try:
                result = await asyncio.get_running_loop().run_in_executor(None, toolbox.run, call)
                break
            except UserError as error:
                logger.error("%s; trying again in %.0f s, training waits", error, PAUSE_SECONDS)
                await asyncio.sleep(PAUSE_SECONDS)
        content = self._cut(result.content, self._task.limits.tool_output_tokens)
        return ToolResponse(text=content), 0.0, {"error": float(result.error)}

    async def release(self, instance_id: str, **named: Any) -> None:
        self._open.pop(instance_id, None)


@cache
def task_of(name: str, data: str, tokenizer: str, retriever: str | None) -> Task:
    """The prepared task, opened once per process."""
    return prepared_task(name, Path(data), retriever, truncation(load_tokenizer(Path(tokenizer))))


def problem_of(row: dict[str, Any]) -> Problem:
    """A problem from the columns that verl hands to an agent loop."""
    extra = row.get("extra_info") or {}
    return Problem(
        prompt=tuple(row["raw_prompt"]),
        ground_truth=row["reward_model"]["ground_truth"],
        data_source=str(row.get("data_source", "")),
        ability=str(row.get("ability", "")),
        split=str(extra.get("split", "")),
        index=int(extra.get("index", 0)),
        agent=TOOL_AGENT,
        question=str(extra.get("question", "")),
    )
