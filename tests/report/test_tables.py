"""Every table of training runs through the registry: three formats, read back, run after run the same."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic import COMPONENT_RULES, MATCHED_LABELS, ResultsFolder, write_json

from estr.config import load_experiment
from estr.report.tables import TABLES, VIEWS, read_table, views_of
from estr.report.views import View, latex, markdown

RUNS = {
    "table1": ("dapo_math", ["sync", "async", "estr"]),
    "table3_settings": ("dapo_math", ["sync", "async", "estr"]),
    "table4_5_tau": ("dapo_math", ["estr", "estr__tau=0.7"]),
    "table6_batch_size": ("dapo_math", ["estr", "estr__prompts=8"]),
    "table7_matched_budget": ("gsm8k", ["sync", *MATCHED_LABELS, "estr"]),
    "v2_table2_components": ("browsecomp_plus", [*COMPONENT_RULES, "estr"]),
    "staleness_sweep": ("dapo_math", ["sync", "estr__inter=1__intra=1", "estr__inter=1__intra=9"]),
    "stability_edge": ("dapo_math", ["async", "estr"]),
}
"""Thin data: tasks and labels; two seeds of the last label, one of the others."""


def test_every_table_has_views() -> None:
    assert set(TABLES) == set(VIEWS) and set(RUNS) <= set(TABLES)


@pytest.mark.parametrize("name", RUNS)
def test_a_table_is_the_same_however_it_is_read(name: str, folder: ResultsFolder, tmp_path: Path) -> None:
    task, labels = RUNS[name]
    for label in labels:
        folder.write(label, 0, task=task)
    folder.write(labels[-1], 1, task=task)
    calibrations = [folder.write_calibration(task)] if name == "table7_matched_budget" else []
    other = tmp_path / "measurement"  # a folder of another kind, which the table leaves alone
    other.mkdir()
    write_json(other / "throughput.json", {})
    stem = tmp_path / "tables" / name
    TABLES[name]([*folder.run_dirs, other], calibrations, stem)
    first = {suffix: stem.with_suffix(suffix).read_bytes() for suffix in (".csv", ".md", ".tex")}
    TABLES[name](folder.run_dirs, calibrations, stem)
    assert first == {suffix: stem.with_suffix(suffix).read_bytes() for suffix in first}
    frame = read_table(stem.with_suffix(".csv"))
    assert frame["scale"].eq("laptop").all() if "scale" in frame else name == "stability_edge"
    text, tex = first[".md"].decode(), first[".tex"].decode()
    for view in views_of(name, frame):
        assert all(len(row) == len(view.headers) for row in view.rows) and view.rows
        assert not view.groups or sum(width for _, width in view.groups) == len(view.headers)
        assert markdown(view) in text and latex(view) in tex
        assert not {"nan", "None", "nan %", "<NA>"} & {cell for row in view.rows for cell in row}
        assert "nan" not in view.note and "None" not in view.note and "  " not in view.note


def test_a_table_that_is_not_known_is_shown_as_it_stands() -> None:
    assert views_of("scan", pd.DataFrame({"a": [1, 2], "b": [0.25, None]})) == [
        View("scan", "", ("a", "b"), (("1", "0.25"), ("2", "-")))
    ]


@pytest.mark.parametrize(
    "experiment",
    ["main_results", "matched_budget", "component_ablation", "tau_sensitivity", "batch_size", "staleness_sweep"],
)
def test_the_tables_of_the_experiments_exist(experiment: str) -> None:
    assert set(load_experiment(experiment).tables) <= set(TABLES)
