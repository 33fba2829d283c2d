"""Evaluate the policy of a run, or the warm start, on the task's held-out problems.

Training samples the answers, while torch and the weights are in memory; `evaluate` scores what is there and loads
torch only to sample.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estr.config import RunConfig
from estr.data.read import read_problems
from estr.evaluation import run
from estr.evaluation.judge import ExactMatchJudge
from estr.evaluation.sample import Sample
from estr.evaluation.standalone import JUDGED_OFFLINE
from estr.files.lock import only_writer
from estr.files.typed import require_fields
from estr.layout import WARM_START_NOTE, Layout, existing
from estr.provenance import check_files, file_digest, read_json, write_json
from estr.tasks import laptop_counterpart
from estr.tasks.base import Problem, Task


def evaluate_warm_start(layout: Layout, config: RunConfig) -> None:
    """Score the policy that every run of the task starts from."""
    folder = layout.warm_start(config.task)
    existing(folder / "model.safetensors", f"estr pretrain {config.task}")
    check_files(folder / WARM_START_NOTE)
    with only_writer(folder):
        write_json(folder / "evaluation.json", _evaluation(layout, config, folder, folder))


def evaluate(layout: Layout, config: RunConfig) -> None:
    """Score a finished run's policy. Raises `UserError` if it is damaged, or if another process writes there."""
    folder = layout.run(config)
    path = existing(folder / "run.json", f"estr train {config.task} {config.label} --seed {config.seed}")
    start = existing(layout.warm_start(config.task) / "evaluation.json", f"estr evaluate {config.task} warm_start")
    with only_writer(folder):
        record = require_fields(path, read_json(path), {"steps": int})
        check_files(path, "policy/")
        content = {"scale": config.scale, "run_id": config.run_id, "steps": record["steps"]}
        content |= _evaluation(layout, config, folder / "policy", folder) | {"warm_start": read_json(start)}
        write_json(folder / "evaluation.json", content)


def answer_held_out(layout: Layout, config: RunConfig) -> None:
    """Sample and keep a trained policy's answers, for `evaluate` to find."""
    folder = layout.run(config)
    run.answer(**_question(layout, config, folder / "policy", folder))


def _evaluation(layout: Layout, config: RunConfig, policy: Path, folder: Path) -> dict[str, Any]:
    """Answers of the policy, sampled where `folder` lacks them, and their scores."""
    return run.evaluate(**_question(layout, config, policy, folder), seed=config.evaluation.seed)


def _question(layout: Layout, config: RunConfig, policy: Path, folder: Path) -> dict[str, Any]:
    """What `run.answer` is asked: all that decides the answers."""
    task = laptop_counterpart(config.task, config.counterpart.model_dump())
    weights = file_digest(policy / "model.safetensors")
    return {
        "engine": _StoredPolicy(policy, task, config),
        "task": task,
        "problems": held_out_problems(layout, config),
        "k": config.evaluation.samples,
        "folder": folder,
        "settings": config.evaluation.model_dump() | {"max_tokens": config.train.max_tokens, "policy": weights},
        "judge": ExactMatchJudge() if task.rule.name == JUDGED_OFFLINE else None,
    }


def held_out_problems(layout: Layout, config: RunConfig) -> list[Problem]:
    return read_problems(existing(layout.data(config.task) / "eval.parquet", f"estr data prepare {config.task}"))


@dataclass(frozen=True)
class _StoredPolicy:
    """The embedded engine of a policy folder, loaded when it is first asked."""

    folder: Path
    task: Task
    config: RunConfig
    label: str = "embedded"

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        from estr.embedded.answer import EmbeddedEngine

        engine = EmbeddedEngine.load(self.folder, self.task, self.config.evaluation, self.config.train.max_tokens)
        yield from engine.answer(problems, k, wanted)
