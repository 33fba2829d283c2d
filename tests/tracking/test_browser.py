"""The lab book in a real browser, from MLflow's own server: what a reader clicks through shows what it should."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Response, expect, sync_playwright

from estr.tracking import VIEWS
from tests.servers import free_port, mlflow_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 90_000  # ms; one of two busy cores draws the page
NO_USERS = "/mlflow/users/current"  # the server has no log-in, and its page asks for one
ERRORS = re.compile(r"Page Not Found|Request error|Something went wrong|Internal Server Error|can't be loaded|Error:")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@dataclass
class Browser:
    """A page of the server; `problems` are failed requests, exceptions of scripts, and error pages."""

    page: Page
    address: str
    shots: Path
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("response", self._watch)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))

    def _watch(self, response: Response) -> None:
        if response.status >= 400 and NO_USERS not in response.url:
            self.problems.append(f"{response.status} {response.url}")

    def open(self, link: str) -> Page:
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/{link}")
        return self.page

    def check(self, name: str) -> None:
        """The page in its present state is no error page; a picture of it is kept."""
        self.page.screenshot(path=self.shots / f"{name}.png")
        found = ERRORS.search(self.page.inner_text("body"))
        assert not found and not self.problems, (name, found, self.problems)


@pytest.fixture(scope="module")
def places(reproduced: Path) -> dict[str, Any]:
    folder = reproduced / "results/smoke/mlflow"
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("study", "runs")}


@pytest.fixture(scope="module")
def address(reproduced: Path) -> Iterator[str]:
    with mlflow_server(reproduced, free_port()) as where:
        yield where


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page
        browser.close()


@pytest.fixture
def browser(page: Page, address: str, tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(page, address, tmp_path)
    yield opened
    page.remove_listener("response", opened._watch)


def parent_of(places: dict[str, Any], experiment: str) -> str:
    chapter = places["study"]["chapters"][experiment]
    return f"#/experiments/{chapter['experiment_id']}/runs/{chapter['parent_run_id']}"


def run_of(places: dict[str, Any], run_id: str) -> str:
    run = places["runs"]["runs"][run_id]
    return f"#/experiments/{run['experiment_id']}/runs/{run['run_id']}"


def test_every_experiment_is_listed(browser: Browser, places: dict[str, Any]) -> None:
    page = browser.open("#/experiments")
    for name in places["study"]["chapters"]:
        expect(page.get_by_text(f"estr-smoke/{name}", exact=True).first).to_be_visible()
    browser.check("experiments")


def test_an_experiment_shows_its_parent_and_the_runs_below(browser: Browser, places: dict[str, Any]) -> None:
    experiment = places["study"]["chapters"]["main_results"]["experiment_id"]
    page = browser.open(f"#/experiments/{experiment}/runs")
    parent = page.locator(".ag-row", has_text="Main results @")
    expect(parent).to_be_visible()
    expect(page.get_by_text("GSM8K, ESTR, seed 0", exact=True)).to_have_count(0)
    parent.locator("button").first.click()
    expect(page.get_by_text("GSM8K, ESTR, seed 0", exact=True)).to_be_visible()
    browser.check("parent-and-runs")


def test_a_run_has_its_description_parent_evaluation_and_policy(browser: Browser, places: dict[str, Any]) -> None:
    page = browser.open(run_of(places, "smoke/gsm8k/estr/seed0"))
    expect(page.get_by_role("heading", name="GSM8K, ESTR, seed 0")).to_be_visible()
    expect(page.get_by_role("link", name="evaluation of GSM8K, ESTR, seed 0")).to_be_visible()
    expect(page.get_by_role("link", name="estr-smoke-gsm8k-estr")).to_be_visible()
    expect(page.get_by_text("estr train gsm8k estr --seed 0 --scale smoke")).to_be_attached()
    expect(page.get_by_text("Claims of the paper")).to_be_attached()
    page.get_by_role("link", name=re.compile("^Main results @")).click()
    expect(page.get_by_role("heading", name=re.compile("^Main results @"))).to_be_visible()
    browser.check("run")


def test_a_run_has_charts(browser: Browser, places: dict[str, Any]) -> None:
    page = browser.open(f"{run_of(places, 'smoke/gsm8k/estr/seed0')}/model-metrics")
    page.get_by_placeholder("Search metric charts").fill("masked_fraction")
    expect(page.locator(".js-plotly-plot svg.main-svg").first).to_be_visible()
    browser.check("charts")
    page = browser.open(f"{run_of(places, 'smoke/gsm8k/estr/seed0')}/system-metrics")
    expect(page.get_by_text("process_memory_megabytes").first).to_be_visible()
    browser.check("system-metrics")


def test_tables_figures_and_the_report_have_a_preview(browser: Browser, places: dict[str, Any]) -> None:
    page = browser.open(f"{parent_of(places, 'main_results')}/artifacts/figures/fig06_07_reward.png")
    image = page.locator("img[src^='blob:'], img[src*='get-artifact']").first
    expect(image).to_be_visible()
    assert image.evaluate("image => image.naturalWidth") > 500
    browser.check("figure")
    page = browser.open(f"{parent_of(places, 'main_results')}/artifacts/tables/table1.csv")
    expect(page.get_by_text("avg_vs_async_verdict").first).to_be_attached()
    browser.check("table")
    page = browser.open(f"{parent_of(places, 'reproduction')}/artifacts/report.html")
    expect(page.frame_locator("iframe").get_by_text("smoke/gsm8k/estr/seed0").first).to_be_attached()
    browser.check("report")


def test_a_tables_row_leads_to_its_runs(browser: Browser, places: dict[str, Any]) -> None:
    page = browser.open(parent_of(places, "main_results"))
    row = page.get_by_role("link", name=re.compile(r"^GSM8K, ESTR: ")).first
    expect(row).to_be_attached()
    browser.check("rows")
    browser.open(str(row.get_attribute("href")).replace(browser.address, "").lstrip("/"))
    expect(page.get_by_text("GSM8K, ESTR, seed 0", exact=True)).to_be_visible()
    expect(page.locator("body")).to_contain_text(re.compile(r"\b1\s*matching run"))
    browser.check("runs-of-a-row")


@pytest.mark.parametrize("key", [view.key for view in VIEWS])
def test_a_saved_view_shows_runs(browser: Browser, places: dict[str, Any], key: str) -> None:
    [view] = [view for view in VIEWS if view.key == key]
    experiment = places["study"]["chapters"][view.experiment]["experiment_id"]
    page = browser.open(f"#/experiments/{experiment}/runs?viewStateShareKey={key}")
    expect(page.locator(".ag-row", has_text="seed 0").first).to_be_visible()
    expect(page.get_by_text(view.by, exact=True).first).to_be_visible()
    if key == "estr-icepop-gsm8k":
        expect(page.locator("body")).to_contain_text(re.compile(r"\b2\s*matching run"))
    browser.check(key)


def test_an_error_page_is_noticed(browser: Browser, places: dict[str, Any]) -> None:
    experiment = places["study"]["chapters"]["main_results"]["experiment_id"]
    page = browser.open(f"#/experiments/{experiment}/runs/{'0' * 32}")
    expect(page.get_by_text(re.compile("Not Found", re.IGNORECASE)).first).to_be_visible()
    with pytest.raises(AssertionError):
        browser.check("missing-run")
