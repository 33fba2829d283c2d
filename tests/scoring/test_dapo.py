import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.scoring import RULES, dapo_answer
from estr.scoring.dapo import normalized

RULE = RULES["dapo_math"]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (" = 12 Answer: 12", "12"),
        ("answer : 7", "7"),
        ("ANSWER:7", "7"),
        ("Answer:\n7", "7"),
        ("Answer: 3\nAnswer: 4", "4"),
        ("Answer: 3\nthen more", "3"),
        ("Answer: $16$ \t", "$16$"),
        ("**Answer: 16**", "16**"),
        ("**Answer:** 16", "** 16"),
        ("The answer is 16", None),
        ("12", None),
        ("Answer:", None),
        ("Answer: \t", None),
        ("Answer: 1" + "x" * 400, None),
        ("Answer: 1\n" + "x" * 290, "1"),
        ("Answer: 1\n" + "x" * 291, None),
        ("", None),
    ],
)
def test_dapo_answer(response: str, answer: str | None) -> None:
    assert dapo_answer(response) == answer


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("34", "34"),
        ("-3", "-3"),
        ("034", "034"),
        ("34.0", "34.0"),
        ("1,000", "1000"),
        ("1{,}000", "1000"),
        ("1\\,000", "1\\,000"),  # verl knows no \,
        ("$34$", "34"),
        ("the sum $34$ of both", "34"),
        ("\\$34", "34"),
        ("34.$", "34"),
        ("34 cm", "34"),
        ("34 square units", "34"),
        ("34 degrees", "34"),
        ("34^\\circ", "34"),
        ("34^{\\circ}", "34"),
        ("34\\text{ cm}", "34"),
        ("34\\text{ m}^2", "34"),
        ("\\text{34}", "34"),
        ("\\mbox{34}", "34"),
        ("\\textbf{34}", "34"),
        ("\\overline{34}", "34"),
        ("\\boxed{34}", "34"),
        ("$\\boxed{34}$", "34"),
        ("n = 34", "34"),
        ("a = b = 34", "34"),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
        ("\\frac12", "\\frac{1}{2}"),
        ("\\frac 1 2", "\\frac{1}{2}"),
        ("\\sqrt2", "\\sqrt{2}"),
        ("\\sqrt{2}", "\\sqrt{2}"),
        ("an apple", "apple"),
        ("1\\text{and}x", "1,x"),
        ("1,2,x", "1,2,x"),
        ("**34**", "**34**"),  # nor markdown
        ("", ""),
    ],
)
def test_the_normal_form_is_verl_s(answer: str, form: str) -> None:
    assert normalized(answer) == form


@pytest.mark.parametrize(
    ("response", "gold", "correct"),
    [
        ("Answer: 34", "34", True),
        ("Answer: 34", "35", False),
        ("Answer: \\frac12", "\\frac{1}{2}", True),
        ("Answer: $\\frac{1}{2}$", "\\frac12", True),
        ("Answer: 1,000 dollars", "1000", True),
        ("Answer: 34", "34.0", False),
        ("Answer: 034", "34", False),
        ("Answer: **34**", "34", False),
        ("\\boxed{34}", "34", False),
        ("Answer: \\boxed{34}", "34", True),
        ("Answer: 34 because 3 + 31 is 34", "34", False),
        ("Answer: 1 2", "12", True),  # verl drops every blank
        ("Answer: \u0663\u0664", "34", False),
        ("Answer: \uff13\uff14", "34", False),
        ("Answer: 34", "34" + " " * 1000, False),  # no gold answer is that long
    ],
)
def test_equal_in_the_normal_form(response: str, gold: str, correct: bool) -> None:
    assert RULE.score(response, gold).correct == correct


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_plain_integers_are_equal_as_text(answer: int, gold: int) -> None:
    assert RULE.score(f"Answer: {answer}", str(gold)).correct == (answer == gold)


@given(st.integers(0, 10**9), st.lists(st.sampled_from(["${}$", "\\text{{{}}}", "\\boxed{{{}}}", " {} "])))
def test_latex_wrappers_do_not_matter(number: int, wrappers: list[str]) -> None:
    text = f"{number:,}"
    for wrapper in dict.fromkeys(wrappers):  # verl unwraps each kind once
        text = wrapper.format(text)
    assert RULE.score(f"Answer: {text}", str(number)).correct
    assert RULE.score(f"Answer: x = {text}", str(number)).correct
