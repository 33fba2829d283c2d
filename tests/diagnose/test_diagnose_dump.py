"""Reading: layouts, names, and what is wrong with a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dumps import TOKENS, as_rows, without, write

from estr.diagnose import read_dump
from estr.diagnose.columns import parse_mapping
from estr.errors import UserError

SIGNALS = ("behavior_logprob", "target_logprob", "step")


def assert_same(dump: Any, other: Any) -> None:
    for name in SIGNALS:
        np.testing.assert_array_equal(getattr(dump, name), getattr(other, name))
    np.testing.assert_array_equal(dump.entropy[0], other.entropy[0])
    assert pd.factorize(dump.sequence)[0].tolist() == pd.factorize(other.sequence)[0].tolist()


def test_rows_of_tokens(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "a.parquet", TOKENS))
    np.testing.assert_array_equal(dump.target_logprob, np.float32(TOKENS["target_logprob"]))
    assert len(np.unique(dump.sequence)) == 4  # a sequence id counts within its step
    assert dump.lengths is None and dump.response.tolist() == [True] * 6
    assert dump.place(3) == "row 3"


def test_rows_of_sequences_are_the_same_tokens(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "rows.parquet", as_rows(TOKENS)))
    assert_same(dump, read_dump(write(tmp_path / "tokens.parquet", TOKENS)))
    assert dump.columns["entropy"].name == "rollout_entropy"
    assert dump.response.sum() == 6 and len(dump.response) == 12
    assert dump.place(3) == "row 2, token 0" and dump.place(5) == "row 3, token 0"


@pytest.mark.parametrize("kind", [pa.large_list(pa.float64()), pa.list_(pa.float16()), pa.list_(pa.float32(), 3)])
def test_every_kind_of_list(tmp_path: Path, kind: pa.DataType) -> None:
    rows = as_rows(TOKENS)
    for name in ("rollout_log_probs", "old_log_probs"):
        rows[name] = pa.array(np.float16(rows[name]).tolist()).cast(kind)
    dump = read_dump(write(tmp_path / "rows.parquet", rows))
    np.testing.assert_array_equal(dump.behavior_logprob, np.float32(np.float16(TOKENS["behavior_logprob"])))


def test_many_batches_of_rows(tmp_path: Path) -> None:
    """Lists of different lengths, more rows than are read at once."""
    lengths = [row % 5 for row in range(200)]
    values = [[-float(row) - place / 10 for place in range(length)] for row, length in enumerate(lengths)]
    columns = {"rollout_log_probs": values, "old_log_probs": values, "entropy": [[0.5] * n for n in lengths]}
    dump = read_dump(write(tmp_path / "rows.parquet", columns))
    np.testing.assert_array_equal(dump.behavior_logprob, np.float32([value for row in values for value in row]))
    assert dump.place(len(dump) - 1) == "row 199, token 3"


def test_text_formats_hold_the_same_tokens(tmp_path: Path) -> None:
    reference = read_dump(write(tmp_path / "tokens.parquet", TOKENS))
    pd.DataFrame(TOKENS).to_csv(tmp_path / "tokens.csv", index=False)
    assert_same(read_dump(tmp_path / "tokens.csv"), reference)
    rows = pd.DataFrame(as_rows(TOKENS)).to_dict("records")
    rows[2]["old_log_probs"][1] = None  # what TRL makes of NaN
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert_same(read_dump(tmp_path / "rows.jsonl"), reference)


def test_names_of_trainers_and_their_order(tmp_path: Path) -> None:
    columns = without("behavior_logprob", "target_logprob")
    columns |= {"rollout_log_probs": TOKENS["behavior_logprob"], "old_log_probs": TOKENS["target_logprob"]}
    columns |= {"advantages": [1, -1, 0, 1, 1, 1]}
    dump = read_dump(write(tmp_path / "a.parquet", columns))
    assert (dump.columns["behavior_logprob"].name, dump.columns["behavior_logprob"].source) == (
        "rollout_log_probs",
        "verl",
    )
    assert dump.columns["target_logprob"].name == "old_log_probs"
    assert dump.advantage is not None and dump.advantage.tolist() == [1, -1, 0, 1, 1, 1]


def test_a_mapped_column_is_not_taken_twice(tmp_path: Path) -> None:
    columns = without("behavior_logprob", "target_logprob")
    columns |= {"old_log_probs": TOKENS["behavior_logprob"], "new": TOKENS["target_logprob"]}
    path = write(tmp_path / "a.parquet", columns)
    mapping = parse_mapping(["behavior_logprob=old_log_probs", "target_logprob=new"])
    assert read_dump(path, mapping).target_logprob[1] == np.float32(-0.2)
    with pytest.raises(UserError, match=r"no column for target_logprob .*--map target_logprob=COLUMN"):
        read_dump(path, parse_mapping(["behavior_logprob=old_log_probs"]))


def test_values_per_sequence_are_repeated(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "a.parquet", as_rows(TOKENS) | {"advantages": [1.0, 2.0, 3.0, 4.0]}))
    assert dump.advantage is not None and dump.advantage.tolist() == [1, 1, 2, 3, 3, 4]


def test_top_k_of_a_uniform_distribution(tmp_path: Path) -> None:
    top = [[np.log(0.25)] * 2] * 6
    dump = read_dump(write(tmp_path / "a.parquet", TOKENS | {"top": top}), topk="top", vocabulary=4)
    for bound in dump.entropy:
        np.testing.assert_allclose(bound, np.log(4), rtol=1e-6)


def test_top_k_in_rows_of_sequences(tmp_path: Path) -> None:
    rows = as_rows(TOKENS)
    del rows["rollout_entropy"]
    top = [[[np.log(0.5), np.log(0.5)]] * 3] * 4
    rows["top"] = [
        row[: sum(mask)] + [[]] * (3 - sum(mask)) for row, mask in zip(top, rows["response_mask"], strict=True)
    ]
    dump = read_dump(write(tmp_path / "a.parquet", rows), topk="top", vocabulary=100)
    np.testing.assert_allclose(dump.entropy, np.log(2), rtol=1e-6)


def changed(name: str, index: int, value: Any) -> dict[str, Any]:
    return TOKENS | {name: [value if place == index else old for place, old in enumerate(TOKENS[name])]}


def changed_row(name: str, row: int, value: Any) -> dict[str, Any]:
    rows = as_rows(TOKENS)
    return rows | {name: [value if place == row else old for place, old in enumerate(rows[name])]}


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (
            without("entropy"),
            ("no entropy", "entropys", "--map entropy=COLUMN", "--entropy-from-topk", "docs/diagnose.md"),
        ),
        (
            without("behavior_logprob"),
            ("no column for behavior_logprob", "rollout_log_probs", "there are target_logprob"),
        ),
        (changed("behavior_logprob", 3, 0.7), ("'behavior_logprob': row 3: 0.7 is no log-probability",)),
        (changed("step", 2, None), ("'step': row 2: no value",)),
        (changed("step", 2, 1.5), ("'step': row 2: 1.5 is not a whole number",)),
        (TOKENS | {"entropy": ["0.1", "0.2", "high", "1", "1", "1"]}, ("'entropy': row 2: 'high' is not a number",)),
        (TOKENS | {"entropy": ["1"] * 6}, ("'entropy': holds string, not numbers",)),
        (TOKENS | {"entropy": [True] * 6}, ("'entropy': row 0: True is not a number",)),
        (TOKENS | {"entropy": [[0.1]] * 6}, ("'entropy': holds lists, behavior_logprob one value per row",)),
        (TOKENS | {"sequence": [[0.1]] * 6}, ("'sequence': holds lists",)),
        (changed("sequence", 4, None), ("'sequence'", "row 4: no value")),
        (TOKENS | {"response_mask": [0] * 6}, ("holds no response token",)),
        (changed_row("old_log_probs", 1, [0.0]), ("'old_log_probs': row 1 has 1 values, rollout_log_probs has 3",)),
        (changed_row("old_log_probs", 2, None), ("'old_log_probs': row 2 has no list",)),
        (changed_row("rollout_log_probs", 3, [2.0, 0, 0]), ("'rollout_log_probs': row 3, token 0: 2 is no log-prob",)),
        (as_rows(TOKENS) | {"old_log_probs": [-1.0] * 4}, ("'old_log_probs': holds one value per row",)),
    ],
)
def test_a_wrong_file_is_named_with_column_and_row(
    tmp_path: Path, columns: dict[str, Any], parts: tuple[str, ...]
) -> None:
    path = write(tmp_path / "wrong.parquet", columns)
    with pytest.raises(UserError) as caught:
        read_dump(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_padding_may_hold_anything(tmp_path: Path) -> None:
    rows = as_rows(TOKENS)
    rows["rollout_log_probs"][1][2] = 5.0
    rows["old_log_probs"][1][1] = None
    assert len(read_dump(write(tmp_path / "a.parquet", rows))) == 6


@pytest.mark.parametrize(
    ("top", "vocabulary", "parts"),
    [
        ([[-1.0, -2.0]] * 5 + [[-1.0, -2.0, -3.0]], 50, ("row 5: 3 log-probs, the first token has 2", "sampled token")),
        ([[-1.0, -2.0]] * 5 + [None], 50, ("row 5: 0 log-probs",)),
        ([[-1.0, -2.0]] * 3 + [[-0.1, -0.2]] * 3, 50, ("row 3: the probabilities sum to 1.724",)),
        ([[-1.0, -9.0]] * 6, 50, ("row 0: a mass of 0.632 is left", "--vocabulary")),
        ([[-1.0, -2.0]] * 6, 1, ("2 log-probs per token, but a vocabulary of 1",)),
        ([["a", "b"]] * 6, 50, ("holds lists of string, not of log-probs",)),
        ([0.1] * 6, 50, ("holds no lists of top-k log-probs",)),
    ],
)
def test_wrong_top_k(tmp_path: Path, top: list[Any], vocabulary: int, parts: tuple[str, ...]) -> None:
    path = write(tmp_path / "a.parquet", without("entropy", top=top))
    with pytest.raises(UserError) as caught:
        read_dump(path, topk="top", vocabulary=vocabulary)
    for part in (str(path), "'top'", *parts):
        assert part in str(caught.value)


def test_top_k_needs_a_list_for_every_token_of_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", as_rows(TOKENS) | {"top": [[-1.0, -2.0, -3.0]] * 4})
    with pytest.raises(UserError, match="'top': needs a list of top-k log-probs for every token"):
        read_dump(path, topk="top", vocabulary=50)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("no.parquet", None, "no such file"),
        ("bad.parquet", b"PAR1 but not really PAR1", "cannot be read as parquet"),
        ("bad.jsonl", b"not json\n", "cannot be read as jsonl"),
        ("bad.csv", b"", "cannot be read as csv"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, part: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=part) as caught:
        read_dump(tmp_path / name)
    assert name in str(caught.value)


def test_a_name_that_stands_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("entropy,behavior_logprob,target_logprob,entropy\n1,-1,-1,1\n")
    with pytest.raises(UserError, match=r"a\.csv: has several columns named entropy"):
        read_dump(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["entropy"], "write FIELD=COLUMN"),
        (["entropy="], "write FIELD=COLUMN"),
        (["colour=red"], "unknown field 'colour', there are behavior_logprob"),
        (["entropy=a", "entropy=b"], "entropy is already mapped to 'a'"),
    ],
)
def test_a_malformed_mapping(options: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        parse_mapping(options)


@pytest.mark.parametrize(
    ("mapping", "topk", "part"),
    [
        ({"entropy": "spread"}, None, "--map entropy=spread: no such column; there are behavior_logprob"),
        ({}, "top", "--entropy-from-topk top: no such column"),
        ({"entropy": "entropy"}, "entropy", "exclude each other"),
        ({"target_logprob": "entropy", "behavior_logprob": "entropy", "entropy": "step"}, None, "mapped to one column"),
    ],
)
def test_a_mapping_that_does_not_fit(tmp_path: Path, mapping: dict[str, str], topk: str | None, part: str) -> None:
    path = write(tmp_path / "a.parquet", TOKENS)
    with pytest.raises(UserError, match=part):
        read_dump(path, mapping, topk, 10 if topk else None)


def test_null_is_not_finite(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "a.parquet", changed("entropy", 0, None)))
    assert np.isnan(dump.entropy[0]).tolist() == [True] + [False] * 5
    assert np.isnan(dump.target_logprob).tolist() == [False] * 4 + [True, False]
