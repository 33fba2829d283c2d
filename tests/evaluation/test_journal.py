from pathlib import Path

import pytest

from estr.errors import UserError
from estr.evaluation.journal import Journal


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.jsonl"
    entries = [{"a": 1}, {"b": "half a pair \ud800, NUL \0, line \u2028 separators \r\n"}]
    journal = Journal(path)
    assert journal.lines == []
    for entry in entries:
        journal.append(entry)
    journal.close()
    assert Journal(path).lines == entries
    assert path.read_bytes().count(b"\n") == 2


def test_torn_at_any_byte_the_whole_lines_count_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    journal.append({"number": 1})
    journal.append({"number": 2})
    journal.close()
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        torn = Journal(path)
        whole = [{"number": 1}, {"number": 2}][: (size >= first) + (size == len(content))]
        assert torn.lines == whole
        torn.append({"number": 3})
        torn.close()
        assert Journal(path).lines == [*whole, {"number": 3}]


@pytest.mark.parametrize("damage", [b"{} x\n", b"[1]\n", b"\xff\xfe\n", b"\n", b"[" * 10_000 + b"\n"])
def test_a_damaged_line_is_named_and_left_out(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"number": 1}\n' + damage + b'{"number": 3}\n')
    assert Journal(path).lines == [{"number": 1}, {"number": 3}]
    assert "a.jsonl: line 2 is damaged" in caplog.text


def test_a_line_that_is_not_what_was_appended_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    for number in (1, 2, 3):
        journal.append({"number": number})
    journal.close()
    path.write_bytes(path.read_bytes().replace(b'"number": 2', b'"number": 0'))
    assert Journal(path).lines == [{"number": 1}, {"number": 3}]
    assert "line 2 is damaged (its content does not match its checksum)" in caplog.text


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"name,score\na,1\n")
    with pytest.raises(UserError, match="delete the file to start over"):
        Journal(path)
    assert path.read_bytes() == b"name,score\na,1\n"
