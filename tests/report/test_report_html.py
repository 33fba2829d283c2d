"""report.html: self-contained, complete, escaped."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from estr.errors import UserError
from estr.report.figures import FIGURES
from estr.report.html import write_report
from estr.report.paper import CONTRADICTIONS
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


@pytest.fixture(scope="module")
def report(study) -> Path:
    root = study.scale_dir
    write_table1(study.run_dirs, study.write_calibration(), root / "tables" / "table1")
    figures = [root / "figures" / name for name in ("fig03_version_switch", "fig07_reward")]
    for stem in figures:
        FIGURES[stem.name](study.run_dirs, stem)
    (root / "tables" / "scan.csv").write_text("a,b\n1,0.25\n")
    context = {
        "commands": {"table1": "snakemake results/laptop/tables/table1.csv"},
        "deviations": ["A tiny policy <trained> from scratch & more."],
    }
    tables = [root / "tables" / "table1.csv", root / "tables" / "scan.csv"]
    write_report(root, study.run_dirs, tables, [stem.with_suffix(".png") for stem in figures], root / "r.html", context)
    return root / "r.html"


def test_the_page_needs_nothing_from_outside(report: Path) -> None:
    page = Page(report.read_text())
    for tag, name, value in page.attributes:
        if name in ("src", "href"):
            assert not re.match(r"(https?:)?//", value), (tag, value)
        if tag == "img" and name == "src":
            assert value.startswith("data:image/png;base64,iVBOR")
    assert not {"script", "link", "iframe"} & {tag for tag, _, _ in page.attributes}
    assert "url(" not in report.read_text() and "@import" not in report.read_text()


def test_the_page_says_where_each_number_comes_from(report: Path, study) -> None:
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
    assert "17.04" in text and "v2 prose" in text and "(%, laptop scale)" in text
    assert re.search(r"Of \d+ claims of the paper on accuracy:", text)
    assert "Mean over the last quarter: GRPO (sync) 0." in text
    assert "0.25" in text


def test_text_is_escaped(report: Path) -> None:
    assert "&lt;trained&gt; from scratch &amp; more" in report.read_text()
    assert "<trained>" not in report.read_text()


def test_mistakes_are_named(study, tmp_path: Path) -> None:
    root, runs = study.scale_dir, study.run_dirs
    with pytest.raises(UserError, match=r"absent\.csv"):
        write_report(root, runs, [tmp_path / "absent.csv"], [], tmp_path / "r.html", {})
    with pytest.raises(UserError, match=r"absent\.png"):
        write_report(root, runs, [], [tmp_path / "absent.png"], tmp_path / "r.html", {})
    with pytest.raises(UserError, match="unknown key colour"):
        write_report(root, runs, [], [], tmp_path / "r.html", {"colour": "red"})
    with pytest.raises(UserError, match="does not lie in"):
        write_report(tmp_path, runs, [], [], tmp_path / "r.html", {})
