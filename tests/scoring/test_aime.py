import logging
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.scoring import RULES, Verdict
from estr.scoring.latex import last_boxed

RULE = RULES["aime"]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{16}", "16"),
        ("\\fbox{16}", "16"),
        ("\\boxed {16}", "16"),
        ("\\boxed{12} wait, \\boxed{16}", "16"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{16}}", "16"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("{ \\boxed{16}", "16"),
        ("} \\boxed{16} }", "16"),
        ("\\boxed{12} and \\boxed{16", "12"),
        ("\\boxed{12} and \\boxed{}", "12"),
        ("\\boxed{12} and \\boxed{ }", "12"),
        ("\\boxed{16", None),
        ("\\boxed16", None),
        ("boxed{16}", None),
        ("\\boxed{}", None),
        ("16", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_last_boxed_counts_a_hundred_thousand_braces() -> None:
    deep = "{" * 100_000 + "16" + "}" * 100_000
    assert last_boxed(f"\\boxed{{{deep}}}") == deep
    assert last_boxed("\\boxed{" * 100_000 + "16" + "}" * 100_000) == "16"


@pytest.mark.parametrize(
    ("response", "gold", "extracted", "correct"),
    [
        ("\\boxed{16}", "16", "16", True),
        ("$\\boxed{16}$.", "016", "16", True),
        ("\\boxed{016}", "16", "16", True),
        ("\\boxed{000}", "0", "0", True),
        ("\\boxed{12} wait, \\boxed{16}", "16", "16", True),
        ("\\boxed{16} wait, \\boxed{12}", "16", "12", False),
        ("\\boxed{16^\\circ}", "16", "16", True),
        ("\\boxed{16^{\\circ}}", "16", "16", True),
        ("\\boxed{16\u00b0}", "16", "16", True),
        ("\\boxed{\\text{16}}", "16", "16", True),
        ("\\boxed{\\textbf{16}}", "16", "16", True),
        ("\\boxed{\\mathbf{\\text{16}}}", "16", "16", True),
        ("\\boxed{{16}}", "16", "16", True),
        ("\\boxed{16\\text{ cm}^2}", "16", "16", True),
        ("\\boxed{16 \\text{ ways}}", "16", "16", True),
        ("\\boxed{\\text{16 or }17}", "16", "\\text{16 or }17", False),
        ("\\boxed{n=16}", "16", "16", True),
        ("\\boxed{m + n = 16}", "16", "16", True),
        ("\\boxed{a=1, b=16}", "16", "a=1, b=16", False),
        ("\\boxed{n \\le 16}", "16", "n \\le 16", False),
        ("\\boxed{n \\le m = 16}", "16", "n \\le m = 16", False),
        ("\\boxed{16.0}", "16", "16", True),
        ("\\boxed{16.}", "16", "16", True),
        ("\\boxed{16.5}", "16", "16.5", False),
        ("\\boxed{+16}", "16", "16", True),
        ("\\boxed{-16}", "16", "-16", False),
        ("\\boxed{\\$16}", "16", "16", True),
        ("\\boxed{1,000}", "1000", "1000", True),
        ("\\boxed{1{,}000}", "1000", "1000", True),
        ("\\boxed{1\\,000}", "1000", "1000", True),
        ("\\boxed{1,0}", "10", "1,0", False),
        ("Answer: 16", "16", None, False),
        ("16", "16", None, False),
        ("\\boxed{\\text{sixteen}}", "16", "\\text{sixteen}", False),
        # characters
        ("\\boxed{\uff11\uff16}", "16", "16", True),
        ("\\boxed{\u200f1\u200b6\u200e}", "16", "16", True),
        ("\\boxed{\u0661\u0666}", "16", "\u0661\u0666", False),
        ("\\boxed{16\u00b2}", "162", "16\u00b2", False),
        ("\\boxed{\u2460}", "1", "\u2460", False),
        ("\\boxed{16\0}", "16", "16\0", False),
        ("\\boxed{\ud800}", "16", "\ud800", False),
        # math-verify
        ("\\boxed{\\frac{32}{2}}", "16", "\\frac{32}{2}", True),
        ("\\boxed{\\dfrac{32}{3}}", "16", "\\dfrac{32}{3}", False),
        ("\\boxed{2^4}", "16", "2^4", True),
        ("\\boxed{2^{10}}", "1024", "2^{10}", True),
        ("\\boxed{4 \\cdot 4}", "16", "4 \\cdot 4", True),
        ("\\boxed{\\left(\\sqrt{256}\\right)}", "16", "\\left(\\sqrt{256}\\right)", True),
        ("\\boxed{(16)}", "16", "(16)", True),
        ("\\boxed{16 cm}", "16", "16 cm", True),
        ("\\boxed{16, 17}", "16", "16, 17", False),
        ("\\boxed{16\\pi}", "16", "16\\pi", False),
        ("\\boxed{16\\pi}", "2^4\\pi", "16\\pi", True),
        ("\\boxed{\\tfrac12}", "\\frac{1}{2}", "\\tfrac12", True),
        ("\\boxed{0.5}", "\\frac{1}{2}", "0.5", True),
        # what is never evaluated
        ("\\boxed{9**9**9}", "16", "9**9**9", False),
        ("\\boxed{9^{9^{9}}}", "16", "9^{9^{9}}", False),
        ("\\boxed{9^9^9}", "16", "9^9^9", False),
        ("\\boxed{9^(9^9)}", "16", "9^(9^9)", False),
        ("\\boxed{(9^{999})^{999}}", "16", "(9^{999})^{999}", False),
        ("\\boxed{10^{1000}}", "16", "10^{1000}", False),
        ("\\boxed{4^0.5}", "2", "4^0.5", False),
        ("\\boxed{\\sqrt[999999]{16}}", "16", "\\sqrt[999999]{16}", False),
        ("\\boxed{16!}", "20922789888000", "16!", False),
        ("\\boxed{" + "(" * 30 + "16" + ")" * 30 + "}", "16", "(" * 30 + "16" + ")" * 30, False),
        ("\\boxed{__import__('os')}", "16", "__import__('os')", False),
        ("\\boxed{" + "1" * 1001 + "}", "1" * 1001, None, False),
    ],
)
def test_aime(response: str, gold: str, extracted: str | None, correct: bool) -> None:
    assert RULE.score(response, gold) == Verdict(extracted, correct)


def test_math_verify_works_in_threads_and_leaves_signals_and_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    alarm, level = signal.getsignal(signal.SIGALRM), logging.getLogger().level
    verdicts: list[bool] = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(RULE.score("\\boxed{\\frac{64}{4}}", "16").correct))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 4
    assert (signal.getsignal(signal.SIGALRM), logging.getLogger().level, caplog.records) == (alarm, level, [])


WRAPPERS = ["{}", "\\text{{{}}}", "\\mathrm{{{}}}", "\\mathbf{{{}}}", "{}^\\circ", "\\ {}\\ ", "{}.0", "n={}", "{{{}}}"]
OUTSIDE = [
    "{}",
    "**{}**",
    "${}$",
    "\\[ {} \\]",
    "so {}.",
    "\n{}\n",
    "\\boxed{{12}}, no, {}",
    "{{{}",
    "{}}}",
    "{} \\boxed{{",
]


@given(st.integers(0, 999), st.sampled_from(["{}", "{:03}"]), st.sampled_from(WRAPPERS), st.sampled_from(OUTSIDE))
def test_wrappers_do_not_matter(number: int, spelling: str, wrapper: str, outside: str) -> None:
    boxed = f"\\boxed{{{wrapper.format(spelling.format(number))}}}"
    assert RULE.score(outside.format(boxed), f"{number:03}") == Verdict(str(number), True)


@given(st.integers(0, 999), st.integers(0, 999))
def test_integers_are_compared_as_integers(answer: int, gold: int) -> None:
    assert RULE.score(f"\\boxed{{{answer:03}}}", str(gold)).correct == (answer == gold)
