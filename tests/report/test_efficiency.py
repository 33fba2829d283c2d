"""Table 2 and the efficiency figures, from synthetic measurements; measured, modelled and paper kept apart."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib import image
from measurements import ENGINE, UPDATES, WARMUP, edit, simulated, write_measurement

from estr.cli import main
from estr.errors import UserError
from estr.report import efficiency_figures
from estr.report.captions import CAPTIONS
from estr.report.efficiency import COLUMNS, efficiency_frame, measurements, paper_times, speedup_over
from estr.report.figures import FIGURES
from estr.report.paper import PaperValues, load_paper_values
from estr.report.tables import TABLES, views_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Measurements of two tasks; do not change them."""
    root = tmp_path_factory.mktemp("measured")
    labels = {"dapo_math": ("sync", "async", "m2po", "estr"), "browsecomp_plus": ("sync", "estr")}
    return [write_measurement(root, label, task=task) for task, names in labels.items() for label in names]


@pytest.fixture(scope="module")
def frame(folders: list[Path]) -> pd.DataFrame:
    return efficiency_frame(measurements(folders), load_paper_values())


def row_of(frame: pd.DataFrame, task: str, label: str) -> pd.Series:
    return frame.set_index(["task", "label"]).loc[(task, label)]


def test_a_row_says_what_was_measured(frame: pd.DataFrame) -> None:
    """Step times 1 in ended differences; the two cores share the tokens."""
    assert list(frame.columns) == COLUMNS
    truth, row = simulated("estr"), row_of(frame, "dapo_math", "estr")
    assert row["step_seconds"] == pytest.approx(truth.step_seconds.mean())
    assert row["step_seconds_sd"] == pytest.approx(truth.step_seconds.std(ddof=1))
    assert row["step_seconds_low"] < row["step_seconds"] < row["step_seconds_high"]
    assert row["throughput"] == pytest.approx(truth.tokens_per_second_per_device)
    assert (row["updates"], row["warmup_updates"]) == (UPDATES, WARMUP)
    assert (row["asked_threshold"], row["asked_interval"]) == (2, 2)
    assert (row["staleness_inter_max"], row["staleness_intra_max"]) == (truth.inter.max(), truth.intra.max())
    assert row["objective_seconds"] / row["objective_seconds_keep_all"] == pytest.approx(1.1)


def test_the_speedup_is_the_ratio_of_mean_step_times_and_the_bound_that_of_its_own_stages(frame: pd.DataFrame) -> None:
    sync, row = (row_of(frame, "browsecomp_plus", label) for label in ("sync", "estr"))
    assert row["speedup"] == pytest.approx(sync["step_seconds"] / row["step_seconds"])
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    assert (sync["speedup"], sync["speedup_low"], sync["speedup_high"]) == (1, 1, 1)
    stages = row["generate_seconds"], row["train_seconds"]
    assert row["overlap_bound"] == pytest.approx(sum(stages) / max(stages) / 2)
    assert 0.5 < row["overlap_bound"] <= 1 and math.isnan(sync["overlap_bound"])
    # the model of each row from its own stage times, and their ratio
    assert row["modelled_step_seconds"] == pytest.approx(row["step_seconds"], rel=0.1)
    assert row["modelled_step_seconds"] != row["step_seconds"]
    assert row["modelled_speedup"] == pytest.approx(sync["modelled_step_seconds"] / row["modelled_step_seconds"])


def test_the_interval_of_a_speedup_covers_the_truth_as_often_as_it_says(tmp_path: Path) -> None:
    """Step times drawn from exponentials of mean 2 and 1: the ratio is 2."""
    pair = measurements([write_measurement(tmp_path, label) for label in ("sync", "estr")])
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        drawn = []
        for m, mean in zip(pair, (2.0, 1.0), strict=True):
            steps = m.steps.assign(step_seconds=rng.gamma(4, mean / 4, len(m.steps)), measured=True)
            drawn.append(replace(m, steps=steps))
        _, low, high = speedup_over(*drawn)
        covered += low <= 2 <= high
    assert 48 <= covered < 60


