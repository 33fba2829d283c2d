"""From the records of an evaluation to the contents of its evaluation.json."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from estr.evaluation.judge import Judge
from estr.evaluation.metrics import best_at_k, bootstrap_interval_over_sets, calibration, pass_at_k, recall
from estr.evaluation.record import Record, problems_hash
from estr.evaluation.sample import COMPLETED
from estr.tasks.base import Problem, Task


def summarize(
    task: Task,
    engine: str,
    judge: Judge | None,
    problems: Sequence[Problem],
    records: Sequence[Record],
    k: int,
    seed: int,
) -> dict[str, Any]:
    """Scores of `records`, one per problem and in their order; a sample that is not there counts as wrong.

    Where the problems come from several data sources, each has its own scores under `sets`, and the scores of the
    whole are the means over the sets.
    """
    counts = [record.correct for record in records]
    sets: dict[str, list[int]] = {}
    for position, problem in enumerate(problems):
        sets.setdefault(problem.data_source, []).append(position)
    by_set = [[counts[position] for position in positions] for positions in sets.values()]
    result: dict[str, Any] = {
        "task": task.name,
        "task_version": task.version,
        "engine": engine,
        "rule": {"name": task.rule.name, "version": task.rule.version},
        "judge": None if judge is None else judge.label,
        "k": k,
        "n_problems": len(problems),
        "problems_sha256": problems_hash(problems),
        "missing": _missing(records, k),
        **_scores(by_set, k, seed),
        "per_problem_correct": counts,
        "agent": _agent(problems, records, k, judge),
    }
    if judge is not None:
        judgements = [scored.judgement for record in records for scored in record.samples]
        result["judge_unparsed"] = sum(judgement is not None and not judgement.parsed for judgement in judgements)
    if len(sets) > 1:
        result["sets"] = {
            name: {
                "n_problems": len(positions),
                "missing": _missing([records[position] for position in positions], k),
                **_scores([correct], k, seed),
                "per_problem_correct": correct,
            }
            for (name, positions), correct in zip(sets.items(), by_set, strict=True)
        }
    return result


def _missing(records: Sequence[Record], k: int) -> int:
    return sum(k - len(record.delivered()) for record in records)


def _scores(by_set: Sequence[Sequence[int]], k: int, seed: int) -> dict[str, Any]:
    """avg@k, pass@k and best@k, each the mean over sets of the mean over problems."""
    values = {
        f"avg@{k}": [np.asarray(counts) / k for counts in by_set],
        f"pass@{k}": [np.array([pass_at_k(k, correct, k) for correct in counts]) for counts in by_set],
        f"best@{k}": [best_at_k(counts, k, k) for counts in by_set],
    }
    scores: dict[str, Any] = {}
    for name, sets in values.items():
        scores[name] = float(np.mean([observed.mean() for observed in sets]))
        scores[f"{name}_ci"] = list(bootstrap_interval_over_sets(sets, seed))
    return scores


def _agent(problems: Sequence[Problem], records: Sequence[Record], k: int, judge: Judge | None) -> dict[str, Any]:
    """How the policy acted: means over the samples that were delivered.

    Recall is over all samples of problems with evidence documents, a missing one having found nothing. Calibration is
    defined where a judge reads the stated confidence; `confidence_unstated` counts the judged answers without one.
    """
    delivered = [scored for record in records for scored in record.delivered()]
    samples = [scored.sample for scored in delivered]
    agent: dict[str, Any] = {
        "turns": float(np.mean([sample.turns for sample in samples])),
        "tool_calls": float(np.mean([sum(sample.tool_calls.values()) for sample in samples])),
        "tool_errors": float(np.mean([sample.tool_errors for sample in samples])),
        "tokens": float(np.mean([sample.tokens for sample in samples])),
        "completed": float(np.mean([sample.status == COMPLETED for sample in samples])),
    }
    supported = [(p.evidence, r) for p, r in zip(problems, records, strict=True) if p.evidence]
    if supported:
        found = [recall(s.sample.documents, evidence) for evidence, record in supported for s in record.delivered()]
        agent["recall"] = sum(found) / (k * len(supported))
    if judge is not None:
        judged = [scored.judgement for scored in delivered if scored.judgement is not None]
        stated = calibration([j.confidence for j in judged], [j.correct for j in judged])
        if stated.error is not None:
            agent["calibration_error"] = stated.error
            agent["calibration_bins"] = [asdict(inside) for inside in stated.bins]
        agent["confidence_unstated"] = stated.unstated
    return agent
