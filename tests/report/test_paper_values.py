"""The paper's numbers: look-up, units, and complaints about bad rows."""

from pathlib import Path

import pytest

from estr.config import configs_folder
from estr.errors import UserError
from estr.report.paper import load_paper_values

HEADER = "source,artifact,task,setting,method,metric,value,unit,basis\n"
ROW = "v1,table1,aime_mean,,sync,avg@4,17.54,%,table\n"


def test_every_row_of_the_file_is_loaded() -> None:
    lines = (configs_folder() / "paper" / "reported.csv").read_text().strip().splitlines()
    assert len(load_paper_values()) == len(lines) - 1


def test_values_keep_the_unit_of_the_paper() -> None:
    paper = load_paper_values()
    sync = paper.get("table1", "aime_mean", "sync", "avg@4")
    assert sync is not None and (sync.value, sync.unit, sync.provenance) == (17.54, "%", "v1 table")
    m2po = paper.get("table1", "aime_mean", "m2po", "pass@4")
    assert m2po is not None and (m2po.value, m2po.provenance) == (26.6, "v2 prose")
    tau = paper.get("table5_tau", "aime24", "estr", "avg@4", setting="tau=0.7")
    assert tau is not None and tau.value == 19.67
    assert paper.get("table1", "aime_mean", "m2po", "avg@8") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HEADER + ROW + ROW.replace("17.54", "many"), "line 3: value 'many'"),
        (HEADER + ROW.replace("17.54", "nan"), "line 2: value 'nan'"),
        (HEADER + ROW.replace("%", "percent"), "line 2: unit 'percent'"),
        (HEADER + ROW.replace("table\n", "guess\n"), "line 2: basis 'guess'"),
        (HEADER + ROW.replace("sync", ""), "line 2: method is empty"),
        (HEADER + ROW.replace(",table\n", "\n"), "line 2: wrong number of fields"),
        (HEADER + ROW.replace(",table\n", ",table,x\n"), "line 2: wrong number of fields"),
        (HEADER + ROW + ROW, "line 3: table1 aime_mean sync avg@4 stands twice"),
        ("a,b\n", "the columns must be"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "reported.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_paper_values(path)
    assert complaint in str(error.value) and str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.csv"):
        load_paper_values(tmp_path / "absent.csv")
