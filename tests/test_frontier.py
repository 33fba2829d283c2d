"""The search for the stability frontier, alone and with real tiny runs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.config import load_scale, resolve
from estr.frontier import find_frontier, search
from estr.layout import Layout
from estr.report.frontier import frontier_frame, frontier_views, stability_frontier
from estr.stages import prepare_data, warm_start


@given(values=st.integers(1, 20), edge=st.integers(-1, 19))
def test_a_monotone_edge_is_found_in_few_tries(values: int, edge: int) -> None:
    edge = min(edge, values - 1)
    asked: list[int] = []

    def stable(index: int) -> bool:
        asked.append(index)
        return index <= edge

    assert search(stable, lambda index: index <= edge, values) == edge
    assert len(asked) <= values.bit_length()


@given(edge=st.integers(-1, 9), guess=st.integers(-1, 9))
def test_the_majority_decides_where_one_seed_misleads(edge: int, guess: int) -> None:
    found = search(lambda index: index <= guess, lambda index: index <= edge, 10)
    assert found == (edge if guess >= 0 or edge < 0 else max(edge, -1))


@pytest.mark.slow
def test_a_search_on_real_runs_is_resumed_and_drawn(workspace: Path) -> None:
    layout = Layout(Path("results"), "smoke")
    config = resolve("smoke", "dapo_math", "estr", 0)
    prepare_data(layout, config)
    warm_start(layout, config)
    path = find_frontier(layout, config, "learning_rate")
    record = json.loads(path.read_text())
    values = load_scale("smoke").frontier.learning_rate
    assert record["values"] == values
    assert record["stable_up_to"] in (None, *values) and record["stable_up_to"] != record["collapses_at"]
    assert all(probe["steps"] <= 20 for probe in record["probes"])
    assert not (path.parent / "state").exists()

    lines = (path.parent / "probes.jsonl").read_text()
    path.unlink()
    assert json.loads(find_frontier(layout, config, "learning_rate").read_text())["probes"] == record["probes"]
    assert (path.parent / "probes.jsonl").read_text() == lines

    frame = frontier_frame([path.parent])
    [view] = frontier_views(frame)
    assert view.rows[0][0] == "ESTR" and view.rows[0][3] == "-"
    stability_frontier([path.parent], Path("figure"))
    assert Path("figure.png").stat().st_size > 5000
