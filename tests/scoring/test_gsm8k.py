import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.scoring import RULES, Verdict

STRICT, FLEXIBLE = RULES["gsm8k_strict"], RULES["gsm8k_flexible"]


@pytest.mark.parametrize(
    ("response", "gold", "extracted", "correct"),
    [
        ("#### 18", "18", "18", True),
        ("so 9 + 9 = 18\n#### 18\n", "18", "18", True),
        ("#### 1,000", "1000", "1000", True),
        ("#### -5", "-5", "-5", True),
        ("#### 18 dollars", "18", "18", True),
        ("#### 12\n#### 18", "18", "18", True),
        ("#### 18\n#### 12", "18", "12", False),
        ("##### 18", "18", "18", True),
        ("#### 0.5", "0.5", "0.5", True),
        # what verl misses
        ("#### 18.00", "18", "18.00", False),
        ("#### 18.", "18", "18.", False),
        ("#### $18", "18", None, False),
        ("####18", "18", None, False),
        ("####  18", "18", None, False),
        ("#### **18**", "18", None, False),
        ("#### \\boxed{18}", "18", None, False),
        ("#### +18", "18", None, False),
        ("#### 018", "18", "018", False),
        ("The answer is 18.", "18", None, False),
        ("\\boxed{18}", "18", None, False),
        # ... and what it takes
        ("#### 1,8", "18", "18", True),
        ("#### 18-20", "18", "18", True),
        ("#### 9**9**9", "9", "9", True),
        ("#### 1.2.3", "1.2.3", "1.2.3", True),
        ("#### ,", "18", None, False),
        # the gold answer is compared as text
        ("#### 1,000", "1,000", "1000", False),
        ("#### 18", "18 ", "18", False),
        ("#### 18", "18.0", "18", False),
        # the last 300 characters alone
        ("#### 18" + "x" * 293, "18", "18", True),
        ("#### 18" + "x" * 294, "18", None, False),
        ("#### " + "7" * 296, "7" * 296, None, False),
        # ASCII digits alone
        ("#### \uff11\uff18", "18", None, False),
        ("#### \u0661\u0668", "18", None, False),
        ("#### 1\u0668", "1", "1", True),
    ],
)
def test_strict_is_verl_s_reward(response: str, gold: str, extracted: str | None, correct: bool) -> None:
    assert STRICT.score(response, gold) == Verdict(extracted, correct)


