"""Do our data agree with what the paper claims about a method? Orderings, and one margin."""

from typing import Any

from estr.evaluation.paired import PairedDifference
from estr.report.labels import short_name

VERDICTS = ("held", "within noise", "not held", "not tested")
REFERENCES = ("async", "sync", "estr")
SYNC_MARGIN = 1.5  # percentage points: what the paper's "closely approaching sync" allows
ORDERING_LEGEND = (
    "Held: the 95 % interval of the paired difference lies on the paper's side of zero; not held: on the other side; "
    "within noise: neither."
)
LEGEND = (
    "Verdicts, on avg@k: > and < are the paper's order of the two methods, ≈ sync its claim that ESTR matches sync, "
    f"read as at most {SYNC_MARGIN:g} points below. {ORDERING_LEGEND}"
)


def references(label: str) -> tuple[str, ...]:
    """What the label is compared with; a pair of references stands in one row only."""
    return {"async": (), "sync": ("async",), "estr": ("async", "sync")}.get(label, REFERENCES)


def ordering_verdict(paper_difference: float, ours: PairedDifference | None) -> str:
    """Does our data agree with the sign of the paper's difference?

    ``held``: the 95 % interval lies on the paper's side of zero; ``not held``: on the other side;
    ``within noise``: it contains zero; ``not tested``: no pair of runs.
    """
    if ours is None:
        return "not tested"
    low, high = (ours.low, ours.high) if paper_difference > 0 else (-ours.high, -ours.low)
    if low > 0:
        return "held"
    return "not held" if high < 0 else "within noise"


def margin_verdict(margin: float, ours: PairedDifference | None) -> str:
    """Is ours at most `margin` below zero? ``held``: the whole 95 % interval is; ``not held``: none of it."""
    if ours is None:
        return "not tested"
    if ours.low >= -margin:
        return "held"
    return "not held" if ours.high < -margin else "within noise"


def verdict(label: str, reference: str, metric: str, paper_difference: float, ours: PairedDifference | None) -> str:
    """The verdict on the paper's claim about `label` and `reference`, whose scores differ by `paper_difference`."""
    if _is_margin_claim(label, reference, metric):
        return margin_verdict(SYNC_MARGIN, ours)
    return ordering_verdict(paper_difference, ours)


def claim(row: dict[str, Any], reference: str, metric: str) -> str:
    """The paper's claim on this row and its verdict, e.g. ``> async: held``; empty without a claim."""
    outcome = row.get(f"{metric}_vs_{reference}_verdict")
    if not isinstance(outcome, str):
        return ""
    if _is_margin_claim(row["label"], reference, metric):
        sign = "≈"
    else:
        sign = ">" if row[f"paper_{metric}_minus_{reference}"] > 0 else "<"
    return f"{sign} {short_name(reference)}: {outcome}"


def _is_margin_claim(label: str, reference: str, metric: str) -> bool:
    return (label, reference, metric) == ("estr", "sync", "avg")
