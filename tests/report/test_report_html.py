"""report.html: self-contained, complete, escaped, for one task and for three; the committed copy of a reference run."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.report.figures import FIGURES
from estr.report.html import write_report
from estr.report.paper import CONTRADICTIONS
from estr.report.reference import export_reference
from estr.report.runs import load_runs
from estr.report.tables import write_table1


class Page(HTMLParser):
    """Collects attributes and text, and checks that tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.text, self.open = "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def write_page(results: ResultsFolder) -> Path:
    root = results.scale_dir
    calibrations = sorted((root / "calibration").glob("*.json"))
    write_table1(results.run_dirs, calibrations, root / "tables" / "table1")
    figures = [root / "figures" / name for name in ("fig03_version_switch", "fig06_07_reward")]
    for stem in figures:
        FIGURES[stem.name](results.run_dirs, stem)
    (root / "tables" / "scan.csv").write_text("a,b\n1,0.25\n")
    context = {
        "commands": {"table1": "snakemake results/laptop/tables/table1.csv"},
        "deviations": ["A tiny policy <trained> from scratch & more."],
    }
    tables = [root / "tables" / "table1.csv", root / "tables" / "scan.csv"]
    images = [stem.with_suffix(".png") for stem in figures]
    write_report(root, results.run_dirs, tables, images, root / "r.html", context)
    return root / "r.html"


@pytest.fixture(scope="module")
def report(study: ResultsFolder) -> Path:
    return write_page(study)


@pytest.fixture(scope="module")
def report_of_three(three_tasks: ResultsFolder) -> Path:
    return write_page(three_tasks)


def test_the_page_needs_nothing_from_outside(report: Path) -> None:
    page = Page(report.read_text())
    for tag, name, value in page.attributes:
        if name in ("src", "href"):
            assert not re.match(r"(https?:)?//", value), (tag, value)  # links to MLflow aside: none here
        if tag == "img" and name == "src":
            assert value.startswith("data:image/png;base64,iVBOR")
    assert not {"script", "link", "iframe"} & {tag for tag, _, _ in page.attributes}
    assert "url(" not in report.read_text() and "@import" not in report.read_text()


def test_the_page_says_where_each_number_comes_from(report: Path, study: ResultsFolder) -> None:
    page = Page(report.read_text())
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    for run in load_runs(study.run_dirs):
        for fact in (run.run_id, run.config_hash, run.commit, run.mlflow_run_id):
            assert fact in page.text
    assert len([link for link in links if (report.parent / link.replace("%3D", "=")).is_file()]) == len(study.run_dirs)
    for text in (*CONTRADICTIONS, "A tiny policy <trained> from scratch & more.", "test cpu", "torch 2.13.0"):
        assert text in page.text
    assert "snakemake results/laptop/tables/table1.csv" in page.text


def test_the_page_shows_paper_and_ours(report: Path) -> None:
    text = Page(report.read_text()).text
    assert "17.04" in text and "v2 prose" in text and "at laptop scale" in text
    assert re.search(r"DAPO-Math \(AIME\): Mean over the last quarter[^:]*: GRPO \(sync\) 0\.", text)
    assert "0.25" in text


def test_the_page_of_three_tasks_names_them_everywhere(report_of_three: Path, three_tasks: ResultsFolder) -> None:
    page = Page(report_of_three.read_text())
    assert "BrowseComp-Plus, GSM8K and DAPO-Math (AIME) at laptop scale" in page.text
    for task in ("BrowseComp-Plus", "GSM8K", "DAPO-Math (AIME)"):
        assert f"Laptop counterpart of {task}" in page.text
        assert f"{task}: H at the switch is" in page.text
    assert "scored by exact match, no judge model, rule browsecomp_plus_exact v1" in page.text
    assert "BrowseComp-Plus (exact match, no judge model): Mean over the last quarter" in page.text
    listed = [value for tag, name, value in page.attributes if name == "id" and value.startswith("laptop/")]
    assert listed == [run.run_id for run in load_runs(three_tasks.run_dirs)]
    assert "6 runs, seeds 0, embedded engine" in page.text and "18 runs, seeds 0, 1, embedded engine" in page.text


