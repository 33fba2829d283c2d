"""What is written: the record, the text, and the rows with their verdicts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dumps import MASKED, TOKENS, as_rows, without, write

from estr.diagnose import examine, read_dump, record, text, write_kept
from estr.errors import UserError

TOP = {"top": np.log([[0.999, 0.0003], [0.3, 0.3], [0.99, 0.0001]]).tolist()}
THREE = {"behavior_logprob": [-1.0] * 3, "target_logprob": [-0.5] * 3} | TOP
KEEP = ["keep_estr", "keep_estr_tau_0.5", "keep_icepop", "keep_kpop", "keep_m2po", "keep_fixed_magnitude"]


def kept(tmp_path: Path, columns: dict[str, Any]) -> tuple[pa.Table, pa.Table]:
    """The written table, and the dump it was made from."""
    dump = read_dump(write(tmp_path / "dump.parquet", columns))
    write_kept(dump, examine(dump, (1.6, 0.5)), tmp_path / "new" / "kept.parquet")
    return pq.read_table(tmp_path / "new" / "kept.parquet"), pq.read_table(tmp_path / "dump.parquet")


def assert_same_rows(written: pa.Table, dump: pa.Table) -> None:
    columns = written.select(dump.column_names)
    assert columns.schema == dump.schema and str(columns.to_pydict()) == str(
        dump.to_pydict()
    )  # NaN is not equal to NaN


def test_rows_stay_as_they_are_and_gain_a_column_per_rule(tmp_path: Path) -> None:
    written, dump = kept(tmp_path, TOKENS | {"text": list("abcdef"), "note": [None, 1, 2, 3, 4, 5]})
    assert_same_rows(written, dump)
    assert written.column_names[len(dump.column_names) :] == KEEP
    for name in KEEP:
        masked = MASKED[name.removeprefix("keep_")]
        assert written[name].to_pylist() == [token != 4 and token not in masked for token in range(6)], name


def test_lists_stay_lists(tmp_path: Path) -> None:
    written, dump = kept(tmp_path, as_rows(TOKENS))
    assert_same_rows(written, dump)
    one, none = (
        [True, False, False],
        [False, False, False],
    )  # the second token of a row is masked, not finite, or padding
    assert written["keep_estr"].to_pylist() == [one, one, one, one]
    assert written["keep_fixed_magnitude"].to_pylist() == [one, none, none, one]


def test_many_rows_of_different_length(tmp_path: Path) -> None:
    """More rows than are read at once, some without tokens: every list of verdicts is as long as the row's own."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, 200)
    behavior = [(-rng.random(n)).tolist() for n in lengths]
    target = [[value - shift for value, shift in zip(row, rng.random(len(row)), strict=True)] for row in behavior]
    columns = {"behavior_logprob": behavior, "target_logprob": target, "entropy": behavior}
    columns["entropy"] = [[0.2] * n for n in lengths]
    written, _ = kept(tmp_path, columns)
    for row, verdicts in enumerate(written["keep_fixed_magnitude"].to_pylist()):
        expected = [abs(t - b) <= np.log(2) for b, t in zip(behavior[row], target[row], strict=True)]
        assert verdicts == expected


def test_only_what_both_bounds_drop_is_dropped(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "dump.parquet", THREE), topk="top", vocabulary=50_000)
    write_kept(dump, examine(dump, (1.6,)), tmp_path / "kept.parquet")
    written = pq.read_table(tmp_path / "kept.parquet")
    assert written["keep_estr"].to_pylist() == [False, True, True]
    assert written["keep_estr_if_entropy_low"].to_pylist() == [False, True, False]
    assert written["keep_estr_if_entropy_high"].to_pylist() == [False, True, True]
    assert "keep_icepop_if_entropy_low" not in written.column_names


