"""Answer extraction: named, versioned, pure functions from a response to the answer it states."""

import re

_ANSWER_LINE = re.compile(r"(?i)answer\s*:\s*([^\n]+)")
_TAIL = 300


def dapo_answer(response: str) -> str | None:
    """What follows the last `Answer:` in the last 300 characters, as DAPO-Math asks for it; None if there is none."""
    found = _ANSWER_LINE.findall(response[-_TAIL:])
    return found[-1].strip() if found else None
