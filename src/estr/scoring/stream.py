"""Scoring of JSON lines: one line out for each line in, whatever comes in."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from estr.files import strict_json
from estr.scoring.verdict import ScoringRule

_LINE_LIMIT = 1 << 24  # bytes or characters


class _Refused(Exception):
    """Why a line can't be scored, with what could be read of it."""

    def __init__(self, reason: str, kept: dict[str, Any] | None = None):
        super().__init__(reason)
        self.kept = kept or {}


def score_lines(lines: Iterable[str | bytes], rule: ScoringRule) -> Iterator[str]:
    """Each line `{"answer": text, "gold": text}` with `extracted` (text or null) and `correct` (bool) added.

    Other keys stay. A gold number is taken as it is written, a gold list of texts and numbers as a JSON array of
    accepted answers. A line that can't be scored gives `{"error": "line N: ...", "extracted": null, "correct": false}`
    and the keys of its object, if it is one. The output is ASCII, one line of strict JSON each, without its newline.
    """
    for number, line in enumerate(lines, 1):
        try:
            row = _row(line)
            verdict = rule.score(_answer(row), _gold(row, line))
            scored = {**row, "extracted": verdict.extracted, "correct": verdict.correct}
        except _Refused as refused:
            scored = {**refused.kept, "error": f"line {number}: {refused}", "extracted": None, "correct": False}
        yield json.dumps(scored)


def _row(line: str | bytes) -> dict[str, Any]:
    if len(line) > _LINE_LIMIT:
        raise _Refused(f"longer than {_LINE_LIMIT >> 20} MiB")
    text = _text(line)
    if not text.strip():
        raise _Refused("blank; expected a JSON object with the keys answer and gold")
    try:
        row = strict_json.loads(text)
        json.dumps(row)  # what is nested too deeply to be written is refused here
    except RecursionError:
        raise _Refused("not valid JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _Refused(f"not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except ValueError as error:
        raise _Refused(f"not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise _Refused(f"expected a JSON object with the keys answer and gold, not {_kind(row)}")
    return row


def _text(line: str | bytes) -> str:
    if isinstance(line, bytes):
        try:
            line = line.decode()
        except UnicodeDecodeError as error:
            raise _Refused(f"not UTF-8 at byte {error.start + 1}") from None
    return line.removeprefix("\ufeff")


def _answer(row: dict[str, Any]) -> str:
    answer = _value(row, "answer")
    if not isinstance(answer, str):
        raise _Refused(f"answer must be text, not {_kind(answer)}", row)
    return answer


def _gold(row: dict[str, Any], line: str | bytes) -> str:
    gold = _value(row, "gold")
    if isinstance(gold, str):
        return gold
    # as it is written: 18.00 must not become 18.0 under a rule that compares text
    written = json.loads(_text(line), parse_int=str, parse_float=str)["gold"]
    if isinstance(written, str):
        return written
    if isinstance(written, list) and written and all(isinstance(answer, str) for answer in written):
        return json.dumps(written)
    if isinstance(gold, list):
        raise _Refused("a gold list must hold texts or numbers, and at least one", row)
    raise _Refused(f"gold must be text, a number or a list of them, not {_kind(gold)}", row)


def _value(row: dict[str, Any], key: str) -> Any:
    if key not in row:
        raise _Refused(f"the key {key} is missing", row)
    return row[key]


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "text" if isinstance(value, str) else "a number"
