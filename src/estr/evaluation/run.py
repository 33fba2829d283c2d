"""Evaluate an engine on a set of problems; killed at any moment, the same call goes on where it stopped.

`samples.jsonl` is the state: a header whose key stands for all that decides the answers, then one line per problem.
Scoring is no part of the key: answers are scored again, not sampled again, when the rule or the judge is another.
"""

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from estr.errors import UserError
from estr.evaluation.journal import Journal
from estr.evaluation.judge import Judge, Judgement
from estr.evaluation.record import Record, Scored, problems_hash
from estr.evaluation.sample import COMPLETED, Engine
from estr.evaluation.summary import summarize
from estr.evaluation.workers import in_parallel
from estr.scoring import ScoringRule
from estr.tasks.base import Problem, Task

SAMPLES = "samples.jsonl"
logger = logging.getLogger(__name__)


def evaluate(
    engine: Engine,
    task: Task,
    problems: Sequence[Problem],
    *,
    k: int,
    seed: int,
    folder: Path,
    settings: Mapping[str, Any],
    judge: Judge | None = None,
) -> dict[str, Any]:
    """`answer`, and the contents of evaluation.json; `seed` is that of the bootstrap.

    Until they are sampled by a later call, missing and failed samples count as wrong.

    Raises:
        UserError: as `answer` does.
    """
    records = answer(engine, task, problems, k=k, folder=folder, settings=settings, judge=judge)
    return summarize(task, engine.label, judge, problems, records, k, seed)


def answer(
    engine: Engine,
    task: Task,
    problems: Sequence[Problem],
    *,
    k: int,
    folder: Path,
    settings: Mapping[str, Any],
    judge: Judge | None = None,
) -> list[Record]:
    """Sample `k` answers per problem and score them; a record per problem, which `folder` keeps.

    `settings` (JSON) names what else decides the answers: the policy's weights, temperature, limits, sampling seed.
    Without a judge the task's rule decides. Problems with missing or failed samples are sampled again by a later call.

    Raises:
        UserError: nothing to evaluate; the engine delivered nothing; the server or the judge is away. What is finished
            is saved.
    """
    if not problems or k < 1:
        raise UserError(f"nothing to evaluate: {len(problems)} problems, {k} samples each")
    run = _Run(task, problems, k, folder, _header(engine, task, problems, k, settings))
    try:
        run.sample(engine, score=judge is None)
        run.score(judge)
    finally:
        run.journal.close()
    return [run.records.get(position, Record(position, ())) for position in range(len(problems))]


