"""Evaluate any policy on a prepared benchmark, without runs and without a workflow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estr.config import EvaluationSettings
from estr.data.read import read_problems
from estr.errors import UserError
from estr.evaluation.openai_engine import SamplingSettings, load_tokenizer, truncation
from estr.evaluation.standalone import choose_judge, evaluate_engine, evaluate_on_server, fingerprint
from estr.files.lock import only_writer
from estr.layout import existing
from estr.tasks import prepared_task
from estr.tasks.base import Problem, Task
from estr.tasks.retrieval import is_service

RESPONSE_TOKENS = {"browsecomp_plus": 32768, "gsm8k": 8192, "dapo_math": 12288, "search_r1": 4096}
"""What the policy may write in a dialogue: the paper's Table 3; Search-R1's is not reported."""


@dataclass(frozen=True)
class Request:
    """What is asked for. `max_tokens` bounds what the policy writes in a dialogue; None is the paper's limit.

    `out` None is a folder below `evaluations`, named after the model folder and its weights.
    """

    model: Path
    task: str
    data: Path
    evaluations: Path
    out: Path | None
    server: str | None
    retriever: str | None
    judge_url: str | None
    judge_model: str | None
    k: int
    temperature: float
    top_p: float
    max_tokens: int | None
    seed: int
    concurrency: int


def evaluate_model(request: Request) -> dict[str, Any]:
    """Sample, score, write evaluation.json and return it.

    Raises:
        UserError: an option that the embedded engine does not take, another process evaluates into the same folder, or
            anything that preparing or sampling raises.
    """
    if request.server is None and (request.temperature == 0 or request.top_p != 1):
        raise UserError(
            "the embedded engine samples from the whole distribution: --temperature 0 and --top-p need --server"
        )
    if request.retriever is not None:
        is_service(request.retriever)  # refuses a key in the address, which is recorded even if nothing is searched
    made_by = f"estr data prepare {request.task} --scale paper"
    problems = read_problems(existing(request.data / "eval.parquet", made_by))
    weights = fingerprint(request.model)
    truncate: Callable[[str, int], str] = truncation(load_tokenizer(request.model))
    task = prepared_task(request.task, request.data, request.retriever, truncate)
    out = request.out or request.evaluations / request.task / f"{request.model.resolve().name}-{weights[:8]}"
    with only_writer(out):
        return _evaluate(request, task, problems, weights, out)


def _evaluate(request: Request, task: Task, problems: Sequence[Problem], weights: str, out: Path) -> dict[str, Any]:
    max_tokens = request.max_tokens or RESPONSE_TOKENS.get(request.task, 8192)
    judge = choose_judge(task, request.judge_url, request.judge_model, out)
    environment = {"data": str(request.data), "retriever": request.retriever}
    if request.server is not None:
        sampling = SamplingSettings(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=max_tokens,
            dialogue_tokens=max_tokens,
            seed=request.seed,
        )
        return evaluate_on_server(
            request.model,
            task,
            problems,
            request.server,
            out,
            environment=environment,
            k=request.k,
            sampling=sampling,
            judge=judge,
            concurrency=request.concurrency,
        )
    from estr.embedded.answer import EmbeddedEngine

    settings = EvaluationSettings(samples=request.k, temperature=request.temperature, seed=request.seed)
    engine = EmbeddedEngine.load(request.model, task, settings, max_tokens)
    return evaluate_engine(
        engine,
        task,
        problems,
        out,
        k=request.k,
        seed=request.seed,
        settings={"model": weights, "max_tokens": max_tokens} | environment | settings.model_dump(),
        judge=judge,
    )
