import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm.signals import TokenSignals
from estr.records import NO_SWITCH, TOKEN_SCHEMA, GrowingTable, metrics_row, switch_offset, token_rows


def test_switch_offset_by_hand() -> None:
    versions = torch.tensor([[5, 5, 5, 6, 6, 6, 6, 8, 8, -1], [5, 5, 5, -1, -1, -1, -1, -1, -1, -1]])
    mask = versions >= 0
    offsets = switch_offset(versions, mask)
    assert offsets[0, :9].tolist() == [-3, -2, -1, 0, 1, -2, -1, 0, 1]
    assert offsets[1, :3].tolist() == [NO_SWITCH] * 3


def test_switch_offset_skips_tool_output() -> None:
    versions = torch.tensor([[5, 5, -1, -1, 6, 6, -1, 6]])
    mask = versions >= 0
    assert switch_offset(versions, mask)[0].tolist() == [-2, -1, NO_SWITCH, NO_SWITCH, 0, 1, NO_SWITCH, 2]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=5))
def test_switch_offset_against_brute_force(rows: list[list[int]]) -> None:
    length = max(map(len, rows))
    versions = torch.tensor([sorted(row) + [-1] * (length - len(row)) for row in rows])
    mask = versions >= 0
    offsets = switch_offset(versions, mask)
    for row, original in enumerate(rows):
        ordered = sorted(original)
        switches = [t for t in range(1, len(ordered)) if ordered[t] != ordered[t - 1]]
        for t in range(len(ordered)):
            best = min(switches, key=lambda s: (abs(t - s), -s), default=t - NO_SWITCH)
            assert offsets[row, t] == t - best


def test_token_rows_hold_every_response_token_in_the_schema() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    values = torch.arange(6.0).view(2, 3)
    signals = TokenSignals(-values, -values - 1, values, values, mask, torch.tensor([[1, 2, -1], [1, -1, -1]]))
    keep = torch.tensor([[True, False, False], [True, False, False]])
    rows = token_rows(7, 6, signals, torch.arange(6).view(2, 3), keep, torch.tensor([1.0, 0.0]))
    assert rows.schema == TOKEN_SCHEMA
    assert rows.to_pylist()[1] == {
        "step": 7,
        "sequence": 0,
        "position": 1,
        "token": 1,
        "weight_version": 2,
        "target_version": 6,
        "behavior_logprob": -1.0,
        "target_logprob": -2.0,
        "entropy": 1.0,
        "advantage": 1.0,
        "reward": 1.0,
        "kept": False,
        "switch_offset": 0,
    }
    assert rows["sequence"].to_pylist() == [0, 0, 1]


def rows(*steps: int) -> pa.Table:
    return pa.concat_tables([metrics_row({"step": s, "target_version": s - 1, "reward": s / 10}) for s in steps])


def test_a_growing_table_goes_on_from_what_it_was() -> None:
    table = GrowingTable()
    table.add(rows(1, 2))
    before = table.table()
    table.add(rows(3))
    assert table.table()["step"].to_pylist() == [1, 2, 3]
    resumed = GrowingTable()
    resumed.add(before)
    resumed.add(rows(3))
    assert resumed.table() == table.table()
    assert GrowingTable(TOKEN_SCHEMA).table().schema == TOKEN_SCHEMA
