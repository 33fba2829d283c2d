"""Verdicts against hand-computed ones, and against the rules themselves."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dumps import MASKED, TOKENS, as_rows, without, write

from estr.algorithm import RatioInterval, SecondMoment, TokenSignals
from estr.diagnose import Diagnosis, examine, read_dump
from estr.diagnose.facts import plausibility, staleness_summary
from estr.errors import UserError

FINITE = [0, 1, 2, 3, 5]


def diagnosed(path: Path, columns: dict[str, Any], **options: Any) -> Diagnosis:
    return examine(read_dump(write(path / "dump.parquet", columns)), **options)


@pytest.fixture
def diagnosis(tmp_path: Path) -> Diagnosis:
    return diagnosed(tmp_path, TOKENS, taus=(1.6, 0.5))


def test_masks_are_those_computed_by_hand(diagnosis: Diagnosis) -> None:
    for key, masked in MASKED.items():
        expected = [token in FINITE and token not in masked for token in range(6)]
        assert diagnosis.keep[key][0].tolist() == expected, key


def test_numbers_of_a_verdict(diagnosis: Diagnosis) -> None:
    (reading,) = diagnosis.readings
    fixed = reading.rules["fixed_magnitude"]
    assert (fixed.masked, fixed.fraction, fixed.sequences_masked) == (3, 3 / 5, 3)
    assert fixed.masked_entropy == pytest.approx((0.1 + 2 + 3) / 3)
    assert (fixed.only_estr, fixed.only_rule, fixed.both) == (0, 2, 1)
    icepop = reading.rules["icepop"]
    assert (icepop.only_estr, icepop.only_rule, icepop.both) == (1, 1, 0)
    assert reading.mean_entropy == pytest.approx((0.2 + 0.1 + 2 + 3 + 0.005) / 5)


def test_every_rule_is_calibrated_to_the_budget_of_estr(diagnosis: Diagnosis) -> None:
    (reading,) = diagnosis.readings
    assert reading.budget == 1 / 5
    assert list(reading.matched) == ["estr", "icepop", "kpop", "m2po", "fixed_magnitude"]
    assert [verdict.masked for verdict in reading.matched.values()] == [1] * 5
    fixed = reading.matched["fixed_magnitude"]
    assert fixed.thresholds["c"] == pytest.approx(0.9)  # between the log-ratios 0.8 and 1
    assert (fixed.only_estr, fixed.only_rule, fixed.both) == (1, 1, 0)
    between = (1 / math.log(5) + 0.8 / math.log(2)) / 2
    assert reading.matched["icepop"].thresholds["low"] == pytest.approx(0.5**between)


def test_a_given_budget_calibrates_estr_too(tmp_path: Path) -> None:
    (reading,) = diagnosed(tmp_path, TOKENS, budget=0.4).readings
    assert {key: verdict.masked for key, verdict in reading.matched.items()} == dict.fromkeys(reading.matched, 2)
    between = (0.01 / 0.015 + 1 / 3.01) / 2
    assert reading.matched["estr"].thresholds["tau"] == pytest.approx(between, rel=1e-5)


def test_an_update_is_a_step(tmp_path: Path) -> None:
    """M2PO keeps 0.3 among nine zeros, and drops it alone; in one batch it drops both."""
    delta = [0.0] * 9 + [math.sqrt(0.3)] * 2
    columns = {"behavior_logprob": [-2.0] * 11, "target_logprob": [-2 + each for each in delta], "entropy": [1.0] * 11}
    steps = diagnosed(tmp_path, columns | {"step": [7] * 10 + [8]})
    assert steps.keep["m2po"][0].tolist() == [True] * 10 + [False]
    shuffled = np.random.default_rng(0).permutation(11)
    mixed = {name: np.array(values)[shuffled] for name, values in (columns | {"step": [7] * 10 + [8]}).items()}
    np.testing.assert_array_equal(diagnosed(tmp_path, mixed).keep["m2po"][0], steps.keep["m2po"][0][shuffled])
    assert diagnosed(tmp_path, columns).keep["m2po"][0].tolist() == [True] * 9 + [False] * 2


def test_many_tokens_agree_with_the_rules(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    n = 5000
    behavior = -rng.exponential(1, n)
    entropy = rng.exponential(0.5, n)
    target = np.minimum(behavior + rng.standard_t(3, n) * 0.3 * np.sqrt(entropy + 0.01), 0)
    columns = {
        "behavior_logprob": behavior,
        "target_logprob": target,
        "entropy": entropy,
        "step": np.sort(rng.integers(0, 9, n)),
    }
    diagnosis = diagnosed(
        tmp_path, {name: np.float32(value) if name != "step" else value for name, value in columns.items()}
    )
    for key, rule in (("icepop", RatioInterval()), ("m2po", SecondMoment())):
        kept = []
        for step in range(9):
            chosen = columns["step"] == step
            row = [torch.tensor(np.float32(columns[name][chosen]))[None] for name in list(columns)[:3]]
            ones = torch.ones(row[0].shape)
            kept.append(rule.keep(TokenSignals(*row, ones, ones.bool(), ones.long()))[0].numpy())
        np.testing.assert_array_equal(diagnosis.keep[key][0], np.concatenate(kept))
    (reading,) = diagnosis.readings
    assert reading.rules["estr"].fraction > 0.001
    for verdict in reading.matched.values():
        assert verdict.masked == reading.rules["estr"].masked
    assert reading.coefficient > 0 and reading.r_squared > 0.5 and reading.bins > 5


def test_non_finite_tokens_are_named_and_left_out(diagnosis: Diagnosis) -> None:
    assert diagnosis.usable.tolist() == [True, True, True, True, False, True]
    assert diagnosis.first_nonfinite is not None
    assert diagnosis.first_nonfinite.startswith("row 4: behavior_logprob -0.3, target_logprob nan, entropy 0.5")


def test_nothing_finite_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no response token has finite signals; the first is row 0: .*entropy nan"):
        diagnosed(tmp_path, TOKENS | {"entropy": [math.nan] * 6})


def test_an_advantage_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, TOKENS | {"advantage": [1, math.inf, 1, 1, 1, 1]})
    assert found.usable.tolist() == [True, False, True, True, False, True]


def test_rows_of_sequences_give_the_same_verdicts(tmp_path: Path, diagnosis: Diagnosis) -> None:
    rows = diagnosed(tmp_path, as_rows(TOKENS), taus=(1.6, 0.5))
    assert rows.readings[0].rules == diagnosis.readings[0].rules


def test_a_run_on_policy_has_nothing_to_match(tmp_path: Path) -> None:
    same = TOKENS | {"target_logprob": TOKENS["behavior_logprob"]}
    (reading,) = diagnosed(tmp_path, same).readings
    assert reading.matched == {} and reading.problems == ["ESTR masks no token: there is no budget to match"]
    (reading,) = diagnosed(tmp_path, same, budget=0.3).readings
    assert reading.matched == {} and "kpop" not in reading.matched and len(reading.problems) == 5


@pytest.mark.parametrize("taus", [(-1.0,), (1.0, 1.0)])
def test_a_wrong_tau(tmp_path: Path, taus: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="--tau"):
        diagnosed(tmp_path, TOKENS, taus=taus)


def bounded(tmp_path: Path) -> Diagnosis:
    """Log-ratio 0.5 throughout; H is at most 0.02, at least 1.2, or from 0.10 to 0.16; tau 1.6 asks for 0.146."""
    low, high, open_ = [0.999, 0.0003], [0.3, 0.3], [0.99, 0.0001]
    columns = {"behavior_logprob": [-1.0] * 3, "target_logprob": [-0.5] * 3, "top": np.log([low, high, open_]).tolist()}
    dump = read_dump(write(tmp_path / "dump.parquet", columns), topk="top", vocabulary=50_000)
    return examine(dump, taus=(1.6,))


def test_bounds_of_the_entropy_give_both_verdicts(tmp_path: Path) -> None:
    found = bounded(tmp_path)
    at_low, at_high = found.keep["estr"]
    assert at_low.tolist() == [False, True, False] and at_high.tolist() == [False, True, True]
    assert found.undecided["estr"] == 1 and found.undecided["icepop"] == 0
    low, high = found.readings
    assert (low.rules["estr"].masked, high.rules["estr"].masked) == (2, 1)
    assert low.mean_entropy < high.mean_entropy


VERSIONS = {
    "weight_version": [3, 4, 4, 4, 6, 5],
    "target_version": [6, 6, 6, 7, 7, 7],
}


def summary(tmp_path: Path, columns: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return staleness_summary(read_dump(write(tmp_path / "dump.parquet", columns)))


def test_staleness_from_the_versions_of_tokens(tmp_path: Path) -> None:
    found, notes = summary(tmp_path, TOKENS | VERSIONS)
    assert (found["intra"].mean, found["intra"].histogram) == (3 / 4, {"0": 2, "1": 1, "2": 1})
    assert (found["inter"].low, found["inter"].high, found["inter"].histogram) == (1, 2, {"1": 1, "2": 3})
    assert notes == []


def test_positions_say_which_token_is_first(tmp_path: Path) -> None:
    found, _ = summary(tmp_path, TOKENS | VERSIONS | {"position": [1, 0, 0, 1, 0, 0]})
    assert found["intra"].histogram == {"-2": 1, "-1": 1, "0": 2}


def test_staleness_from_versions_per_trajectory(tmp_path: Path) -> None:
    rows = as_rows(TOKENS) | {"min_global_steps": [3, 4, 4, 5], "max_global_steps": [4, 4, 6, 5]}
    found, notes = summary(tmp_path, rows)
    assert found["intra"].histogram == {"0": 2, "1": 1, "2": 1} and "inter" not in found
    assert "target_version" in notes[0]
    found, _ = summary(tmp_path, rows | {"target_version": [6, 6, 7, 7]})
    assert found["inter"].histogram == {"1": 1, "2": 3}


def test_without_versions_or_sequences_there_is_a_note(tmp_path: Path) -> None:
    assert summary(tmp_path, TOKENS) == ({}, ["no weight versions: staleness is not reported"])
    found, notes = summary(tmp_path, without("sequence") | VERSIONS)
    assert found == {} and "sequence" in notes[0]


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ([6, 6, 6, 5, 5, 5], "row 4: the weights being trained have version 5, the token was sampled by version 6"),
        ([6, 7, 6, 7, 7, 7], "row 0: its trajectory has two target versions"),
    ],
)
def test_versions_that_contradict_each_other(tmp_path: Path, versions: list[int], reason: str) -> None:
    with pytest.raises(UserError, match=f"'target_version': {reason}"):
        summary(tmp_path, TOKENS | VERSIONS | {"target_version": versions})


def notes_of(tmp_path: Path, columns: dict[str, Any]) -> str:
    dump = read_dump(write(tmp_path / "dump.parquet", columns))
    return " ".join(plausibility(dump, np.isfinite(dump.target_logprob)))


def sampled(tokens: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Tokens of coins, one policy a little off the other; the entropy is right at scale 1."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.05, 0.95, tokens)
    chosen = np.where(rng.random(tokens) < p, p, 1 - p)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    return {
        "behavior_logprob": np.log(chosen),
        "target_logprob": np.log(chosen) - 0.01,
        "entropy": scale * entropy,
    }


def test_plausible_signals_are_not_remarked_upon(tmp_path: Path) -> None:
    assert notes_of(tmp_path, sampled(20_000)) == ""


@pytest.mark.parametrize("scale", [1 / math.log(2), 0.5])
def test_an_entropy_in_bits_or_of_another_policy_is_remarked_upon(tmp_path: Path, scale: float) -> None:
    assert "they agree if both are of the distribution" in notes_of(tmp_path, sampled(20_000, scale))


def test_copied_and_misaligned_log_probs_are_remarked_upon(tmp_path: Path) -> None:
    tokens = sampled(2000)
    assert "bypass mode" in notes_of(tmp_path, tokens | {"target_logprob": tokens["behavior_logprob"]})
    assert "aligned" in notes_of(tmp_path, tokens | {"target_logprob": tokens["behavior_logprob"] - 1})


def test_a_borrowed_entropy_carries_its_caution(tmp_path: Path) -> None:
    columns = without("entropy") | {"entropys": TOKENS["entropy"]}
    assert "entropys is the entropy under the training engine's weights" in notes_of(tmp_path, columns)