def test_the_papers_numbers_stand_on_its_task_alone(frame: pd.DataFrame) -> None:
    row = row_of(frame, "dapo_math", "estr")
    assert (row["paper_throughput"], row["paper_step_seconds"]) == (214.38, 514.84)
    assert row["paper_speedup"] == 2.6 and not row["paper_speedup_derived"]
    m2po = row_of(frame, "dapo_math", "m2po")
    assert (m2po["paper_step_seconds"], m2po["paper_basis"]) == (602.78, "v2 prose")
    assert m2po["paper_speedup"] == pytest.approx(2.25, abs=1e-2) and m2po["paper_speedup_derived"]
    assert math.isnan(m2po["paper_throughput"]) and math.isnan(
        row_of(frame, "dapo_math", "async")["paper_step_seconds"]
    )
    assert frame[frame["task"] == "browsecomp_plus"].filter(like="paper_").isna().all(axis=None)


def test_without_a_synchronous_measurement_there_is_no_speedup(tmp_path: Path) -> None:
    frame = efficiency_frame(measurements([write_measurement(tmp_path, "estr")]), load_paper_values())
    assert frame[["speedup", "speedup_low", "modelled_speedup"]].isna().all(axis=None)
    assert frame["step_seconds"].notna().all()


def test_the_papers_times_and_tokens() -> None:
    """82.56 * 1356.47 and 214.38 * 514.84 tokens per GPU; on 16 GPUs the mean of both is 1.779 million per update."""
    sync, estr, tokens = paper_times(load_paper_values())
    assert (sync, estr) == (1356.47, 514.84)
    assert tokens == pytest.approx(1.779e6, rel=1e-3)
    with pytest.raises(UserError, match="lacks step_time of sync"):
        paper_times(PaperValues([]))


def test_the_written_table_keeps_measured_modelled_and_paper_apart(folders: list[Path], tmp_path: Path) -> None:
    TABLES["table2_efficiency"](folders, [], tmp_path / "table2")
    text = (tmp_path / "table2.md").read_text()
    tables = text.split("### ")[1:]
    assert [table.splitlines()[0] for table in tables] == [
        "Table 2: efficiency on BrowseComp-Plus",
        "BrowseComp-Plus: overlap and staleness",
        "BrowseComp-Plus: histogram of staleness",
        "BrowseComp-Plus: model against measurement",
        "Table 2: efficiency on DAPO-Math (AIME)",
        "DAPO-Math (AIME): overlap and staleness",
        "DAPO-Math (AIME): histogram of staleness",
        "DAPO-Math (AIME): model against measurement",
    ]
    main_table = tables[4]
    for word in ("Measured", "Modelled", "Paper", "same 2 cores", "laptop scale", "1356.47", "2.25 ‡", "not reported"):
        assert word in main_table
    assert "Paper" not in tables[0] and "Ideal overlap / ideal sync" in tables[1]
    assert "| 2.6 |" in main_table and "2.63" not in main_table
    assert "| IcePop | - | - | - | not reported | not reported | not reported | - | - |" in main_table
    shares = [float(cell) for cell in tables[2].splitlines()[4].split("|")[3:-1] if cell.strip() != "-"]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "nan" not in text
    # the report reads the CSV back and shows the same
    again = views_of("table2_efficiency", pd.read_csv(tmp_path / "table2.csv"))
    assert [view.title for view in again] == [table.splitlines()[0] for table in tables]
    for view in again:
        for row in view.rows:
            assert "| " + " | ".join(row) + " |" in text


