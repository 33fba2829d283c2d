"""The rewards of our benchmarks inside verl: the last turn of a dialogue is what is scored.

`reward.reward_manager` = `LastTurn` picks that turn, where verl's own manager scores all the text, tool output
included; `reward.custom_reward_function` = `score` is the task's rule, or a judge.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from estr.cluster.verl.columns import FIELD, OUTSIDE, TokenColumns
from estr.evaluation.judge import Judge, LlmJudge
from estr.tasks import prepared_task
from estr.tasks.base import Task
from estr.tasks.retrieval import cut_characters


class LastTurn(NaiveRewardManager):
    """verl's naive manager on the tokens after the last one that the policy did not write."""

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        data = data[-1:]
        fields = data.non_tensor_batch.get("tool_extra_fields")
        columns = fields[0].get(FIELD) if fields is not None else None
        if isinstance(columns, TokenColumns):
            start = last_turn(columns)
            prompt = data.batch["prompts"].shape[1]
            data = DataProto(batch=data.batch.clone(), non_tensor_batch=data.non_tensor_batch, meta_info=data.meta_info)
            data.batch["responses"] = data.batch["responses"][:, start:]
            mask = data.batch["attention_mask"]
            kept = list(range(prompt)) + list(range(prompt + start, mask.shape[1]))
            data.batch["attention_mask"] = mask[:, kept]
        result: dict[str, Any] = await super().run_single(data)
        return result


def last_turn(columns: TokenColumns) -> int:
    """Where the policy's last turn begins, in response tokens."""
    outside = (columns.weight_version == OUTSIDE).nonzero()[0]
    return int(outside[-1]) + 1 if len(outside) else 0


def score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    task: str,
    data: str,
    judge_url: str | None = None,
    judge_model: str | None = None,
    judge_cache: str | None = None,
    **named: Any,
) -> dict[str, float]:
    """1.0 for a correct answer, by the task's rule, or by a judge if one is named."""
    if judge_url and judge_model and judge_cache:
        judge = _judge(judge_url, judge_model, judge_cache)
        question = str((extra_info or {}).get("question", ""))
        return {"score": float(judge.judge(question, solution_str, ground_truth).correct)}
    return {"score": _task(task, data).reward(solution_str, ground_truth)}


@cache
def _task(name: str, data: str) -> Task:
    return prepared_task(name, Path(data), None, cut_characters, search=False)


@cache
def _judge(url: str, model: str, folder: str) -> Judge:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return LlmJudge(url, model, Path(folder) / f"judgements-{os.getpid()}.jsonl")
