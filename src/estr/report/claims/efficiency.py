"""Time per update, from the measurements of the concurrent engine."""

from estr.pipeline.measurement import Measurement
from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import NOT_TESTABLE, Outcome, judged
from estr.report.claims.spread import with_interval
from estr.report.efficiency import speedup_over
from estr.report.labels import PAPER_SCALE, short_name


def faster_than_sync(evidence: Evidence, *, task: str, method: str, reference: str, ratio_at_least: float) -> Outcome:
    """Step time of the synchronous reference over the method's.

    Below paper scale, a ratio that falls short of the factor is "not testable" where the overlap bound of the method's
    own stage times falls short of it as well: (generate + train) / max(generate, train) / cores, the gain of an ideal
    overlap over an ideal sync, which keeps both cores busy. The measured ratio is over the measured sync, which does
    not, so it may exceed the bound.
    """
    ours = evidence.throughput(task, method)
    ratio, text = _ratio(evidence.throughput(task, reference), ours, ratio_at_least)
    generate, train = (float(ours.record["stages"][f"{stage}_seconds"]) for stage in ("generate", "train"))
    bound = (generate + train) / max(generate, train) / ours.record["cores"]
    text += (
        f"; generation {generate:.3g} s and training {train:.3g} s per update: an ideal overlap "
        f"gains a factor {bound:.2f} over an ideal sync, one that keeps both cores busy"
    )
    if ratio < ratio_at_least and bound < ratio_at_least and ours.record["scale"] != PAPER_SCALE:
        return Outcome(NOT_TESTABLE, f"{text}, {ratio_at_least:g} is out of reach on this machine")
    return judged(ratio >= ratio_at_least, text)


def step_time_within(evidence: Evidence, *, task: str, method: str, other: str, ratio_at_most: float) -> Outcome:
    """Step time of the method over the other's."""
    ratio, text = _ratio(evidence.throughput(task, method), evidence.throughput(task, other), ratio_at_most)
    return judged(ratio <= ratio_at_most, text)


def step_time_below(evidence: Evidence, *, task: str, method: str, other: str, ratio_below: float) -> Outcome:
    """Step time of the method over the other's."""
    ratio, text = _ratio(evidence.throughput(task, method), evidence.throughput(task, other), ratio_below)
    return judged(ratio < ratio_below, text)


def rule_costs_nothing(evidence: Evidence, *, task: str, method: str, ratio_at_most: float) -> Outcome:
    """Time of the objective with the rule over that of the objective with keep_all in its place.

    Judged on the objective alone; what that is of a step stands beside it. All from one measurement.
    """
    ours = evidence.throughput(task, method)
    rule, plain = (float(ours.record["objective"][f"seconds_{name}"]) for name in ("rule", "keep_all"))
    step = float(ours.step_seconds.mean())
    found = rule / plain
    return judged(
        found <= ratio_at_most,
        f"objective with the rule / with keep_all: {1e3 * rule:.3g} / {1e3 * plain:.3g} ms = {found:.3f}; the "
        f"difference is {100 * (rule - plain) / step:+.4f} % of a step of {step:.3g} s",
    )


def _ratio(over: Measurement, under: Measurement, border: float) -> tuple[float, str]:
    """Mean step time of one measurement over another's, and how it is written."""
    found = speedup_over(over, under)
    names, means, updates = zip(
        *((short_name(m.label), f"{m.step_seconds.mean():.3g}", str(len(m.step_seconds))) for m in (over, under)),
        strict=True,
    )
    return found[0], (
        f"s/step of {' / '.join(names)}: {' / '.join(means)} = {with_interval(*found, border=border)}, one measurement "
        f"each of {' and '.join(updates)} updates; in so short a window a queue that fills or drains counts"
    )
