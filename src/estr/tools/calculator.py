"""Exact arithmetic for a policy: a recursive-descent parser with bounds, never `eval`.

    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/" | "%") signed)*       binary % : remainder with the divisor's sign, as in Python
    signed  = ("+" | "-")* power                       so -2^2 is -4
    power   = percent (("^" | "**") signed)?           right-associative, whole exponents only
    percent = (number | "(" sum ")") "%"*              postfix %: hundredths, unless a number or "(" follows it
    number  = 1234 | 1,234 | 12.5 | .5

`50%*80` is 40, `17%5` is 2. Typeset signs (U+00D7, U+00F7, U+2212) are read as * / -.
"""

import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from estr.tools.base import ToolError, ToolResult, function_schema

MAX_LENGTH = 1_000  # characters
MAX_NESTING = 32  # parentheses and powers of powers
MAX_EXPONENT = 1_000
MAX_BITS = 8_192  # of numerator and denominator, at every step
MAX_SHOWN = 10**50
SHOWN_DIGITS = 12  # significant digits of a result that is not whole

_TOKEN = re.compile(r"[0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+|\*\*|[-+*/()^%]")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_SIGNS = str.maketrans("\u00d7\u00f7\u2212", "*/-")
_END = ""

_Number = int | Fraction  # whole values stay ints: several times faster


class Calculator:
    """The tool `calculator(expression)`."""

    name = "calculator"
    schema = function_schema(
        "calculator",
        "Evaluates an arithmetic expression.",
        expression="for example (3 + 4.5) * 1,000 / 2^3 or 20% * 50",
    )

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(render(evaluate(arguments["expression"])))


def evaluate(expression: str) -> Fraction:
    """The exact value. Raises `ToolError` for what is no expression, for a division by zero, and beyond the bounds."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression is longer than {MAX_LENGTH} characters")
    return Fraction(_Parser(_tokens(expression.translate(_SIGNS))).parse())


def render(value: Fraction) -> str:
    """A whole number in full, any other rounded to `SHOWN_DIGITS` significant digits.

    Raises `ToolError` from `MAX_SHOWN` on.
    """
    if abs(value) >= MAX_SHOWN:
        raise ToolError("the result has more than 50 digits")
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=SHOWN_DIGITS)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context)
    # fixed notation, except for values so small that it would be mostly zeros
    return f"{rounded:f}" if rounded.adjusted() >= -SHOWN_DIGITS else f"{rounded:e}"


def _tokens(expression: str) -> list[str]:
    tokens = []
    for part in expression.split():
        position = 0
        while position < len(part):
            match = _TOKEN.match(part, position)
            if match is None:
                raise ToolError(f"unexpected character {part[position]!a}")
            tokens.append(match.group())
            position = match.end()
    return [*tokens, _END]


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> _Number:
        if self._tokens[0] == _END:
            raise ToolError("the expression is empty")
        value = self._sum()
        if self._tokens[self._next] != _END:
            raise ToolError(f"unexpected {self._tokens[self._next][:40]!r}")
        return value

    def _sum(self) -> _Number:
        value = self._product()
        while (operator := self._tokens[self._next]) in ("+", "-"):
            self._next += 1
            right = self._product()
            value = _bounded(value + right if operator == "+" else value - right)
        return value

    def _product(self) -> _Number:
        value = self._signed()
        while (operator := self._tokens[self._next]) in ("*", "/", "%"):
            self._next += 1
            right = self._signed()
            if operator == "*":
                value = _bounded(value * right)
            elif right == 0:
                raise ToolError("division by zero")
            elif operator == "/":
                value = _bounded(_quotient(value, right))
            else:
                value = _bounded(value % right)
        return value

    def _signed(self) -> _Number:
        negative = False
        while (sign := self._tokens[self._next]) in ("+", "-"):
            self._next += 1
            negative ^= sign == "-"
        value = self._power()
        return -value if negative else value

    def _power(self) -> _Number:
        base = self._percent()
        if self._tokens[self._next] not in ("^", "**"):
            return base
        self._next += 1
        self._enter()
        exponent = self._signed()
        self._depth -= 1
        return _bounded(_raise(base, exponent))

    def _percent(self) -> _Number:
        value = self._atom()
        while self._tokens[self._next] == "%" and not _starts_operand(self._tokens[self._next + 1]):
            self._next += 1
            value = _bounded(_quotient(value, 100))
        return value

    def _atom(self) -> _Number:
        token = self._tokens[self._next]
        self._next += 1
        if token == "(":
            self._enter()
            value = self._sum()
            if self._tokens[self._next] != ")":
                raise ToolError("a closing parenthesis is missing")
            self._next += 1
            self._depth -= 1
            return value
        if token == _END:
            raise ToolError("the expression is incomplete")
        if not _starts_operand(token):
            raise ToolError(f"unexpected {token[:40]!r}")
        return _read_number(token)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise ToolError(f"nested deeper than {MAX_NESTING} levels")


def _starts_operand(token: str) -> bool:
    return token != _END and (token[0] in "0123456789(" or (token[0] == "." and len(token) > 1))


def _read_number(token: str) -> _Number:
    whole, _, decimals = token.partition(".")
    if "," in whole:
        if not _THOUSANDS.fullmatch(whole):
            raise ToolError(f"misplaced comma in {token[:40]!r}")
        whole = whole.replace(",", "")
    if not decimals:
        return int(whole)
    return _quotient(int(whole + decimals), 10 ** len(decimals))


def _quotient(left: _Number, right: _Number) -> _Number:
    value = Fraction(left, right)
    return value.numerator if value.denominator == 1 else value


def _raise(base: _Number, exponent: _Number) -> _Number:
    if not isinstance(exponent, int) and exponent.denominator != 1:
        raise ToolError("an exponent must be a whole number")
    power = int(exponent)
    if abs(power) > MAX_EXPONENT:
        raise ToolError(f"an exponent is beyond {MAX_EXPONENT}")
    if base == 0 and power < 0:
        raise ToolError("division by zero")
    bits = max(abs(base.numerator), base.denominator).bit_length()
    # refused before it is computed; a power has at least (bits - 1) * |power| bits
    if (bits - 1) * abs(power) > MAX_BITS:
        raise ToolError("a number is too large")
    return Fraction(base) ** power if power < 0 else base**power


def _bounded(value: _Number) -> _Number:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise ToolError("a number is too large")
    return value
