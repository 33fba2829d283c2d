"""Table 3 (v2: Table 5): the paper's settings in its order, ours read from the runs."""

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic import RULES, ResultsFolder

from estr.config import resolve_any
from estr.errors import UserError
from estr.report.runs import load_runs
from estr.report.settings_table import OURS, load_paper_settings, settings_frame, settings_views

HEADER = "setting,browsecomp_plus,dapo_math,gsm8k,search_r1,source\n"
EPOCHS = "Epochs,5,12,12,not reported,v1 Table 3\n"


def build(run_dirs: list[Path]) -> pd.DataFrame:
    return settings_frame(load_runs(run_dirs), load_paper_settings()).set_index("setting", drop=False)


def test_the_papers_rows_come_first_and_in_its_order() -> None:
    rows = load_paper_settings()
    assert [row["setting"] for row in rows][:4] == ["Policy model", "Train backend", "Rollout engine", "Task type"]
    assert [row["setting"] for row in rows][24] == "Epochs"
    assert {row["source"] for row in rows[1:25]} == {"v1 Table 3"}
    assert {row["setting"] for row in rows} == set(OURS)
    by_name = {row["setting"]: row for row in rows}
    assert by_name["Global batch (prompts)"]["gsm8k"] == "256"
    assert by_name["Staleness (intra, inter)"]["search_r1"] == "2, 9"
    assert by_name["Max turns"]["search_r1"] == "not reported"


def test_ours_are_read_from_the_runs(folder: ResultsFolder) -> None:
    for label in RULES:
        folder.write(label, 0)
    folder.write("estr", 1)
    folder.write("estr", 0, task="browsecomp_plus")
    ours = build(folder.run_dirs)["ours_dapo_math"]
    assert ours["Policy model"] == "Qwen2 decoder, 2 layers of width 64"
    assert (ours["Global batch (prompts)"], ours["Rollout samples n"], ours["Max turns"]) == ("32", "8", "1")
    assert (ours["ESTR tau (default)"], ours["Entropy floor epsilon"]) == ("1.6", "0.01")
    assert ours["Epochs"] == "0.23"  # 60 updates of 32 of 8192 problems
    assert (ours["Learning rate"], ours["Updates"], ours["Seeds"]) == ("0.0001", "60", "0, 1")
    assert ours["Warm start"] == "1600 updates of 128, rate 0.003"
    assert (ours["Staleness (intra, inter)"], ours["Clip range (low, high)"]) == ("8, 10", "0.20, 0.28")
    assert (ours["Task type"], ours["Reward"]) == ("single-turn", "rule dapo_math v1")
    table = build(folder.run_dirs)
    assert table.loc["Max turns", "ours_browsecomp_plus"] == "6"
    assert "exact match, no judge model" in table.loc["Reward", "ours_browsecomp_plus"]
    assert set(table["ours_gsm8k"]) == {""}


def test_synchronous_runs_have_no_staleness_and_differing_runs_show_both(folder: ResultsFolder) -> None:
    path = folder.write("sync", 0) / "run.json"
    record = json.loads(path.read_text())
    record["config"]["staleness"] = {"intra": 0, "inter": 0}
    path.write_text(json.dumps(record))
    folder.write("async", 0)
    folder.write("estr__prompts=8", 0)
    ours = build(folder.run_dirs)["ours_dapo_math"]
    assert ours["Staleness (intra, inter)"] == "8, 10" and ours["Global batch (prompts)"] == "32, 8"


def test_the_view_has_paper_and_ours_per_task(folder: ResultsFolder) -> None:
    folder.write("estr", 0)
    [view] = settings_views(build(folder.run_dirs))
    assert view.groups == (
        ("", 1),
        ("BrowseComp-Plus", 1),
        ("DAPO-Math (AIME)", 2),
        ("GSM8K", 1),
        ("Search-R1", 1),
        ("", 1),
    )
    assert view.headers == ("Setting", "Paper", "Paper", "Ours", "Paper", "Paper", "Source")
    cells = {row[0]: row[1:] for row in view.rows}
    assert cells["Global batch (prompts)"] == ("16", "128", "32", "256", "not reported", "v1 Table 3")
    assert cells["Updates"] == ("not reported", "not reported", "60", "not reported", "not reported", "-")
    assert "(1 of DAPO-Math (AIME))" in view.note


def test_a_run_without_a_setting_is_named(folder: ResultsFolder) -> None:
    path = folder.write("estr", 0) / "run.json"
    record = json.loads(path.read_text())
    del record["config"]["train"]["group"]
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"run\.json: field 'config\.train\.group' is missing"):
        build(folder.run_dirs)


def test_a_run_in_verl_shows_the_papers_own_values(folder: ResultsFolder) -> None:
    path = folder.write("estr", 0) / "run.json"
    record = json.loads(path.read_text())
    record["config"] = resolve_any("paper", "dapo_math", "estr", 0).model_dump()
    path.write_text(json.dumps(record))
    table = build(folder.run_dirs)
    ours, paper = table["ours_dapo_math"], table["paper_dapo_math"]
    settings = load_paper_settings()
    same = [row["setting"] for row in settings if row["source"] == "v1 Table 3" and row["setting"] != "Reward"]
    numbers = {"Rollout mem. util.": "0.70", "ESTR tau (default)": "1.6"}
    for setting in same:
        assert numbers.get(setting, ours[setting]).lower().startswith(paper[setting].lower()), setting
    assert ours["Updates"] == "60" and ours["Warm start"] == "none"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n", "the columns must be"),
        (HEADER + EPOCHS + EPOCHS, "line 3: 'Epochs' stands twice"),
        (HEADER + EPOCHS.replace("Epochs", "Mood"), "line 2: 'Mood' is not among those"),
        (HEADER + "Epochs,5\n", "line 2: wrong number of fields"),
        (HEADER + EPOCHS.strip() + ",more\n", "line 2: wrong number of fields"),
    ],
)
def test_a_bad_row_of_the_paper_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "settings.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        load_paper_settings(path)
    with pytest.raises(UserError, match=r"absent\.csv: the paper's settings cannot be read"):
        load_paper_settings(tmp_path / "absent.csv")
