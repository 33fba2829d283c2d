"""configs/paper/claims.yaml against the claims fixed before the reference run, and its mistakes as messages."""

import csv
import re
from pathlib import Path

import pytest
import yaml

from estr.config import configs_folder
from estr.errors import UserError
from estr.report.claims.checks import CHECKS
from estr.report.claims.definitions import load_claims
from estr.report.scaling_fit import (
    BEFORE_SWITCH,
    BULK,
    OFF_MODE_ENTROPY,
    OFF_MODE_PROBABILITY,
    OFF_MODE_QUANTILE,
    RANK_SHARE,
)

AS_FIXED = Path(__file__).with_name("claims_of_the_paper.csv")
TEXTS = {
    "source": "source",
    "where": "where",
    "claim": "claim",
    "predicate": "predicate over our tables",
    "testable": "testable at laptop scale",
}
THRESHOLDS = {
    "C01": {"rank_correlation_at_least": 0.9},
    "C02": {"r_squared_at_least": 0.8},
    "C03": {"error_at_most": 0.03, "largest_sigma": 0.1},
    "C05": {"ratio_below": 0.5},
    "C07": {"share_below": 0.5},
    "C08": {"ratio_at_least": 5},
    "C09": {"error_at_most": 0.05},
    "C10": {"share_at_most": 0.1},
    "C12": {"error_at_most": 1e-6},
    "C18": {"points_at_most": 1.5},
    "C21": {"within": "1/3"},
    "C23": {"ratio_at_least": 5},
    "C25": {"tau_above": 0.5},
    "C27": {"versions": [1, 5, 7, 9], "other": 1},
    "C28": {"versions": [1, 5, 15, 20, 30], "other": 1},
    "C29": {"tau_at_most": -0.8, "intra": [1, 5, 7, 9], "inter": [1, 5, 15, 20, 30], "other": 1},
    "C30": {"intra": [1, 5, 7, 9], "inter": [1, 5, 15, 20, 30], "other": 1},
    "C31": {"ratio_at_least": 10},
    "C33": {"ratio_at_most": 10},
    "C34": {"share_at_most": 0.25},
    "C38": {"points_at_most": 2.4, "taus": [0.7, 1.0, 1.6]},
    "C39": {"gain_share_below": "1/3", "prompts": [32, 64, 128, 256]},
    "C40": {"ratio_at_most": 3, "prompts": [32, 64, 128, 256]},
    "C41": {"ratio_at_least": 2.6},
    "C42": {"ratio_at_most": 1.05},
    "C43": {"ratio_below": 1},
    "C44": {"ratio_at_most": 1.02},
    "C45": {"percent_at_most": 8, "ratio_at_least": 5},
    "C47": {"percent_below": 1},
}
"""The numbers of the predicates."""


def test_ids_and_texts_are_those_fixed_before_any_run() -> None:
    with AS_FIXED.open(newline="") as file:
        fixed = {row["id"]: row for row in csv.DictReader(file)}
    ours = {claim.entry.id: claim.entry for claim in load_claims()}
    assert len(ours) == 47 and list(ours) == list(fixed)
    for name, entry in ours.items():
        assert {key: getattr(entry, key) for key in TEXTS} == {
            key: fixed[name][theirs] for key, theirs in TEXTS.items()
        }


def test_thresholds_are_those_of_the_predicates() -> None:
    ours = {claim.entry.id: claim.entry.parameters for claim in load_claims()}
    for name, wanted in THRESHOLDS.items():
        assert {key: ours[name][key] for key in wanted} == wanted, name
    numbers = {name for name, given in ours.items() if any(isinstance(value, float) for value in given.values())}
    assert numbers <= {*THRESHOLDS, "C13"}  # C13: the tolerance that its predicate leaves open
    assert (RANK_SHARE, BULK, list(BEFORE_SWITCH)) == (0.01, (0.05, 0.95), list(range(-10, -2)))
    assert (OFF_MODE_ENTROPY, OFF_MODE_PROBABILITY, OFF_MODE_QUANTILE) == (0.05, 0.05, 0.999)


def test_every_check_is_used() -> None:
    assert {claim.entry.check for claim in load_claims()} == set(CHECKS)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"predicat": "x"}, "C14.*key 'predicat'"),
        ({"check": "beats_everyone"}, "C14.*there is no check 'beats_everyone'"),
        ({"parameters": {"tasks": ["gsm8k"], "method": "estr"}}, "C14, parameters.*key 'other'"),
        (
            {"parameters": {"tasks": ["gsm8k"], "method": "estr", "other": "async", "level": 0.9}},
            "C14, parameters.*key 'level'",
        ),
        ({"parameters": {"tasks": "gsm8k", "method": "estr", "other": "async"}}, "C14, parameters.*key 'tasks'"),
        ({"id": "C15"}, "C15: stands twice"),
        ({"id": "Claim 14"}, "Claim 14: key 'id'"),
        ({"claim": None}, "C14: key 'claim'"),
    ],
)
def test_a_mistake_is_named_with_file_and_id(edit: dict, message: str, tmp_path: Path) -> None:
    content = yaml.safe_load((configs_folder() / "paper" / "claims.yaml").read_text())
    claim = next(claim for section in content["sections"] for claim in section["claims"] if claim["id"] == "C14")
    claim |= edit
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=f"{re.escape(str(path))}.*{message}"):
        load_claims(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: cannot be read"):
        load_claims(tmp_path / "nowhere.yaml")
