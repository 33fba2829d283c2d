"""Which runs collapse (`estr.algorithm.detect_collapse`), and how staleness costs reward."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from estr.algorithm import Collapse, detect_collapse
from estr.errors import UserError
from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import NoData, Outcome, everywhere, judged, known
from estr.report.claims.spread import Share, seeds_range, seeds_text, single_seeds, training
from estr.report.labels import short_name
from estr.report.run_rows import final_reward
from estr.report.runs import RunResult
from estr.report.staleness_table import kendall_tau, slope

SOURCES = ("intra", "inter")


def collapses_unlike(evidence: Evidence, *, task: str, methods: list[str], stable: str) -> Outcome:
    """In a majority of seeds every one of the methods collapses and the stable one does not."""
    runs = {label: evidence.trained(task, label) for label in (*methods, stable)}
    found = {label: {run.seed: _collapse(run) for run in group} for label, group in runs.items()}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
    if not seeds:
        raise NoData("the methods share no seed")
    as_claimed = [
        seed for seed in seeds if all(found[label][seed] for label in methods) and found[stable][seed] is None
    ]
    counts = ", ".join(f"{short_name(label)} {_collapsed(by_seed)}" for label, by_seed in found.items())
    return judged(
        2 * len(as_claimed) > len(seeds),
        f"collapsed: {counts}; as claimed in {len(as_claimed)} of {seeds_text(seeds)}",
    )


def collapses_early(evidence: Evidence, *, task: str, method: str, within: Share) -> Outcome:
    """The method collapses in that first part of the steps (``1/3``) in a majority of seeds."""
    runs = evidence.trained(task, method)
    found = {run.seed: _collapse(run) for run in runs}
    early = [
        run
        for run in runs
        if (collapse := found[run.seed]) is not None and collapse.step <= Fraction(within) * run.steps
    ]
    return judged(
        2 * len(early) > len(runs),
        f"{short_name(method)} collapsed: {_collapsed(found)} in {max(run.steps for run in runs)} steps; "
        f"{len(early)} of {seeds_text(runs)} within the first {within}",
    )


def stays_stable(evidence: Evidence, *, task: str, source: str, versions: list[int], other: int) -> Outcome:
    """No run of ESTR collapses at these values of one source of staleness, the other source held at `other`."""
    sweep = _sweep(evidence, task, source, other)

    def at(value: int) -> Outcome:
        found = {run.seed: _collapse(run) for run in sweep([value])[value]}
        return judged(not any(found.values()), f"{_collapsed(found)} collapsed")

    return everywhere({f"{source} {value}": value for value in versions}, at)


def reward_falls_with_staleness(
    evidence: Evidence, *, task: str, intra: list[int], inter: list[int], other: int, tau_at_most: float
) -> Outcome:
    """Kendall's tau of final reward (mean over seeds of the last quarter) against either source of staleness."""
    asked = {"intra": intra, "inter": inter}

    def along(source: str) -> Outcome:
        versions = asked[source]
        runs = _sweep(evidence, task, source, other)(versions)
        tau = known(_trend(kendall_tau, runs), "all final rewards are equal")
        rewards = ", ".join(f"{np.mean([final_reward(run) for run in group]):.3f}" for group in runs.values())
        spread = single_seeds(_trends_of_seeds(kendall_tau, runs), ".2f")
        text = f"tau {tau:.2f}{spread}, rewards {rewards} at {versions} versions, {seeds_range(runs.values())}"
        return judged(tau <= tau_at_most, text)

    return everywhere({source: source for source in SOURCES}, along)


def intra_costs_less(evidence: Evidence, *, task: str, intra: list[int], inter: list[int], other: int) -> Outcome:
    """|slope| of final reward per version: smaller along intra than along inter."""
    slopes, texts = [], []
    for source, versions in zip(SOURCES, (intra, inter), strict=True):
        runs = _sweep(evidence, task, source, other)(versions)
        slopes.append(_trend(slope, runs))
        spread = single_seeds(_trends_of_seeds(slope, runs), "+.4f")
        texts.append(f"{source} {slopes[-1]:+.4f}{spread}, {seeds_range(runs.values())}")
    return judged(abs(slopes[0]) < abs(slopes[1]), f"slope of final reward per version: {'; '.join(texts)}")


def _collapse(run: RunResult) -> Collapse | None:
    try:
        return detect_collapse(training("reward")(run).tolist())
    except ValueError as error:
        raise UserError(f"{run.path / 'metrics.parquet'}: column reward: {error}") from error


def _collapsed(found: dict[int, Collapse | None]) -> str:
    """``2 of 3 seeds (steps 41, 60)``."""
    steps = [str(collapse.step) for collapse in found.values() if collapse]
    where = f" ({'step' if len(steps) == 1 else 'steps'} {', '.join(steps)})" if steps else ""
    return f"{len(steps)} of {seeds_text(list(found))}{where}"


def _sweep(
    evidence: Evidence, task: str, source: str, other: int
) -> Callable[[Sequence[int]], dict[int, list[RunResult]]]:
    """ESTR's runs by versions of one source, where the other stands at `other` and nothing else is changed."""

    def versions_of(run: RunResult) -> int | None:
        staleness = run.config["staleness"]
        [held] = (staleness[name] for name in SOURCES if name != source)
        return int(staleness[source]) if held == other else None

    return lambda versions: evidence.settings(task, source, versions_of, versions, SOURCES)


def _trend(measure: Callable[..., float], runs: dict[int, list[RunResult]]) -> float:
    return measure(list(runs), [float(np.mean([final_reward(run) for run in group])) for group in runs.values()])


def _trends_of_seeds(measure: Callable[..., float], runs: dict[int, list[RunResult]]) -> list[float]:
    """Of the seeds that stand at every setting."""
    by_seed = [{run.seed: final_reward(run) for run in group} for group in runs.values()]
    common = sorted(set.intersection(*map(set, by_seed)))
    trends = [measure(list(runs), [rewards[seed] for rewards in by_seed]) for seed in common]
    return [trend for trend in trends if np.isfinite(trend)]