@pytest.mark.parametrize(
    ("response", "gold", "extracted", "correct"),
    [
        ("#### 18", "18", "18", True),
        ("####18", "18", "18", True),
        ("####\n18", "18", "18", True),
        ("#### 1,000", "1000", "1000", True),
        ("#### 1,00,000", "100000", "100000", True),
        ("#### 1,234,567.50", "1234567.5", "1234567.5", True),
        ("#### 18.00", "18", "18", True),
        ("#### 18.", "18", "18", True),
        ("#### $18", "18", "18", True),
        ("#### $ 18.00", "18", "18", True),
        ("#### \\$18", "18", "18", True),
        ("#### $18$", "18", "18", True),
        ("#### \u20ac18", "18", "18", True),
        ("#### **18**", "18", "18", True),
        ("#### **$1,000.00**", "1000", "1000", True),
        ("#### \\boxed{18}", "18", "18", True),
        ("#### $\\boxed{\\text{18}}$", "18", "18", True),
        ("#### \\(18\\)", "18", "18", True),
        ("#### 18 dollars", "18", "18", True),
        ("#### 18 apples and 3 pears", "18", "18", True),
        ("#### 18 %", "18", "18", True),
        ("#### 18\\%", "18", "18", True),
        ("#### 18kg", "18", "18", True),
        ("#### 018", "18", "18", True),
        ("#### +18", "18", "18", True),
        ("#### -18", "-18", "-18", True),
        ("#### -$18", "-18", "-18", True),
        ("#### $-18", "-18", "-18", True),
        ("#### \u221218", "-18", "-18", True),
        ("#### -0", "0", "0", True),
        ("#### .5", "0.5", "0.5", True),
        ("#### 1/2", "0.5", "1/2", True),
        ("#### \\frac{1}{2}", "0.5", "1/2", True),
        ("#### -\\dfrac{3}{4}", "-0.75", "-3/4", True),
        ("#### 1 1/2", "1.5", "3/2", True),
        ("#### 1\\frac{1}{2}", "1.5", "3/2", True),
        ("#### 0.333", "1/3", "0.333", False),
        ("#### 1{,}000", "1000", "1000", True),
        ("#### 1\\,000", "1000", "1000", True),
        ("#### 1\u202f000", "1000", "1000", True),
        ("#### x = 18", "18", "18", True),
        ("#### 5 + 13 = 18", "18", "18", True),
        ("#### 18 = 5 + 13", "18", "18", True),
        ("#### 10% of 180 = $18", "18", "18", True),
        ("#### 5 + (3*2) = 11", "11", "11", True),
        ("#### 18 (with x=9)", "18", "18", True),
        ("#### 18. Check: 2+7=9", "18", "9", False),  # a heading to all appearances
        ("#### Answer: 18. Check: 2+7=9", "18", "18", True),
        ("The answer is 18 since x=9. Right.", "18", "18", True),
        ("#### USD 18", "18", "18", True),
        ("#### Rs. 18", "18", "18", True),
        ("#### Answer: 18", "18", "18", True),
        ("#### **Final answer:** $18 per day", "18", "18", True),
        ("#### The answer is 18", "18", "18", True),
        ("#### 18\nThat took 3 steps.", "18", "18", True),
        ("#### 18\n#### 12", "18", "12", False),
        # the gold answer is read the same way
        ("#### 18", "18.00", "18", True),
        ("#### 1000", "1,000", "1000", True),
        ("#### 18", "9 + 9 = 18\n#### 18", "18", True),
        ("#### 18", "eighteen", "18", False),
        ("#### 18", "", "18", False),
        # headings are no answers
        ("#### Step 2: add the 3 pears\n#### 1. Compute the sum\nIt is \\boxed{18}.", "18", "18", True),
        ("#### 18\n#### Explanation\nWe used 3 facts.", "18", "18", True),
        # the fallbacks, in their order
        ("The 2 boxes: \\boxed{12}, \\boxed{18} of 20", "18", "18", True),
        ("the answer is 12 and not \\boxed{18}", "18", "18", True),
        ("The answer is 12. No: the answer is **18**, with 3 left.", "18", "18", True),
        ("**Answer**: 18 (2 days)", "18", "18", True),
        ("He has 5, then 18.", "18", "18", True),
        ("It costs 3*6=$18.", "18", "18", True),
        ("on COVID-19", "19", "19", True),
        ("no number", "18", None, False),
        # neither expressions nor parts of numerals
        ("#### 9**9**9", "9", None, False),
        ("#### 9 ** 9", "9", None, False),
        ("#### 9^{9^{9}}", "9", None, False),
        ("#### 16 + 2", "16", None, False),
        ("#### 16 - 2", "16", None, False),
        ("#### 16-18", "16", None, False),
        ("#### 3 \\times 6", "3", None, False),
        ("#### 3:4", "3", None, False),
        ("#### 1e9", "1", None, False),
        ("#### 10\u00b2", "10", None, False),
        ("#### 2\u00bd", "2", None, False),
        ("#### 1.2.3", "1.2", None, False),
        ("#### 1,5", "1", None, False),
        ("#### 12/25/2024", "2024", None, False),
        ("#### 1/0", "1", None, False),
        ("#### " + "7" * 51, "7" * 51, None, False),
        ("#### " + " " * 197 + "1234", "1234", "1234", True),
        ("#### total:" + " " * 191 + "1234", "1234", "1234", True),
        # digits: full width is read, other scripts are not
        ("#### \uff11\uff0c\uff10\uff10\uff10", "1000", "1000", True),
        ("#### \u200f1\u200b8\u200e", "18", "18", True),
        ("#### \u0661\u0668", "18", None, False),
        ("#### 1\u0668", "1", None, False),
        ("#### 18\0", "18", "18", True),
    ],
)
def test_flexible_reads_the_number(response: str, gold: str, extracted: str | None, correct: bool) -> None:
    assert FLEXIBLE.score(response, gold) == Verdict(extracted, correct)


WRAPPERS = [
    "{}",
    "**{}**",
    "__{}__",
    "*{}*",
    "`{}`",
    "$ {} $",
    "\\boxed{{{}}}",
    "\\text{{{}}}",
    "\\mathbf{{{}}}",
    "({})",
]
WRAPPERS += ["{}.", "{} apples", "{} \\%", "${}", "\\({}\\)", " {} ", "x = {}", "Answer: {}"]


@given(
    number=st.integers(-(10**12), 10**12),
    wrappers=st.lists(st.sampled_from(WRAPPERS[:10]), max_size=3),
    outermost=st.sampled_from(WRAPPERS),
    spelling=st.sampled_from(["{}", "{:,}", "{}.00"]),
)
def test_flexible_sees_through_wrappers(number: int, wrappers: list[str], outermost: str, spelling: str) -> None:
    text = spelling.format(number)
    for wrapper in [*wrappers, outermost]:
        text = wrapper.format(text)
    assert FLEXIBLE.score(f"3 days\n#### {text}", str(number)) == Verdict(str(number), True)


@given(st.decimals(-(10**9), 10**9, places=4), st.integers(0, 3))
def test_flexible_compares_exact_decimals(number: object, zeros: int) -> None:
    text = f"{number:f}"
    assert FLEXIBLE.score(f"#### {text}{'0' * zeros}", text).correct
    assert not FLEXIBLE.score(f"#### {text}{'0' * zeros}1", text).correct


@given(st.integers(-999, 999), st.integers(1, 99), st.integers(1, 9))
def test_flexible_compares_exact_fractions(over: int, under: int, factor: int) -> None:
    assert FLEXIBLE.score(f"#### {factor * over}/{factor * under}", f"\\frac{{{over}}}{{{under}}}").correct
    assert not FLEXIBLE.score(f"#### {over}/{under}", f"{over + 1}/{under}").correct


@given(st.integers(0, 10**6))
def test_whatever_strict_calls_correct_flexible_does_too(number: int) -> None:
    for text in (f"#### {number}", f"#### {number:,}", f"#### {number} left"):
        assert STRICT.score(text, str(number)).correct
        assert FLEXIBLE.score(text, str(number)).correct
