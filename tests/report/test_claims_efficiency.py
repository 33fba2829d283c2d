"""The claims about time per update, on made-up measurements of the concurrent engine."""

from pathlib import Path

import pandas as pd
import pytest
from claims_data import judge
from measurements import UPDATES, edit, write_measurement

from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import Outcome

AS_CLAIMED = {"sync": 10.0, "async": 3.4, "m2po": 4.0, "estr": 3.5}
STAGES = {"generate_seconds": 3.0, "train_seconds": 2.0, "sync_seconds": 0.1}


def measurement(root: Path, label: str, seconds: float) -> Path:
    """Every update takes `seconds`, give or take a tenth."""
    folder = write_measurement(root, label)
    path = folder / "steps.parquet"
    steps = pd.read_parquet(path)
    steps["step_seconds"] = [seconds * (0.9 if step % 2 else 1.1) for step in steps["step"]]
    steps.to_parquet(path)
    edit(folder, stages=STAGES)
    return folder


def outcome(root: Path, name: str, seconds: dict[str, float], **estr: object) -> Outcome:
    """estr: fields of ESTR's throughput.json."""
    folders = {label: measurement(root, label, value) for label, value in seconds.items()}
    if estr:
        edit(folders["estr"], **estr)
    return judge(name, Evidence(list(folders.values()), []))


FREE = {"seconds_rule": 2.02e-4, "seconds_keep_all": 2e-4, "share_of_step": 6e-5}


@pytest.mark.parametrize("name", ["C41", "C42", "C43", "C44"])
def test_as_claimed(name: str, tmp_path: Path) -> None:
    found = outcome(tmp_path, name, AS_CLAIMED, objective=FREE)
    assert found.verdict == "held", found.statistic


@pytest.mark.parametrize(("name", "changed"), [("C42", {"estr": 3.6}), ("C43", {"m2po": 3.5})])
def test_otherwise(name: str, changed: dict[str, float], tmp_path: Path) -> None:
    assert outcome(tmp_path, name, AS_CLAIMED | changed).verdict == "not held"


def test_an_interval_that_includes_the_border_is_named_beside_the_verdict(tmp_path: Path) -> None:
    """3.5 / 3.4 = 1.03 is within 1.05 of C42, its interval is not; 3.5 / 4 = 0.875 of C43 is clear of 1."""
    near, clear = (outcome(tmp_path / name, name, AS_CLAIMED) for name in ("C42", "C43"))
    assert (near.verdict, clear.verdict) == ("held", "held")
    assert "] (the interval includes the border), one measurement" in near.statistic
    assert "includes the border" not in clear.statistic


def test_a_costly_rule(tmp_path: Path) -> None:
    objective = {"seconds_rule": 0.0024, "seconds_keep_all": 0.002, "share_of_step": 7e-4}
    found = outcome(tmp_path, "C44", AS_CLAIMED, objective=objective)
    assert found.verdict == "not held" and "2.4 / 2 ms = 1.200" in found.statistic
    assert "+0.0114 % of a step" in found.statistic


@pytest.mark.parametrize(("scale", "verdict"), [("laptop", "not testable"), ("paper", "not held")])
def test_a_speedup_that_overlap_cannot_reach(scale: str, verdict: str, tmp_path: Path) -> None:
    folders = [measurement(tmp_path, label, seconds) for label, seconds in (("sync", 9.0), ("estr", 6.0))]
    for folder in folders:
        edit(folder, scale=scale)
    evidence = Evidence(folders, [])
    found = judge("C41", evidence)
    assert found.verdict == verdict
    assert "9 / 6 = 1.5 [1.3" in found.statistic and "a factor 0.83 over an ideal sync" in found.statistic
    assert f"{UPDATES} and {UPDATES} updates" in found.statistic
    assert evidence.take_used() == "throughput/dapo_math/estr/seed0 throughput/dapo_math/sync/seed0"


@pytest.mark.parametrize("name", ["C41", "C42", "C43", "C44"])
def test_without_a_measurement(name: str, tmp_path: Path) -> None:
    for seconds in ({"sync": 3.0, "async": 3.0, "m2po": 3.0}, {}):
        found = outcome(tmp_path, name, seconds)
        assert found.verdict == "no data" and "no throughput measurement of ESTR" in found.statistic
