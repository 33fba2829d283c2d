import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.scoring import RULES, Verdict, parse_confidence

RULE = RULES["browsecomp_plus_exact"]
FULL = "Explanation: because of [1].\nExact Answer: Marie Curie\nConfidence: 95%"


@pytest.mark.parametrize(
    ("response", "gold", "extracted", "correct"),
    [
        (FULL, "Marie Curie", "Marie Curie", True),
        (FULL, "the marie curie.", "Marie Curie", True),
        (FULL, "Pierre Curie", "Marie Curie", False),
        (FULL, '["M. Curie", "Marie Curie"]', "Marie Curie", True),
        ("**Exact Answer:** Marie Curie", "Marie Curie", "Marie Curie", True),
        ("**Exact Answer**: **Marie Curie**", "Marie Curie", "Marie Curie", True),
        ("exact answer : Marie Curie", "Marie Curie", "Marie Curie", True),
        ("### Exact Answer:\n\nMarie Curie\n\nConfidence: 9%", "Marie Curie", "Marie Curie", True),
        ("Exact Answer: Marie Curie Confidence: 95%", "Marie Curie", "Marie Curie", True),
        ("Exact Answer: Marie\nCurie\n**Confidence:** 95%", "Marie Curie", "Marie Curie", True),
        ("Exact Answer: Marie Curie\n\nShe won twice.", "Marie Curie", "Marie Curie", True),
        ("Exact Answer: A\nExact Answer: Marie Curie", "Marie Curie", "Marie Curie", True),
        ("Exact Answer: Marie Curie\nExplanation: why", "Marie Curie", "Marie Curie", True),
        ("Exact Answer: 1,234", "1234", "1,234", True),
        ("Answer: Marie Curie", "Marie Curie", None, False),
        ("Marie Curie", "Marie Curie", None, False),
        ("Exact Answer:", "Marie Curie", None, False),
        ("Exact Answer: **", "Marie Curie", None, False),
        ("Exact Answer:\nConfidence: 10%", "Marie Curie", None, False),
    ],
)
def test_exact_stand_in(response: str, gold: str, extracted: str | None, correct: bool) -> None:
    assert RULE.score(response, gold) == Verdict(extracted, correct)


@pytest.mark.parametrize(
    ("response", "confidence"),
    [
        (FULL, 0.95),
        ("Confidence: 95 %", 0.95),
        ("Confidence: 95\\%", 0.95),
        ("Confidence: 95", 0.95),
        ("**Confidence:** 95%", 0.95),
        ("**Confidence**: **95%**", 0.95),
        ("CONFIDENCE : 100%", 1.0),
        ("Confidence: 0%", 0.0),
        ("Confidence: 62.5%", 0.625),
        ("Confidence: 0.5%", 0.005),
        ("Confidence: 0.95", 0.95),
        ("Confidence: 1.0", 1.0),
        ("Confidence: 1", 0.01),
        ("Confidence: high (90%)", 0.9),
        ("Confidence: 10%\nConfidence: 80%", 0.8),
        ("Confidence:\n80%", 0.8),
        ("Confidence: 80%\n20% remain", 0.8),
        ("Confidence: 150%", None),
        ("Confidence: 101", None),
        ("Confidence: -5%", None),
        ("Confidence: 1234%", None),
        ("Confidence: 1.2.3", None),
        ("Confidence: high", None),
        ("Confidence:", None),
        ("Confidence: \u0669\u0665%", None),
        ("Confidence: 1" + "0" * 5000 + "%", None),
        ("overconfidence: 95%", None),
        ("95%", None),
        ("", None),
    ],
)
def test_parse_confidence(response: str, confidence: float | None) -> None:
    assert parse_confidence(response) == (None if confidence is None else pytest.approx(confidence))


@given(st.text())
def test_confidence_is_a_probability_or_none(text: str) -> None:
    for response in (text, f"Confidence: {text}", f"Confidence: {text}%"):
        confidence = parse_confidence(response)
        assert confidence is None or 0 <= confidence <= 1


@given(st.integers(0, 100), st.sampled_from(["{}%", "{} %", "**{}%**", "{}", "{}.0%", "about {}%"]))
def test_every_percentage_is_read(percentage: int, form: str) -> None:
    assert parse_confidence(f"Confidence: {form.format(percentage)}") == pytest.approx(percentage / 100)
