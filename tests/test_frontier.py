"""The search for the stability frontier, alone and with real tiny runs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.config import load_scale, resolve
from estr.config.sections import FrontierSettings
from estr.frontier import Axis, _probe, find_frontier, search
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


@pytest.mark.parametrize(("axis", "value", "lag"), [("inter", 80, 88), ("inter", 10, 18), ("learning_rate", 1e-3, 18)])
def test_a_run_is_longer_by_what_its_rewards_lag_behind(axis: Axis, value: float, lag: int) -> None:
    """A reward is of weights at most `inter` + `intra` updates old: the last of 150 policies is seen as well."""
    config = resolve("laptop", "dapo_math", "estr", 0)
    assert (config.staleness.intra, config.staleness.inter) == (8, 10)
    assert _probe(config, axis, value, 0, 150).train.steps == 150 + lag


@pytest.mark.parametrize("values", [[1e-4, 1e-4], [2e-4, 1e-4], [0.0, 1e-4]])
def test_values_that_do_not_rise_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must rise|greater than 0"):
        FrontierSettings(steps=10, learning_rate=values, inter=[1, 2])


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
    lag = config.staleness.inter + config.staleness.intra
    assert all(probe["steps"] <= 20 + lag for probe in record["probes"])
    whole = [probe["steps"] for probe in record["probes"] if probe["collapse_step"] is None]
    assert all(steps == 20 + lag for steps in whole)
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
