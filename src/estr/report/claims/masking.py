"""How many tokens each rule masks and which, and how far the policies are from their rollouts.

Means are over the steps of a run and then over seeds, as in the tables.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from estr.report.claims.evidence import ESTR, Evidence
from estr.report.claims.outcome import NoData, NotComputable, Outcome, everywhere, judged, known
from estr.report.claims.spread import (
    Series,
    difference,
    last_quarter,
    mean_of,
    quotient,
    ratio,
    seeds_range,
    seeds_text,
    single_seeds,
    training,
    with_interval,
)
from estr.report.labels import matched, short_name
from estr.report.run_rows import training_columns
from estr.report.runs import FIRST_STEPS, RunResult


def masks_fewest(evidence: Evidence, *, task: str, rules: list[str]) -> Outcome:
    """Mean masked fraction: ESTR's below that of every other rule."""
    return _lowest(_groups(evidence, task, [ESTR, *rules]), training("masked_fraction"), 100, "%")


def masks_fewer_by(evidence: Evidence, *, task: str, rules: list[str], ratio_at_least: float) -> Outcome:
    """Mean masked fraction of each rule over ESTR's."""
    groups = _groups(evidence, task, [ESTR, *rules])

    def over_estr(rule: str) -> Outcome:
        found = ratio(groups[rule], groups[ESTR], training("masked_fraction"))
        text = with_interval(*found, unit="x ESTR's", border=ratio_at_least)
        return judged(found[0] >= ratio_at_least, f"{text}, {seeds_text(groups[rule])}")

    return everywhere({short_name(rule): rule for rule in rules}, over_estr)


def lowest_at_the_end(evidence: Evidence, *, task: str, column: str, others: list[str]) -> Outcome:
    """Mean of a column of metrics.parquet over the last quarter of training: ESTR's below every other method's."""
    return _lowest(_groups(evidence, task, [ESTR, *others]), last_quarter(column))


def budget_drifts(evidence: Evidence, *, task: str, rule: str, ratio_at_least: float) -> Outcome:
    """Masked fraction at the matched budget: mean over training over that of the shared batch at step 0."""
    found, text = _drift(evidence, task, rule)
    _require_one_batch(evidence, task, text)
    return judged(found >= ratio_at_least, text)


def budget_versions(evidence: Evidence, *, task: str, rule: str, ratio_at_most: float) -> Outcome:
    """Which of the paper's versions our runs side with: v1, the rule holds the budget, or v2, it does not."""
    found, text = _drift(evidence, task, rule)
    version = "v1 (the budget is held)" if found <= ratio_at_most else "v2 (it is not)"
    raise NotComputable(
        f"our runs side with {version}, taking C33's factor {ratio_at_most:g} as the border: {text}. The predicate "
        "asks for this report only: the two versions contradict each other"
    )


def budget_held_but_behind(evidence: Evidence, *, task: str, rule: str, ratio_at_most: float) -> Outcome:
    """The masked fraction stays near the budget, and accuracy is below ESTR's."""
    found, text = _drift(evidence, task, rule)
    runs, estr = evidence.trained(task, matched(rule)), evidence.trained(task, ESTR)
    gap = evidence.difference(runs, estr)
    text += f"; avg@k - ESTR {with_interval(gap.mean, gap.low, gap.high, '+.1f', 'points', border=0)}"
    if gap.mean < 0:
        _require_one_batch(evidence, task, text)
    return judged(found <= ratio_at_most and gap.mean < 0, text)


def masked_entropy_lower(evidence: Evidence, *, task: str, rules: list[str], share_at_most: float) -> Outcome:
    """Mean entropy of the tokens masked in the first steps at the matched budget: ESTR's over each baseline's."""
    estr = _masked_entropy(evidence.trained(task, ESTR))

    def against(rule: str) -> Outcome:
        runs = evidence.trained(task, matched(rule))
        other = _masked_entropy(runs)
        return judged(
            estr <= share_at_most * other,
            f"ESTR {estr:.3g}, {short_name(rule)} {other:.3g} nats, ratio {quotient(estr, other):.2f}, "
            f"{seeds_text(runs)}",
        )

    return everywhere({short_name(rule): rule for rule in rules}, against)


