"""What the fuzz tests share: how many cases to try, hostile values, and what a refusal must look like.

    pytest tests/fuzz                            the same cases each time, for CI
    ESTR_FUZZ=fresh pytest tests/fuzz            as many new ones
    ESTR_FUZZ=long pytest tests/fuzz             fifty times as many new ones

A failure of new cases prints the case and a `@reproduce_failure` line; it becomes a test of its own in the same module.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from estr.config import files
from estr.errors import UserError

UNCHECKED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
COMMON: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": UNCHECKED, "print_blob": True}
settings.register_profile("ci", max_examples=100, derandomize=True, **COMMON)
settings.register_profile("fresh", max_examples=100, **COMMON)
settings.register_profile("long", max_examples=5_000, **COMMON)
PROFILE = settings.get_profile(os.environ.get("ESTR_FUZZ", "ci"))


def cases(hundreds: float) -> settings:
    """Decorator: so many hundred cases in CI, and in proportion under the other profiles."""
    return settings(PROFILE, max_examples=round(hundreds * PROFILE.max_examples))


ODD = [
    "",
    "\0",
    "\ud800",
    "\udfff",
    "\ufeff",
    "\u202e",
    "\x1b[31m",
    "٣",
    "\uff11",
    "²",
    "½",
    "é",
    "e\u0301",
    "😀",
    "\r\n",
    "\u2028",
]
ODD += ["../..", "/", "a" * 300, "nan", "-inf", "1e999", "-0", "0x_", "null", "9" * 5_000]
TEXT = st.text(st.characters(), max_size=40) | st.sampled_from(ODD)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**63, 10**400, 1e308, 5e-324])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)


def pieces(*fragments: str, size: int = 20) -> st.SearchStrategy[str]:
    """Texts put together from the fragments of a format and a few other characters."""
    return st.lists(st.sampled_from(fragments) | st.text(st.characters(), max_size=3), max_size=size).map("".join)


@st.composite
def mutated(draw: st.DrawFn, valid: Any) -> Any:
    """`valid` (of dictionaries, lists and scalars) with one to three places deleted, renamed, added to or replaced."""
    content = valid
    for _ in range(draw(st.integers(1, 3))):
        content = _mutated_once(draw, content)
    return content


def _mutated_once(draw: st.DrawFn, content: Any) -> Any:
    inside = isinstance(content, dict | list) and content and draw(st.integers(0, 9)) > 0
    if not inside:
        return draw(VALUES)
    if isinstance(content, list):
        place = draw(st.integers(0, len(content) - 1))
        return [*content[:place], _mutated_once(draw, content[place]), *content[place + 1 :]]
    key = draw(st.sampled_from(sorted(content, key=str)))
    rest = {name: value for name, value in content.items() if name != key}
    match draw(st.sampled_from(["within", "within", "delete", "rename", "add"])):
        case "delete":
            return rest
        case "rename":
            return rest | {draw(TEXT): content[key]}
        case "add":
            return content | {draw(TEXT): draw(VALUES)}
        case _:
            return content | {key: _mutated_once(draw, content[key])}


def accepted_or_refused(call: Callable[[], Any], *named: str) -> Any:
    """What `call` returns, or its `UserError`: one printable line of bounded length that holds all of `named`."""
    try:
        return call()
    except UserError as error:
        check_refusal(str(error), *named)
        return error


def check_refusal(message: str, *named: str) -> None:
    assert len(message.splitlines()) == 1 and len(message) < 2_000, message[:2_000]
    assert message.encode(), "printable"
    for name in named:
        assert name in message


def refused(call: Callable[[], Any], *named: str) -> None:
    """`call` raises a `UserError` of one line that holds all of `named`."""
    with pytest.raises(UserError) as caught:
        call()
    check_refusal(str(caught.value), *named)


def forget_configs() -> None:
    """Empty the caches of the loaders."""
    for name in ("scale", "any_scale", "site", "sizes", "task", "method", "experiment"):
        getattr(files, f"load_{name}").cache_clear()


@contextlib.contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    """The file with other bytes, for a while."""
    before = path.read_bytes()
    path.write_bytes(content)
    forget_configs()
    try:
        yield
    finally:
        path.write_bytes(before)
        forget_configs()
