"""`estr evaluate --model DIR --task T --server URL`: a policy behind a server, without runs and without a workflow."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estr.errors import UserError
from estr.evaluation.endpoint import PATIENT, ChatEndpoint, Retry
from estr.evaluation.judge import ExactMatchJudge, Judge, LlmJudge
from estr.evaluation.openai_engine import KEY_VARIABLE, OpenAIEngine, SamplingSettings, load_tokenizer
from estr.evaluation.run import evaluate
from estr.evaluation.sample import Engine
from estr.provenance import commit, machine, write_json
from estr.tasks.base import Problem, Task

JUDGED_OFFLINE = "browsecomp_plus_exact"
"""The rule of the benchmark whose protocol asks for a judge: its offline form is shown as one."""
MODEL_FILES = ("*.safetensors", "config.json", "generation_config.json", "tokenizer*.json", "chat_template.*")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
logger = logging.getLogger(__name__)


def evaluate_on_server(
    model: Path,
    task: Task,
    problems: Sequence[Problem],
    server: str,
    out: Path,
    *,
    k: int,
    sampling: SamplingSettings,
    judge: Judge | None = None,
    environment: Mapping[str, Any] | None = None,
    concurrency: int = 16,
    timeout_s: float = 600.0,
    retry: Retry = PATIENT,
) -> dict[str, Any]:
    """Evaluate the policy of folder `model`, which `server` serves, and write `out`/evaluation.json.

    The folder is read for its tokenizer (tool output is cut in the policy's tokens) and for a fingerprint of its
    weights: other weights start the evaluation over. So does another `environment` (JSON), which names what else
    decides the answers: the retriever behind a search tool, for example.

    Raises:
        UserError: `model` is no model folder, the server does not serve it, or anything that `evaluate` raises.
    """
    tokenizer = load_tokenizer(model)
    name = served_model(server, model, timeout_s, retry)
    engine = OpenAIEngine(
        server, name, task, sampling, tokenizer=tokenizer, concurrency=concurrency, timeout_s=timeout_s, retry=retry
    )
    settings = {"model": fingerprint(model), **asdict(sampling), **(environment or {})}
    return evaluate_engine(engine, task, problems, out, k=k, seed=sampling.seed, settings=settings, judge=judge)


def evaluate_engine(
    engine: Engine,
    task: Task,
    problems: Sequence[Problem],
    out: Path,
    *,
    k: int,
    seed: int,
    settings: dict[str, Any],
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Evaluate any engine and write `out`/evaluation.json with the settings, the commit and the machine."""
    scores = evaluate(engine, task, problems, k=k, seed=seed, folder=out, settings=settings, judge=judge)
    content = scores | {"settings": settings, "commit": commit(), "machine": machine()}
    write_json(out / "evaluation.json", content)
    return content


def choose_judge(task: Task, url: str | None, model: str | None, out: Path) -> Judge | None:
    """The judge of an evaluation: a model if one is named, exact match for BrowseComp-Plus, else the task's rule."""
    if (url is None) != (model is None):
        raise UserError("a judge needs both --judge-url and --judge-model")
    if url is not None and model is not None:
        return LlmJudge(url, model, out / "judge.jsonl")
    if task.rule.name == JUDGED_OFFLINE:
        logger.warning("no judge model: exact match decides, which is not the benchmark's accuracy")
        return ExactMatchJudge()
    return None


def served_model(server: str, model: Path, timeout_s: float = 60.0, retry: Retry = PATIENT) -> str:
    """The name under which the server has the model folder: the folder's path or name, or the only name there is."""
    names = ChatEndpoint(server, "", key_variable=KEY_VARIABLE, timeout_s=timeout_s, retry=retry).models()
    for name in (str(model), str(model.resolve()), model.name):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    raise UserError(f"{server}: serves {', '.join(names) or 'no model'}; none is {model} or has its name")


def require_safetensors(model: Path) -> None:
    """Raises `UserError` for a folder without weights, or with pickled ones: loading those could run anything."""
    if any(model.glob("*.safetensors")):
        return
    pickles = sorted(file for ending in PICKLES for file in model.glob(f"*{ending}"))
    if pickles:
        raise UserError(f"{pickles[0]}: weights in a pickle are not loaded; convert them to safetensors")
    raise UserError(f"{model}: no model folder, it holds no .safetensors file")


def fingerprint(model: Path) -> str:
    """SHA-256 over the weights, configuration and tokenizer of a model folder."""
    require_safetensors(model)
    files = sorted({file for pattern in MODEL_FILES for file in model.glob(pattern)})
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            total.update(file.name.encode() + hashlib.file_digest(content, "sha256").digest())
    return total.hexdigest()
