"""Evaluate any policy on a prepared benchmark, without runs and without a workflow."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estr.config import EvaluationSettings
from estr.data.prepare import read_problems
from estr.evaluation.openai_engine import SamplingSettings, load_tokenizer, truncation
from estr.evaluation.standalone import choose_judge, evaluate_engine, evaluate_on_server, fingerprint
from estr.layout import existing
from estr.tasks import prepared_task


@dataclass(frozen=True)
class Request:
    """What is asked for. `max_tokens` bounds a turn behind a server and a whole dialogue in the embedded engine."""

    model: Path
    task: str
    data: Path
    out: Path
    server: str | None
    retriever: str | None
    judge_url: str | None
    judge_model: str | None
    k: int
    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    concurrency: int


def evaluate_model(request: Request) -> dict[str, Any]:
    """Sample, score, write `out`/evaluation.json and return it."""
    made_by = f"estr data prepare {request.task} --scale paper"
    problems = read_problems(existing(request.data / "eval.parquet", made_by))
    truncate: Callable[[str, int], str] = truncation(load_tokenizer(request.model))
    task = prepared_task(request.task, request.data, request.retriever, truncate)
    judge = choose_judge(task, request.judge_url, request.judge_model, request.out)
    if request.server is not None:
        sampling = SamplingSettings(
            temperature=request.temperature, top_p=request.top_p, max_tokens=request.max_tokens, seed=request.seed
        )
        return evaluate_on_server(
            request.model,
            task,
            problems,
            request.server,
            request.out,
            k=request.k,
            sampling=sampling,
            judge=judge,
            concurrency=request.concurrency,
        )
    from estr.embedded.answer import EmbeddedEngine

    settings = EvaluationSettings(samples=request.k, temperature=request.temperature, seed=request.seed)
    engine = EmbeddedEngine(request.model, task, settings, request.max_tokens)
    return evaluate_engine(
        engine,
        task,
        problems,
        request.out,
        k=request.k,
        seed=request.seed,
        settings={"model": fingerprint(request.model), "max_tokens": engine.max_tokens} | settings.model_dump(),
        judge=judge,
    )
