"""Table 1: differences of evaluated accuracy, paired by problem and seed."""

from estr.evaluation.paired import PairedDifference
from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import NoData, Outcome, everywhere, judged
from estr.report.claims.spread import common_seeds, seeds_text, with_interval
from estr.report.labels import short_name, task_name


def beats_on_every_task(evidence: Evidence, *, tasks: list[str], method: str, other: str) -> Outcome:
    """avg@k of the method minus the other's: the whole 95 % interval above 0, on every task."""

    def on(task: str) -> Outcome:
        found, text = _difference(evidence, task, method, other)
        return judged(found.low > 0, text)

    return everywhere({task_name(task): task for task in tasks}, on)


def matches_on_every_task(
    evidence: Evidence, *, tasks: list[str], method: str, reference: str, points_at_most: float
) -> Outcome:
    """avg@k of the reference minus the method's: upper end of the 95 % interval within the margin, on every task."""

    def on(task: str) -> Outcome:
        found, text = _difference(evidence, task, reference, method)
        return judged(found.high <= points_at_most, text)

    return everywhere({task_name(task): task for task in tasks}, on)


def exceeds_pass_at_k(evidence: Evidence, *, task: str, method: str, reference: str, k: int) -> Outcome:
    """Unbiased pass@k of the method minus the reference's: point estimate and interval above 0."""
    runs = evidence.trained(task, method)
    ours = runs[0].read_evaluation().k
    if ours != k:
        raise NoData(f"evaluated with {ours} samples per problem, pass@{k} needs {k}")
    found, text = _difference(evidence, task, method, reference, "pass")
    return judged(found.low > 0, f"pass@{k} on {task_name(task)}, our counterpart of the AIME average: {text}")


def _difference(
    evidence: Evidence, task: str, first: str, second: str, score: str = "avg"
) -> tuple[PairedDifference, str]:
    a, b = evidence.trained(task, first), evidence.trained(task, second)
    found = evidence.difference(a, b, score)
    gap = with_interval(found.mean, found.low, found.high, "+.1f", "points")
    return found, f"{short_name(first)} - {short_name(second)} {gap}, {seeds_text(common_seeds(a, b))}"