def test_anchors_are_unique_and_links_inside_the_page_lead_somewhere(report_of_three: Path) -> None:
    page = Page(report_of_three.read_text())
    anchors = [value for _, name, value in page.attributes if name == "id"]
    assert len(anchors) == len(set(anchors))
    links = {value[1:] for tag, name, value in page.attributes if name == "href" and value.startswith("#")}
    assert links <= set(anchors)
    assert {"table1-gsm8k-accuracy", "table1-dapo-math-aime-accuracy", "table1-runs-of-table-1"} <= links


def test_every_table_scrolls_in_its_own_box(report_of_three: Path) -> None:
    text = report_of_three.read_text()
    assert text.count("<table") == len(re.findall(r'<div class="scroll"[^>]*><table', text)) > 15


def test_the_scoreboard_opens_the_page_and_runs_link_to_mlflow(folder: ResultsFolder, tmp_path: Path) -> None:
    folder.write("sync", 0)
    row = {"source": "v1", "where": "Table 1", "claim": "a < b", "predicate": "b - a > 0", "runs": "all"}
    row["section"] = "One"
    rows = [
        row | {"id": "C1", "verdict": "held", "statistic": "b - a = 1; n = 3"},
        row | {"id": "C2", "verdict": "not held", "statistic": "0", "section": "Two"},
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "claims.csv", index=False)
    write_table1(folder.run_dirs, [], tmp_path / "table1")
    [run] = load_runs(folder.run_dirs)
    tracked = {run.run_id: {"experiment_id": "7", "run_id": "abcdef0123"}}
    places = {"tracking_uri": "sqlite:///x.db", "runs": tracked}
    tables = [tmp_path / "table1.csv", tmp_path / "claims.csv"]
    write_report(folder.scale_dir, folder.run_dirs, tables, [], tmp_path / "r.html", {"mlflow": places})
    page = Page((tmp_path / "r.html").read_text())
    text = " ".join(page.text.split())
    assert "1 held 1 not held" in text and "a < b" in text and "fixed before the reference run" in text
    assert text.index("b - a = 1") < text.index("Tables", text.index("1 held"))
    assert text.index("One") < text.index("C1") < text.index("Two") < text.index("C2")
    assert ("a", "href", "http://127.0.0.1:5000/#/experiments/7/runs/abcdef0123") in page.attributes


def test_the_committed_copy_holds_tables_pictures_and_every_run(
    three_tasks: ResultsFolder, report_of_three: Path, tmp_path: Path
) -> None:
    root, page = three_tasks.scale_dir, tmp_path / "README.md"
    export_reference(
        three_tasks.run_dirs, [root / "tables" / "table1.csv"], [root / "figures" / "fig06_07_reward.png"], page
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md",
        "table1.csv",
        "table1.md",
        "fig06_07_reward.png",
    }
    text = page.read_text()
    assert "Laptop counterparts of BrowseComp-Plus, GSM8K and DAPO-Math (AIME). 33 runs, 0.82 hours" in text
    assert "![Figures 6 and 7: training reward](fig06_07_reward.png)" in text
    assert "BrowseComp-Plus (exact match, no judge model): Mean over the last quarter" in text
    # of 33 runs of 90 s: 18 for Table 1, and three at the matched budget for each of three rules
    assert "| Main results | `snakemake main_results` | 24 | 24 | 36.0 | 36.0 |" in text
    ids = re.findall(r"^\| (laptop/\S+) \|", text, flags=re.MULTILINE)
    assert ids == [run.run_id for run in load_runs(three_tasks.run_dirs)]
    assert text.index("| GSM8K | Config hash") < text.index("| laptop/gsm8k/sync/seed0 |")


def test_text_is_escaped(report: Path) -> None:
    assert "&lt;trained&gt; from scratch &amp; more" in report.read_text()
    assert "<trained>" not in report.read_text()


def test_mistakes_are_named(study: ResultsFolder, tmp_path: Path) -> None:
    root, runs = study.scale_dir, study.run_dirs
    with pytest.raises(UserError, match=r"absent\.csv"):
        write_report(root, runs, [tmp_path / "absent.csv"], [], tmp_path / "r.html", {})
    with pytest.raises(UserError, match=r"absent\.png"):
        write_report(root, runs, [], [tmp_path / "absent.png"], tmp_path / "r.html", {})
    with pytest.raises(UserError, match="unknown key colour"):
        write_report(root, runs, [], [], tmp_path / "r.html", {"colour": "red"})
    with pytest.raises(UserError, match="does not lie in"):
        write_report(tmp_path, runs, [], [], tmp_path / "r.html", {})