def test_a_budget_that_only_one_bound_has_is_said_to_be_its(tmp_path: Path) -> None:
    top = [[-0.05, -5.0], [-1.5, -2.0], [-0.05, -4.0]]  # of 50,000: the mass that is left decides on the second token
    columns = {"behavior_logprob": [-0.05, -1.5, -0.05], "target_logprob": [-0.05, -4.5, -0.05], "top": top}
    dump = read_dump(write(tmp_path / "dump.parquet", columns), topk="top", vocabulary=50_000)
    diagnosis = examine(dump, (1.6,))
    low, high = diagnosis.readings
    result = record(dump, diagnosis)
    assert bool(low.matched) != bool(high.matched)
    assert any("with the lower bound of the entropy only" in note for note in result["notes"])


def test_the_dump_is_never_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.parquet", TOKENS)
    dump = read_dump(path)
    with pytest.raises(UserError, match="the dump itself"):
        write_kept(dump, examine(dump), path)
    dump = read_dump(write(path, TOKENS | {"keep_kpop": [True] * 6}))
    with pytest.raises(UserError, match="has a column 'keep_kpop' already"):
        write_kept(dump, examine(dump), tmp_path / "kept.parquet")
    assert not (tmp_path / "kept.parquet").exists()


def found(tmp_path: Path, columns: dict[str, Any], **options: Any) -> dict[str, Any]:
    dump = read_dump(write(tmp_path / "dump.parquet", columns), **options)
    return record(dump, examine(dump, (1.6,)))


def test_the_record_is_json_without_nan(tmp_path: Path) -> None:
    result = found(tmp_path, as_rows(TOKENS) | {"min_global_steps": [3, 4, 4, 5], "max_global_steps": [4, 4, 6, 5]})
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["tokens"], result["outside_response_mask"], result["sequences"], result["steps"]) == (6, 6, 4, 2)
    assert result["nonfinite"]["tokens"] == 1 and result["nonfinite"]["first"].startswith("row 2, token 1: ")
    assert result["rules"]["m2po"]["masked"] == 3 and result["matched"]["m2po"]["masked"] == 1
    assert result["staleness"]["intra"]["mean"] == 0.75
    assert result["entropy_ratio"] == {"coefficient": None, "r_squared": None, "bins": 0}
    assert result["undecided"] is None
    assert "6 response tokens, 4 sequences, 2 steps (6 tokens outside the response mask)" in text(result)


def test_text_says_it_all(tmp_path: Path) -> None:
    lines = text(found(tmp_path, TOKENS | {"weight_version": [3, 4, 4, 4, 6, 5], "target_version": [6] * 3 + [7] * 3}))
    for part in (
        "6 response tokens, 4 sequences, 2 steps",
        "intra-trajectory staleness: mean 0.75, from 0 to 2 versions",
        "non-finite signals on 1 of the tokens: every rule drops it, and it is left out below; the first: row 4: ",
        "IcePop         low 0.5, high 5       1      20 %          1   2.000          1        1     0",
        "At a budget of 20 % masked tokens:",
        "too few bins of entropy",
    ):
        assert part in lines, lines
    assert "fixed |delta|  c 0.9 " in lines.split("At a budget")[1]


def test_bounds_are_shown_as_intervals(tmp_path: Path) -> None:
    result = found(tmp_path, THREE, topk="top", vocabulary=50_000)
    assert result["rules"]["estr"]["masked"] == [1, 2] and result["rules"]["icepop"]["masked"] == 0
    assert result["budget"] == [1 / 3, 2 / 3] and result["entropy_from"] == "top-k bounds"
    assert result["undecided"] == {"estr": 1, "icepop": 0, "kpop": 0, "m2po": 0, "fixed_magnitude": 0}
    shown = text(result)
    assert "[1, 2]  [33.33, 66.67] %" in shown and "depends on the bound of the entropy: ESTR, tau 1.6: 1" in shown


def test_what_is_missing_is_noted(tmp_path: Path) -> None:
    notes = " ".join(found(tmp_path, without("step", "sequence"))["notes"])
    for part in ("no step column: the whole file is one update", "no sequence column", "no weight versions"):
        assert part in notes
