"""v2 Table 2 and the sensitivity to tau and to the batch: Tables 4 to 6, Figure 15c, d."""

from fractions import Fraction
from itertools import pairwise

from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import NoData, NotComputable, Outcome, everywhere, judged
from estr.report.claims.spread import (
    SEED,
    Share,
    common_seeds,
    difference,
    last_quarter,
    mean_of,
    quotient,
    seeds_range,
    seeds_text,
    training,
    with_interval,
)
from estr.report.labels import PAPER_SCALE, display, short_name, task_name
from estr.report.run_rows import groups_of, range_of_avg
from estr.report.runs import RunResult
from estr.report.sensitivity import SCALED


def improves_on(evidence: Evidence, *, task: str, method: str, other: str) -> Outcome:
    """avg@k of the method minus the other's: the difference is above 0."""
    runs, base = evidence.trained(task, method), evidence.trained(task, other)
    found = evidence.difference(runs, base)
    text = with_interval(found.mean, found.low, found.high, "+.1f", "points", border=0)
    seeds = seeds_text(common_seeds(runs, base))
    return judged(found.mean > 0, f"{display(method)} minus {display(other)}: {text}, {seeds}")


def best_of(evidence: Evidence, *, task: str, method: str, others: list[str]) -> Outcome:
    """The method has the highest avg@k."""
    runs, texts, means = evidence.trained(task, method), [], []
    for other in others:
        found = evidence.difference(runs, evidence.trained(task, other))
        means.append(found.mean)
        texts.append(f"{display(other)} {with_interval(found.mean, found.low, found.high, '+.1f', border=0)}")
    return judged(min(means) > 0, f"{short_name(method)} minus {', minus '.join(texts)} points, {seeds_text(runs)}")


def insensitive_to_tau(evidence: Evidence, *, tasks: list[str], taus: list[float], points_at_most: float) -> Outcome:
    """avg@k at the best tau minus that at the worst, allowed half its 95 % interval on top."""

    def on(task: str) -> Outcome:
        runs = evidence.settings(task, "tau", lambda run: float(run.rule["tau"]), taus)
        flat = [run for group in runs.values() for run in group]
        groups = groups_of(flat, lambda run: float(run.rule["tau"]))
        found = range_of_avg({tau: group.scores for tau, group in groups.items()}, SEED)
        if found is None:
            raise NoData("the settings of tau share no seed")
        allowed = points_at_most + (found.high - found.low) / 2
        common = sorted(set.intersection(*(set(group.scores.seeds) for group in groups.values())))
        scores = {tau: group.scores.of_seeds(common) for tau, group in groups.items()}
        values = ", ".join(f"{100 * scores[tau].values['avg'].mean():.1f}" for tau in taus)
        span = with_interval(found.mean, found.low, found.high, ".1f", "points", border=allowed)
        return judged(
            found.mean <= allowed,
            f"range {span}, allowed {allowed:.1f}; {values} % at tau {', '.join(f'{tau:g}' for tau in taus)}, "
            f"{seeds_range(runs.values())}",
        )

    return everywhere({task_name(task): task for task in tasks}, on)


def reward_grows_with_batch(evidence: Evidence, *, task: str, prompts: list[int], gain_share_below: Share) -> Outcome:
    """Final reward rises or stays within its interval at every step up; the last gain is below a share of the first.

    Four batches; the gains are from the first to the third, which must be one, and from there to the last.
    """
    runs = _batches(evidence, task, prompts)
    batches = list(runs)
    values = last_quarter("reward")
    steps = [difference(runs[large], runs[small], values) for small, large in pairwise(batches)]
    rewards = [mean_of(runs[batch], values) for batch in batches]
    early, late = (difference(runs[batches[b]], runs[batches[a]], values).mean for a, b in ((0, 2), (2, 3)))
    texts = (with_interval(step.mean, step.low, step.high, "+.3f") for step in steps)
    return judged(
        all(step.high >= 0 for step in steps) and early > 0 and late < float(Fraction(gain_share_below)) * early,
        f"rewards {', '.join(f'{reward:.3f}' for reward in rewards)} at {batches} prompts, "
        f"steps up {', '.join(texts)}; gain {late:+.3f} after {early:+.3f}; {seeds_range(runs.values())}",
    )


def masking_insensitive_to_batch(evidence: Evidence, *, task: str, prompts: list[int], ratio_at_most: float) -> Outcome:
    """Largest over smallest mean masked fraction."""
    runs = _batches(evidence, task, prompts)
    means = {batch: 100 * mean_of(group, training("masked_fraction")) for batch, group in runs.items()}
    if not max(means.values()) > 0:
        raise NotComputable("no run masks a token, the ratio is undefined")
    found = float(quotient(max(means.values()), min(means.values())))
    listed = ", ".join(f"{mean:.3g} %" for mean in means.values())
    return judged(
        found <= ratio_at_most, f"ratio {found:.3g}; {listed} at {list(means)} prompts, {seeds_range(runs.values())}"
    )


def _batches(evidence: Evidence, task: str, prompts: list[int]) -> dict[int, list[RunResult]]:
    """ESTR's runs by prompts per update; below paper scale a prompt stands for SCALED of the paper's."""
    factor = 1 if evidence.scale == PAPER_SCALE else SCALED
    wanted = [count // factor for count in prompts]
    return evidence.settings(task, "prompts", lambda run: int(run.config["train"]["prompts"]), wanted)
