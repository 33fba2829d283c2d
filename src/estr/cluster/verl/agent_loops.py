"""verl's two agent loops, carrying entropy and weight version along with every token's log-prob.

They replace the built-in ones under the same names, so that data sets, defaults and trainers need no other setting;
beside the columns they change nothing. An agent loop of your own gets them from the mix-in: `class Mine(CarryColumns,
MyLoop)`.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.utils.tokenizer.continuous_token import MergeResult
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from estr.cluster.verl.client import recording
from estr.cluster.verl.columns import FIELD, MissingColumns, TokenColumns, outside
from estr.cluster.verl.task_tools import TaskTool, problem_of


class _Server:
    """The client as the agent loop sees it: the columns of the last answer are kept aside, not in its `extra_fields`,
    of which verl's tool agent keeps the first turn's only."""

    def __init__(self, client: LLMServerClient) -> None:
        self._client = recording(client)
        self.columns: TokenColumns | MissingColumns = TokenColumns.of([], [])

    async def generate(self, *arguments: Any, **named: Any) -> TokenOutput:
        output = await self._client.generate(*arguments, **named)
        self.columns = output.extra_fields.pop(FIELD)
        return output


class CarryColumns(AgentLoopBase):
    """Applies to the columns every edit that verl applies to a trajectory's log-probs."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.server_manager: _Server = _Server(self.server_manager)
        self._columns: TokenColumns | MissingColumns = TokenColumns.of([], [])

    async def run(self, sampling_params: dict[str, Any], **named: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **named)
        columns = self._columns
        if isinstance(columns, TokenColumns):
            columns = columns.first(len(output.response_ids))
        output.extra_fields[FIELD] = columns
        return output

    async def ct_merge_assistant_token(
        self, runtime_token_ids: list[int], assistant_token_ids: list[int], *rest: Any, **named: Any
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        merged = await super().ct_merge_assistant_token(runtime_token_ids, assistant_token_ids, *rest, **named)
        self._merge(merged[0], self.server_manager.columns)
        return merged

    async def ct_merge_context_msg(
        self, *arguments: Any, **named: Any
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        merged = await super().ct_merge_context_msg(*arguments, **named)
        self._merge(merged[0], outside(merged[0].appended_token_count))
        return merged

    def _merge(self, edit: MergeResult, appended: TokenColumns | MissingColumns) -> None:
        if isinstance(self._columns, MissingColumns):
            return
        if isinstance(appended, MissingColumns):
            self._columns = appended
        elif len(appended) != edit.appended_token_count:
            self._columns = MissingColumns(
                f"{len(appended)} entropies for {edit.appended_token_count} tokens of a turn"
            )
        else:
            kept = max(len(self._columns) - edit.removed_prefix_token_count, 0)
            before = self._columns.first(kept).extend(outside(len(edit.inserted_token_ids)))
            self._columns = before.extend(appended)


@register("single_turn_agent")
class SingleTurn(CarryColumns, SingleTurnAgentLoop):
    """One answer per problem."""


@register("tool_agent")
class ToolCalling(CarryColumns, ToolAgentLoop):
    """Answers and tool calls in turns; a `TaskTool` learns which problem the dialogue is about."""

    async def run(self, sampling_params: dict[str, Any], **named: Any) -> AgentLoopOutput:
        ours = [name for name, tool in self.tools.items() if isinstance(tool, TaskTool)]
        if ours:
            arguments = {"create_kwargs": {"problem": problem_of(named)}}
            named["tools_kwargs"] = dict(named.get("tools_kwargs") or {}) | dict.fromkeys(ours, arguments)
        return await super().run(sampling_params, **named)