def test_a_table_of_nothing_says_how_to_measure(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`estr throughput dapo_math estr`"):
        TABLES["table2_efficiency"]([tmp_path], [], tmp_path / "table2")
    with pytest.raises(UserError, match="`estr throughput dapo_math estr`"):
        FIGURES["fig12f_step_time"]([tmp_path], tmp_path / "fig")


def check_image(path: Path) -> None:
    pixels = image.imread(path)[..., :3].mean(axis=-1)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.min() > 0.9 and (pixels < 0.9).mean() > 0.01


def test_step_times_are_drawn_as_measured(folders: list[Path], tmp_path: Path) -> None:
    FIGURES["fig12f_step_time"](folders, tmp_path / "fig12f")
    check_image(tmp_path / "fig12f.png")
    data = pd.read_csv(tmp_path / "fig12f.csv")
    assert set(data["label"]) == {"sync", "estr"}
    estr = data[(data["task"] == "dapo_math") & (data["label"] == "estr")]
    assert estr["step_seconds"].tolist() == pytest.approx(np.diff(simulated("estr").ended, prepend=0.0))
    assert estr["measured"].sum() == UPDATES
    said = CAPTIONS["fig12f_step_time"].measured(data)
    assert [text.split(":")[0] for text in said] == ["BrowseComp-Plus", "DAPO-Math (AIME)"]
    assert re.search(r"ESTR 0\.\d+ ± 0\.\d+ s over 12 updates", said[1]) and "Ratio of the means" in said[1]


@pytest.fixture
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and shorter simulations; what they say is tested with the model."""
    monkeypatch.setattr(efficiency_figures, "UPDATES", 2)
    monkeypatch.setattr(efficiency_figures, "SYNC_UPDATES", 2)
    monkeypatch.setattr(efficiency_figures, "MOST_WARMUP", 2)
    monkeypatch.setattr(efficiency_figures, "SKEWS", (0.0, 1.0))
    monkeypatch.setattr(efficiency_figures, "THRESHOLDS", (0.0, 20.0))
    monkeypatch.setattr(efficiency_figures, "splits", lambda devices, replica: [4, 8])


@pytest.mark.usefixtures("few_points")
def test_the_models_curves_and_our_points_are_told_apart(folders: list[Path], tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        FIGURES["pipeline_speedup"](folders, tmp_path / attempt)
    for suffix in ("csv", "png", "pdf"):
        assert (tmp_path / f"first.{suffix}").read_bytes() == (tmp_path / f"second.{suffix}").read_bytes()
    check_image(tmp_path / "first.png")
    data = pd.read_csv(tmp_path / "first.csv")
    lines = data[data["kind"] == "modelled"].groupby(["panel", "series"])
    assert lines.size().to_dict() == {key: 2 for key in lines.groups} and len(lines) == 6
    # at 8 of 16 devices and at threshold 20 both members meet the paper's point
    half = data[(data["kind"] == "modelled") & ((data["x"] == 0.5) | (data["x"] == 20))]
    assert half["speedup"].tolist() == pytest.approx([1356.47 / 514.84] * 4, rel=0.15)
    measured = data[data["kind"] == "measured"]
    assert len(measured) == 4 * 3 and (measured["low"] < measured["high"]).all()
    assert measured.groupby("panel")["x"].first().to_dict() == pytest.approx(
        {"skew": ENGINE.lengths.skew, "split": 0.5, "threshold": 2.0}, rel=0.2
    )
    own = data[data["kind"] == "modelled from its stage times"]
    assert len(own) == len(measured) and own["low"].isna().all()
    [said] = CAPTIONS["pipeline_speedup"].measured(data)
    assert said.startswith("Modelled") and "Measured, ESTR, DAPO-Math (AIME)" in said and "nan" not in said


@pytest.mark.usefixtures("few_points")
def test_the_model_is_drawn_without_a_measurement(tmp_path: Path) -> None:
    FIGURES["pipeline_speedup"]([], tmp_path / "alone")
    data = pd.read_csv(tmp_path / "alone.csv")
    assert set(data["kind"]) == {"modelled", "paper"}
    [said] = CAPTIONS["pipeline_speedup"].measured(data)
    assert "Measured" not in said


OWN = ("--gpus", "4", "--mean-length", "40", "--skew", "0.5", "--token-ms", "10", "--train-seconds", "0.2")
SMALL = ("--prompts", "4", "--group", "2", "--slots", "4", "--updates", "5")


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_from_ones_own_numbers() -> None:
    output = plan(*OWN, *SMALL)
    assert "modelled: 4 GPUs, replicas of 1 with 4 slots, 10 ms per token" in output
    rows = [line.split() for line in output.splitlines() if re.match(r"\s*(sync, all|\d+/\d+)\s", line)]
    assert [row[0] for row in rows] == ["sync,", "1/3", "2/2", "3/1"]
    assert sum("<" in row for row in rows) == 1
    assert "Recommended: " in output or "No split pays" in output


def test_plan_of_one_split_recommends_nothing() -> None:
    output = plan(*OWN, *SMALL, "--split", "2", "--slot-growth", "0.5", "--sync-seconds", "0.1", "--prefill-ms", "1")
    assert "2/2" in output and "1/3" not in output and "Recommended" not in output
    assert "15 ms per token" in output


def test_plan_says_that_no_split_pays_where_nothing_waits() -> None:
    """Equal lengths, a replica per GPU whose pace does not depend on its load: halves of the GPUs are only slower."""
    output = plan(*OWN, *SMALL, "--gpus", "2", "--skew", "0", "--slots", "1", "--train-seconds", "1")
    assert "No split pays" in output


def test_plan_from_a_measurement_shows_both_and_changes_one_thing(folders: list[Path]) -> None:
    estr = next(folder for folder in folders if folder.parts[-3:-1] == ("dapo_math", "estr"))
    output = plan("--measured", str(estr), "--updates", "5")
    assert re.search(r"modelled\s+measured", output) and "seconds per update" in output
    assert "2 GPUs" in output and "8 x 4 responses" in output and "threshold 2, interval 2" in output
    changed = plan("--measured", str(estr), "--updates", "5", "--threshold", "0", "--skew", "0.1")
    assert "skew 0.10" in changed and "threshold 0, interval 2" in changed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--paper", "--measured", "x"), "two starting points"),
        ((), "--gpus, --mean-length, --token-ms, --train-seconds are missing"),
        (("--measured", "nowhere"), "throughput.json is missing"),
        ((*OWN, "--split", "4"), "4 of 4 devices"),
        ((*OWN, "--gpus-per-replica", "4"), "4 of 4 devices"),
        (("--paper", "--gpus", "2"), "2 of 2 devices"),
        ((*OWN, "--limit", "30"), "limit of 30"),
        (("--paper", "--paper-skew", "0.3"), "cannot explain the paper's times"),
    ],
)
def test_plan_mistakes_are_one_line(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["plan", *arguments])
    assert result.exit_code == 2 and said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_plan_from_the_paper_says_what_it_assumes() -> None:
    output = plan("--paper", "--split", "8", "--threshold", "0", "--interval", "1", "--updates", "2")
    assert "assumed" in output and "--paper-skew" in output and "16 GPUs, replicas of 2 with 128 slots" in output
    assert "mean 1737 tokens, skew 1.00" in output and "8/8" in output


def test_plan_help_teaches() -> None:
    output = plan("--help")
    for word in ("estr plan --paper", "--measured", "staleness_threshold", "modelled", "inter"):
        assert word in output


def test_a_measurement_edited_to_nothing_is_named(tmp_path: Path) -> None:
    folder = write_measurement(tmp_path, "estr")
    edit(folder, settings={})
    with pytest.raises(UserError, match=r"settings\.warmup_steps"):
        TABLES["table2_efficiency"]([folder], [], tmp_path / "table2")
