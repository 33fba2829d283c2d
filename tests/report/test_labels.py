"""Names and order of methods and their overrides."""

import pytest

from estr.report.labels import display, is_matched, order


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("estr", "ESTR"),
        ("icepop__thresholds=matched", "IcePop (matched)"),
        ("estr__inter=1__intra=5", "ESTR (intra 5, inter 1)"),
        ("estr__tau=0.7", "ESTR (tau 0.7)"),
        ("estr__prompts=64", "ESTR (64 prompts)"),
        ("async__learning_rate=0.001", "GRPO (async) (learning rate 0.001)"),
        ("kpop__inter=2__thresholds=matched", "KPop (inter 2, matched)"),
        ("outlier_suppressing", "+ outlier suppression"),
    ],
)
def test_names_of_overrides(label: str, name: str) -> None:
    assert display(label) == name


def test_only_the_matched_budget_alone_is_the_matched_variant() -> None:
    assert is_matched("kpop__thresholds=matched") and not is_matched("kpop__inter=2__thresholds=matched")


def test_order_is_the_papers_and_numbers_count_by_value() -> None:
    labels = [
        "sync",
        "async",
        "icepop",
        "icepop__thresholds=matched",
        "m2po",
        "fixed_magnitude",
        "exploration_preserving",
        "outlier_suppressing",
        "estr",
        "estr__prompts=8",
        "estr__prompts=16",
        "estr__prompts=64",
        "estr__inter=1__intra=5",
        "estr__inter=1__intra=15",
        "estr__inter=15__intra=1",
        "another",
    ]
    assert sorted(reversed(labels), key=order) == labels