def sequences_masked(
    evidence: Evidence, *, task: str, rule: str, percent_at_most: float, ratio_at_least: float
) -> Outcome:
    """Mean share of sequences with a masked token: ESTR's small, the rule's a multiple of it."""
    groups, column = _groups(evidence, task, [ESTR, rule]), training("sequences_masked_fraction")
    estr, other = (100 * mean_of(groups[label], column) for label in (ESTR, rule))
    found = ratio(groups[rule], groups[ESTR], column)
    return judged(
        estr <= percent_at_most and found[0] >= ratio_at_least,
        f"ESTR {estr:.3g} %, {short_name(rule)} {other:.3g} %, ratio {with_interval(*found, border=ratio_at_least)}, "
        f"{seeds_range(groups.values())}",
    )


def mostly_below(evidence: Evidence, *, task: str, percent_below: float) -> Outcome:
    """Median over steps of ESTR's masked fraction, mean over seeds."""
    runs = evidence.trained(task, ESTR)
    medians = [100 * float(np.median(training("masked_fraction")(run))) for run in runs]
    median = known(float(np.mean(medians)), "the masked fraction has steps without a value")
    return judged(median < percent_below, f"median {median:.3g} %{single_seeds(medians)}, {seeds_text(runs)}")


def _groups(evidence: Evidence, task: str, labels: Sequence[str]) -> dict[str, list[RunResult]]:
    return {label: evidence.trained(task, label) for label in labels}


def _lowest(groups: Mapping[str, list[RunResult]], values: Series, factor: float = 1, unit: str = "") -> Outcome:
    """ESTR's mean below every other, each difference with its interval."""
    means = {
        label: known(factor * mean_of(runs, values), f"{short_name(label)} has steps without a value")
        for label, runs in groups.items()
    }
    texts = [f"ESTR {means[ESTR]:.3g}{f' {unit}' if unit else ''}"]
    for label, runs in groups.items():
        if label != ESTR:
            gap = difference(runs, groups[ESTR], values)
            low, high = factor * gap.low, factor * gap.high
            texts.append(f"{short_name(label)} {means[label]:.3g} (minus ESTR [{low:.2g}, {high:.2g}])")
    lowest = all(means[ESTR] < mean for label, mean in means.items() if label != ESTR)
    return judged(lowest, f"{', '.join(texts)}, {seeds_range(groups.values())}")


def _require_one_batch(evidence: Evidence, task: str, text: str) -> None:
    """The predicates' denominator is one batch at step 0."""
    first, last = evidence.calibration(task).steps
    if first != last:
        raise NotComputable(
            f"the budget was matched on updates {first} to {last} together, not on a batch at step 0 (docs/limits.md): "
            f"there is no ratio to step 0. Over those updates: {text}"
        )


def _drift(evidence: Evidence, task: str, rule: str) -> tuple[float, str]:
    """Masked fraction over training / on the batch of the matched budget."""
    runs, budget = evidence.trained(task, matched(rule)), evidence.calibration(task)
    start = budget.achieved_percent.get(matched(rule))
    if start is None:
        raise NoData(f"{budget.path.name} does not say what {short_name(rule)} masks of the shared batch")
    if not start > 0:
        raise NotComputable("no token of the shared batch is masked, the drift is undefined")
    drifts = [100 * float(training("masked_fraction")(run).mean()) / start for run in runs]
    drift = known(float(np.mean(drifts)), f"{short_name(rule)} has steps without a masked fraction")
    return drift, (
        f"masked {start:.3g} % of the shared batch, {drift * start:.3g} % over training: factor {drift:.3g}"
        f"{single_seeds(drifts)}, {seeds_text(runs)}"
    )


def _masked_entropy(runs: Sequence[RunResult]) -> float:
    value = float(training_columns(runs)["masked_entropy_first50_nats"])
    if not value >= 0:
        raise NoData(f"{short_name(runs[0].method)} masks no token in the first {FIRST_STEPS} steps")
    return value