class _Run:
    """The records of an evaluation, in memory and in its journal."""

    def __init__(self, task: Task, problems: Sequence[Problem], k: int, folder: Path, header: dict[str, Any]) -> None:
        self.task, self.problems, self.k = task, problems, k
        self.records: dict[int, Record] = {}
        self.journal = _open(folder / SAMPLES, header)
        for line in self.journal.lines[1:]:
            try:
                record = Record.from_json(line, problems)
                if len(record.samples) > k:
                    raise ValueError(f"more than {k} samples")
            except (KeyError, TypeError, ValueError, IndexError) as error:
                logger.warning("%s: what is no record of this evaluation is left out (%r)", self.journal.path, error)
                continue
            self.records[record.position] = record  # a later line replaces an earlier one

    def sample(self, engine: Engine, score: bool) -> None:
        """Have the engine answer every problem of which samples are missing; `score` applies the task's rule at once.

        A judge comes afterwards: it may need the graphics cards that the policy is served from.
        """
        todo = [position for position in range(len(self.problems)) if self._missing(position)]
        done = len(self.problems) - len(todo)
        with tqdm(total=len(self.problems), initial=done, desc="evaluate", unit="problem", disable=None) as bar:
            for position, samples in engine.answer(self.problems, self.k, todo) if todo else ():
                if len(samples) > self.k:
                    raise ValueError(f"the engine gave {len(samples)} samples where {self.k} were asked for")
                problem, fresh = self.problems[position], map(Scored, samples)
                if score:
                    decided = tuple(_by_rule(self.task.rule, problem, scored) for scored in fresh)
                    self._keep(Record(position, decided, self._rule_label))
                else:
                    self._keep(Record(position, tuple(fresh)))
                bar.update()
        missing = sum(map(self._missing, range(len(self.problems))))
        total = self.k * len(self.problems)
        if missing == total:
            raise UserError("the engine delivered no sample at all; its warnings say why")
        if missing:
            logger.warning("%d of %d samples are missing and count as wrong; run again to retry them", missing, total)

    def score(self, judge: Judge | None) -> None:
        """Let the judge, or else the task's rule, decide on every record that it has not decided on yet."""
        rule = self.task.rule
        scorer = self._rule_label if judge is None else judge.label
        todo = [record for record in self.records.values() if record.scorer != scorer]
        verdicts: dict[int, dict[int, Scored]] = {record.position: {} for record in todo}
        jobs = [(record, number) for record in todo for number in range(len(record.samples))]

        def decide(job: tuple[Record, int]) -> Scored:
            record, number = job
            problem, scored = self.problems[record.position], record.samples[number]
            return _by_rule(rule, problem, scored) if judge is None else _by_judge(judge, problem, scored)

        what = "score" if judge is None else "judge"
        with tqdm(total=len(jobs), desc=what, unit="answer", disable=None) as bar:
            for at, scored in in_parallel(decide, jobs, 1 if judge is None else judge.concurrency):
                record, number = jobs[at]
                verdicts[record.position][number] = scored
                if len(verdicts[record.position]) == len(record.samples):
                    decided = tuple(verdicts[record.position][n] for n in range(len(record.samples)))
                    self._keep(replace(record, samples=decided, scorer=scorer))
                bar.update()

    @property
    def _rule_label(self) -> str:
        return f"rule {self.task.rule.name} version {self.task.rule.version}"

    def _missing(self, position: int) -> int:
        return self.k - (len(self.records[position].delivered()) if position in self.records else 0)

    def _keep(self, record: Record) -> None:
        known = self.records.get(record.position)
        if known is not None and len(record.delivered()) < len(known.delivered()):
            return  # a retry that delivered less
        self.records[record.position] = record
        self.journal.append(record.to_json(self.problems[record.position]))


def _by_rule(rule: ScoringRule, problem: Problem, scored: Scored) -> Scored:
    verdict = rule.score(scored.sample.text, problem.ground_truth)
    return Scored(scored.sample, verdict.extracted, verdict.correct)


def _by_judge(judge: Judge, problem: Problem, scored: Scored) -> Scored:
    """A dialogue that did not come to its end has no answer to judge, as in BrowseComp-Plus."""
    if scored.sample.status != COMPLETED:
        return Scored(scored.sample)
    question = problem.question or problem.prompt[-1]["content"]
    judgement: Judgement = judge.judge(question, scored.sample.text, problem.ground_truth)
    return Scored(scored.sample, judgement.extracted, judgement.correct, judgement)


def _header(
    engine: Engine, task: Task, problems: Sequence[Problem], k: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    header = {
        "engine": engine.label,
        "task": {"name": task.name, "version": task.version, "limits": asdict(task.limits)},
        "k": k,
        "settings": dict(settings),
        "problems_sha256": problems_hash(problems),
    }
    return {"key": hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()} | header


def _aside_names(name: str) -> Iterator[str]:
    yield f"{name}.old"
    yield from (f"{name}.old.{number}" for number in itertools.count(2))


def _open(path: Path, header: dict[str, Any]) -> Journal:
    """The journal of this evaluation; that of another one at the same place is put aside as `.old`."""
    journal = Journal(path)
    if journal.lines and journal.lines[0].get("key") == header["key"]:
        return journal
    journal.close()
    if journal.lines:
        aside = next(free for free in map(path.with_name, _aside_names(path.name)) if not free.exists())
        os.replace(path, aside)
        if "key" in journal.lines[0]:
            changed = [name for name in header if journal.lines[0].get(name) != header[name] and name != "key"]
            reason = f"is of another evaluation ({', '.join(changed)} differs)"
        else:
            reason = "has lost its first line, which says of what evaluation it is"
        logger.warning("%s %s: kept as %s", path, reason, aside.name)
    journal = Journal(path)
    journal.append(header)
    return journal
