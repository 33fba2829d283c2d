"""The scoreboard as a table: all claims, counted, from thin data and from none."""

from pathlib import Path

import pytest
from samples_folder import write_sample
from synthetic import MATCHED_LABELS, RULES, ResultsFolder

from estr.report.claims.outcome import NO_DATA, VERDICTS, NoData, NotComputable, Outcome, everywhere, judged
from estr.report.claims.scoreboard import COLUMNS, summary_line
from estr.report.tables import TABLES, read_table, views_of
from estr.report.views import markdown


def test_scoreboard_of_thin_data(folder: ResultsFolder, tmp_path: Path) -> None:
    for label in [*RULES, *MATCHED_LABELS]:
        folder.write(label, 0, task="gsm8k")
    sample = write_sample(tmp_path / "smollm2")
    calibrations = [folder.write_calibration("gsm8k")]
    stem = tmp_path / "tables" / "claims"
    TABLES["claims"]([*folder.run_dirs, sample], calibrations, stem)
    first = stem.with_suffix(".csv").read_bytes()
    frame = read_table(stem.with_suffix(".csv"))
    assert list(frame.columns) == COLUMNS and len(frame) == 47
    assert frame["id"].is_monotonic_increasing and frame["verdict"].isin(VERDICTS).all()
    assert frame["statistic"].notna().all()
    by_id = frame.set_index("id")
    assert by_id.loc["C04", "verdict"] == "held" and by_id.loc["C41", "verdict"] == "no data"
    assert "calibration/gsm8k.json" in by_id.loc["C31", "runs"]
    views = views_of("claims", frame)
    shown = [row for view in views[1:] for row in view.rows]
    assert sorted(row[0] for row in shown) == list(frame["id"])
    assert summary_line(frame) in views[0].note and "fixed before the reference run" in views[0].note
    assert views[0].rows[-1][1:-1] == tuple(str(int((frame["verdict"] == verdict).sum())) for verdict in VERDICTS)
    text = stem.with_suffix(".md").read_text()
    assert all(markdown(view) in text for view in views) and " nan" not in text
    TABLES["claims"]([*folder.run_dirs, sample], calibrations, stem)
    assert stem.with_suffix(".csv").read_bytes() == first


def test_scoreboard_of_nothing(tmp_path: Path) -> None:
    stem = tmp_path / "claims"
    TABLES["claims"]([], [], stem)
    frame = read_table(stem.with_suffix(".csv"))
    theory = frame["section"].str.startswith("Theory")
    assert (frame.loc[theory, "verdict"] == "held").all()
    assert (frame.loc[~theory, "verdict"] == NO_DATA).all()


def lacking() -> Outcome:
    raise NoData("nothing there")


def undefined() -> Outcome:
    raise NotComputable("nothing to divide by")


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([True, True], "held"),
        ([True, False], "not held"),
        ([True, None], "no data"),
        ([False, None], "not held"),
        ([True, "undefined"], "not computable"),
        ([None, "undefined", False], "not held"),
    ],
)
def test_a_claim_about_several_parts(parts: list, verdict: str) -> None:
    def check(part: bool | str | None) -> Outcome:
        return lacking() if part is None else undefined() if part == "undefined" else judged(bool(part), "1 point")

    found = everywhere({f"part {i}": part for i, part in enumerate(parts)}, check)
    assert found.verdict == verdict
    assert all(f"part {i}: " in found.statistic for i in range(len(parts)))
