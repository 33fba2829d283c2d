"""Table 1 as it is read: the overview, the views of each task, and that CSV, Markdown and LaTeX say the same."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.config import configs_folder
from estr.report.paper import load_paper_values
from estr.report.run_views import compact_run_ids
from estr.report.runs import load_runs
from estr.report.table1 import COLUMNS, table1_frame
from estr.report.table1_views import table1_views
from estr.report.tables import read_table, write_table1
from estr.report.views import EMPTY, View, latex, latex_escape, markdown, without_empty_columns


def calibrations(results: ResultsFolder) -> list[Path]:
    return sorted((results.scale_dir / "calibration").glob("*.json"))


def views_of_runs(run_dirs: list[Path], *files: Path) -> dict[str, View]:
    frame = table1_frame(load_runs(run_dirs), files, load_paper_values(), bootstrap_seed=0)
    return {view.title: view for view in table1_views(frame)}


def cell(view: View, row: str, column: str, group: str = "") -> str:
    """The cell of a row and a column; `group` where several columns have one name."""
    names = [name for name, width in view.groups for _ in range(width)] or [""] * len(view.headers)
    [index] = [i for i, name in enumerate(view.headers) if name == column and (not group or names[i] == group)]
    [cells] = [cells for cells in view.rows if cells[0] == row]
    return cells[index]


@pytest.fixture(scope="module", params=["study", "three_tasks"])
def results(request: pytest.FixtureRequest) -> ResultsFolder:
    return request.getfixturevalue(request.param)


def test_three_formats_say_the_same(results: ResultsFolder, tmp_path: Path) -> None:
    stem = tmp_path / "tables" / "table1"
    write_table1(results.run_dirs, calibrations(results), stem)
    frame = read_table(stem.with_suffix(".csv"))
    assert list(frame.columns) == COLUMNS
    built = table1_frame(load_runs(results.run_dirs), calibrations(results), load_paper_values(), bootstrap_seed=0)
    numbers = built.select_dtypes("number").columns
    pd.testing.assert_frame_equal(frame[numbers], built[numbers], check_dtype=False, check_exact=True)
    views = table1_views(frame)
    assert views == table1_views(built)
    text, tex = stem.with_suffix(".md").read_text(), stem.with_suffix(".tex").read_text()
    for view in views:
        assert all(len(row) == len(view.headers) for row in view.rows)
        assert not view.groups or sum(width for _, width in view.groups) == len(view.headers)
        assert markdown(view) in text and latex(view) in tex
        assert "nan" not in markdown(view) and "None" not in markdown(view)
    assert "icepop__thresholds=matched/seed{0,1}" in text
    assert r"icepop\_\_thresholds=matched/seed\{0,1\}" in tex
    assert tex.count(r"\toprule") == tex.count(r"\end{table*}") == len(views)
    first = {suffix: stem.with_suffix(suffix).read_bytes() for suffix in (".csv", ".md", ".tex")}
    write_table1(results.run_dirs, calibrations(results), stem)
    assert first == {suffix: stem.with_suffix(suffix).read_bytes() for suffix in first}


def test_every_task_has_its_views(three_tasks: ResultsFolder) -> None:
    titles = list(views_of_runs(three_tasks.run_dirs, *calibrations(three_tasks)))
    search, exact = "BrowseComp-Plus", "BrowseComp-Plus (exact match, no judge model)"
    parts = ("accuracy", "paired differences in avg@{}", "paired differences in pass@{}", "what the rules mask")
    assert titles == [
        "Table 1: main results",
        *(f"{exact}: {part.format(2)}" for part in (*parts, "agentic behaviour")),
        *(f"GSM8K: {part.format(4)}" for part in (*parts, "agentic behaviour")),
        *(f"DAPO-Math (AIME): {part.format(4)}" for part in parts),
        "The paper's Table 1 as printed",
        "Runs of Table 1",
    ]
    assert all(exact in title for title in titles if search in title)


def test_the_papers_table_has_every_number_of_it(three_tasks: ResultsFolder) -> None:
    view = views_of_runs(three_tasks.run_dirs, *calibrations(three_tasks))["The paper's Table 1 as printed"]
    shown = [cell.split()[0] for row in view.rows for cell in row[1:] if cell != "not reported"]
    with (configs_folder() / "paper" / "reported.csv").open() as file:
        reported = [f"{float(row['value']):.2f}" for row in csv.DictReader(file) if row["artifact"] == "table1"]
    assert sorted(shown) == sorted(reported) and len(reported) == 60
    assert {len(row) for row in view.rows} == {len(view.headers)} == {20}


def test_the_overview_has_the_papers_layout(folder: ResultsFolder) -> None:
    folder.write("estr", 0, task="browsecomp_plus", correct=[2, 1, 0, 1])
    folder.write("estr", 0, task="gsm8k", correct=[4, 4, 2, 0])
    folder.write("estr", 1, task="gsm8k", correct=[4, 4, 4, 2])
    view = next(iter(views_of_runs(folder.run_dirs).values()))
    search = "BrowseComp-Plus (exact match, no judge model)"
    assert view.groups == (("", 1), (search, 3), ("GSM8K", 5))
    assert view.headers[:4] == ("Method", "Paper avg@1", "Ours avg@2", "Verdict")
    assert view.headers[4:] == ("Paper avg@4", "Ours avg@4", "Paper pass@4", "Ours pass@4", "Verdict")
    assert view.starts == (1, 4)
    methods = ["Warm start", "GRPO (sync)", "GRPO (async)", "IcePop", "KPop", "M2PO", "ESTR"]
    assert [row[0] for row in view.rows] == methods
    assert cell(view, "ESTR", "Paper avg@1") == "37.34" and cell(view, "ESTR", "Ours avg@2") == "50.0"
    assert cell(view, "ESTR", "Ours avg@4") == "75.0 ± 17.7"  # 62.5 and 87.5 %
    assert cell(view, "ESTR", "Ours pass@4") == "87.5 ± 17.7"  # 75 and 100 %
    assert cell(view, "ESTR", "Paper pass@4") == "98.87 †" and cell(view, "M2PO", "Paper pass@4") == EMPTY
    assert cell(view, "M2PO", "Paper avg@1") == "33.72 †"
    assert cell(view, "ESTR", "Verdict", search) == "> async: not tested; ≈ sync: not tested"
    assert "On BrowseComp-Plus our avg@2 is the counterpart of the paper's avg@1" in view.note
    assert "On GSM8K" not in view.note and "multiples of 1/83" in view.note
    assert "laptop counterparts of BrowseComp-Plus and GSM8K at laptop scale" in view.note


def test_a_missing_task_and_a_method_of_one_task_only(folder: ResultsFolder) -> None:
    folder.write("kpop", 0, task="gsm8k")
    folder.write("kpop__thresholds=matched", 0)
    views = views_of_runs(folder.run_dirs, folder.write_calibration())
    overview = views["Table 1: main results"]
    assert [name for name, _ in overview.groups] == ["", "GSM8K", "DAPO-Math (AIME)"]
    assert cell(overview, "KPop (matched)", "Ours avg@4", "GSM8K") == EMPTY
    assert cell(overview, "KPop (matched)", "Ours avg@4", "DAPO-Math (AIME)") != EMPTY
    assert "BrowseComp-Plus" not in overview.note and "avg@1" not in overview.note
    [run_row, other] = views["Runs of Table 1"].rows
    assert (run_row[0], other[0]) == ("GSM8K", "DAPO-Math (AIME)")


def test_the_details_of_a_task(three_tasks: ResultsFolder) -> None:
    views = views_of_runs(three_tasks.run_dirs, *calibrations(three_tasks))
    accuracy = views["GSM8K: accuracy"]
    assert cell(accuracy, "ESTR", "Basis") == "v1 table; v2 prose"
    assert {"Ours pass@4 (%)", "Ours best@4 (%)", "Missing answers"} < set(accuracy.headers)
    assert "scored by rule gsm8k_flexible v1" in accuracy.note and "embedded engine" in accuracy.note
    search = views["BrowseComp-Plus (exact match, no judge model): accuracy"]
    assert "exact match, no judge model, rule browsecomp_plus_exact v1" in search.note
    assert "Paper pass@2 (%)" not in search.headers and "Paper avg@1 (%)" in search.headers
    masking = views["GSM8K: what the rules mask"]
    assert cell(masking, "IcePop (matched)", "Paper: masked, training (%)") == "19.16"
    assert cell(masking, "ESTR", "Paper: entropy of masked (nats)") == "0.11"
    for title in ("DAPO-Math (AIME)", "BrowseComp-Plus (exact match, no judge model)"):
        assert not any("Paper" in header for header in views[f"{title}: what the rules mask"].headers)
    behaviour = views["GSM8K: agentic behaviour"]
    assert cell(behaviour, "ESTR", "Tokens") == "31.5 ± 0.7" and cell(behaviour, "Warm start", "Tokens") == "30.0"
    assert "Recall of evidence (%)" not in behaviour.headers
    recall = views["BrowseComp-Plus (exact match, no judge model): agentic behaviour"]
    assert cell(recall, "KPop", "Recall of evidence (%)") == "60.0"


def test_matched_rows_are_explained_where_there_are_some(folder: ResultsFolder) -> None:
    folder.write("estr", 0)
    folder.write("async", 0)
    views = views_of_runs(folder.run_dirs)
    assert not any("matched" in view.note for view in views.values())
    assert "Masked at calibration (%)" not in views["DAPO-Math (AIME): what the rules mask"].headers


def test_columns_without_content_are_left_out() -> None:
    headers, rows = without_empty_columns(("a", "b", "c"), [("-", "-", "1"), ("-", "-", "-")])
    assert (headers, rows) == (("a", "c"), (("-", "1"), ("-", "-")))


def test_run_ids_are_shortened() -> None:
    assert compact_run_ids("x/a/seed0 x/a/seed2 x/b/seed1") == "x/a/seed{0,2} x/b/seed1"
    assert compact_run_ids(float("nan")) == EMPTY


def test_special_characters_are_escaped() -> None:
    assert latex_escape(r"50 % & $x_1 {a} #2 ~ ^ \ < ± ≈ †") == (
        r"50 \% \& \$x\_1 \{a\} \#2 \textasciitilde{} \textasciicircum{} \textbackslash{} $<$ $\pm$ $\approx$ $\dagger$"
    )
    view = View("A", "", ("x|y",), (("1|2",),))
    assert r"| x\|y |" in markdown(view) and r"| 1\|2 |" in markdown(view)


def test_groups_stand_over_their_columns() -> None:
    view = View("A", "", ("m", "x", "y", "z"), (("1", "2", "3", "4"),), groups=(("", 1), ("P", 2), ("Q", 1)))
    assert markdown(view).splitlines()[2:] == [
        "|  | P |  | Q |",
        "| --- | --- | --- | --- |",
        "| **m** | **x** | **y** | **z** |",
        "| 1 | 2 | 3 | 4 |",
    ]
    assert r"\multicolumn{1}{l}{} & \multicolumn{2}{l}{P} & \multicolumn{1}{l}{Q} \\" in latex(view)
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-4}" in latex(view)
