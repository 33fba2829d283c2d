from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from estr.tools.base import ToolError, ToolResult
from estr.tools.calculator import MAX_BITS, MAX_LENGTH, MAX_NESTING, Calculator, evaluate, render
from estr.tools.hermes import ToolCall
from estr.tools.toolbox import Toolbox


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2*3", "7"),
        ("(1+2)*3", "9"),
        ("10-2-3", "5"),
        ("100/10/2", "5"),
        ("-2^2", "-4"),
        ("(-2)**2", "4"),
        ("2^3^2", "512"),
        ("2^-2", "0.25"),
        ("2*-3", "-6"),
        ("--3", "3"),
        ("1,234,567.5*2", "2469135"),
        (" 12 \n+\t.5 ", "12.5"),
        ("5.", "5"),
        ("007", "7"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333"),
        ("2/3", "0.666666666667"),
        ("-1/8", "-0.125"),
        ("10^20/3", "33333333333300000000"),
        ("1/10^20", "1e-20"),
        ("17%5", "2"),
        ("-17%5", "3"),
        ("17%(2+3)", "2"),
        ("50%", "0.5"),
        ("50%*80", "40"),
        ("20% - 5", "-4.8"),
        ("200*(1+5%)^2", "220.5"),
        ("50%%", "0.005"),
        ("(7)%", "0.07"),
        ("0^0", "1"),
        ("1^1000", "1"),
        ("2\u00d73\u22121", "5"),
        ("9\u00f72", "4.5"),
        ("-0", "0"),
        ("10^49", "1" + "0" * 49),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert render(evaluate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "the expression is empty"),
        ("  ", "the expression is empty"),
        ("1/0", "division by zero"),
        ("1%0", "division by zero"),
        ("0^-1", "division by zero"),
        ("1/(2-2)", "division by zero"),
        ("(1+2", "a closing parenthesis is missing"),
        ("1)", "unexpected ')'"),
        ("()", "unexpected ')'"),
        ("1+", "the expression is incomplete"),
        ("-", "the expression is incomplete"),
        ("*2", "unexpected '*'"),
        ("%5", "unexpected '%'"),
        ("1 2", "unexpected '2'"),
        ("2(3)", "unexpected '('"),
        ("1.2.3", "unexpected '.3'"),
        ("12,34", "misplaced comma in '12,34'"),
        ("1,2345", "misplaced comma"),
        ("1,,234", "misplaced comma"),
        ("1,234,", "misplaced comma"),
        ("2^0.5", "an exponent must be a whole number"),
        ("1e5", "unexpected character 'e'"),
        ("x", "unexpected character 'x'"),
        ("1\0", r"unexpected character '\x00'"),
        ("\u0663", r"unexpected character '\u0663'"),
        ("__import__('os')", "unexpected character '_'"),
        ("9**9**9", "an exponent is beyond 1000"),
        ("9^9^9^9^9^9^9", "an exponent is beyond 1000"),
        ("(9^999)^999", "a number is too large"),
        ("2^-1001", "an exponent is beyond 1000"),
        ("*".join(["(9^999)"] * 4), "a number is too large"),
        ("1/7^999-1/11^999-1/13^999", "a number is too large"),
        ("10^50", "the result has more than 50 digits"),
        ("-10^60", "the result has more than 50 digits"),
        ("(" * 900 + "1", f"nested deeper than {MAX_NESTING} levels"),
        ("2^" * 400 + "1", f"nested deeper than {MAX_NESTING} levels"),
        ("1" * (MAX_LENGTH + 1), f"longer than {MAX_LENGTH} characters"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(ToolError) as error:
        render(evaluate(expression))
    assert reason in str(error.value)


def test_long_runs_of_signs_and_percents_do_not_nest() -> None:
    assert evaluate("-" * 999 + "1") == -1
    assert evaluate("1" + "%" * 900) == Fraction(1, 100**900)


@given(st.text("0123456789+-*/()^%., ", max_size=60))
def test_any_expression_is_computed_or_refused(expression: str) -> None:
    try:
        value = evaluate(expression)
    except ToolError as error:
        assert len(str(error)) < 80
    else:
        assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS


Tree = tuple[str, Fraction | None]


@st.composite
def numbers(draw: DrawFn) -> Tree:
    digits, places = draw(st.integers(0, 10**9)), draw(st.integers(0, 4))
    whole, decimals = divmod(digits, 10**places)
    text = f"{whole:,}" if draw(st.booleans()) else str(whole)
    return (f"{text}.{decimals:0{places}}" if places else text), Fraction(digits, 10**places)


def combine(children: SearchStrategy[Tree]) -> SearchStrategy[Tree]:
    """Expressions in full parentheses, with the value that Python's fractions give (None: undefined)."""

    def binary(left: Tree, operator: str, right: Tree) -> Tree:
        (a, x), (b, y) = left, right
        value = None
        if x is not None and y is not None:
            if operator in "+-*":
                value = {"+": x + y, "-": x - y, "*": x * y}[operator]
            elif y != 0:
                value = x / y if operator == "/" else x % y
        return f"({a}) {operator} ({b})", value

    def power(base: Tree, exponent: int) -> Tree:
        a, x = base
        undefined = x is None or (x == 0 and exponent < 0)
        return f"({a})^{exponent}", None if x is None or undefined else x**exponent

    def negated(operand: Tree) -> Tree:
        a, x = operand
        return f"-({a})", None if x is None else -x

    return (
        st.builds(binary, children, st.sampled_from("+-*/%"), children)
        | st.builds(power, children, st.integers(-3, 3))
        | st.builds(negated, children)
    )


@given(st.recursive(numbers(), combine, max_leaves=8))
def test_agrees_with_fractions(tree: Tree) -> None:
    expression, expected = tree
    if expected is None:
        with pytest.raises(ToolError, match=r"division by zero|too large|longer|nested"):
            evaluate(expression)
    else:
        try:
            assert evaluate(expression) == expected
        except ToolError as error:
            assert any(word in str(error) for word in ("too large", "longer", "nested"))


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=4), min_size=1, max_size=4), st.randoms())
def test_products_bind_tighter_and_both_from_the_left(terms: list[list[int]], random: Random) -> None:
    text, expected = "", Fraction(0)
    for place, factors in enumerate(terms):
        value, words = Fraction(factors[0]), str(factors[0])
        for factor in factors[1:]:
            divides = random.random() < 0.5
            words += f" {'/' if divides else '*'} {factor}"
            value = value / factor if divides else value * factor
        minus = place > 0 and random.random() < 0.5
        text += f" {'-' if minus else '+'} {words}"
        expected += -value if minus else value
    assert evaluate(text) == expected


@given(st.fractions(-(10**6), 10**6))
def test_a_rendered_value_is_within_its_last_digit(value: Fraction) -> None:
    assert abs(Fraction(render(value)) - value) <= abs(value) * Fraction(1, 10**11)


def test_the_tool() -> None:
    box = Toolbox([Calculator()])
    assert box.run(ToolCall("calculator", {"expression": "3*(4+5)"})) == ToolResult("27")
    assert box.run(ToolCall("calculator", {"expression": "3*"})) == ToolResult(
        "Error: calculator: the expression is incomplete", error=True
    )
