"""The claims about training runs, on runs made to be as claimed and otherwise."""

import numpy as np
import pytest
import synthetic
from claims_data import FALLEN, FALLEN_LATE, STEPS, curves, judge, write
from synthetic import MATCHED_RULES, ResultsFolder, write_json

from estr.errors import UserError
from estr.report.claims.evidence import Evidence

TASKS = ("browsecomp_plus", "gsm8k", "dapo_math")


@pytest.mark.parametrize(("name", "other"), [("C14", "async"), ("C15", "icepop"), ("C16", "kpop"), ("C17", "m2po")])
def test_better_on_every_task(name: str, other: str, folder: ResultsFolder) -> None:
    for task in TASKS[:2]:
        write(folder, task, "estr", percent=80)
        write(folder, task, other, percent=40)
    outcome = judge(name, folder)
    assert outcome.verdict == "no data" and "DAPO-Math (AIME): no run of" in outcome.statistic
    write(folder, "dapo_math", "estr", percent=80)
    write(folder, "dapo_math", other, percent=40)
    outcome = judge(name, folder)
    assert outcome.verdict == "held" and "+40.0 [+" in outcome.statistic and "2 seeds" in outcome.statistic


def test_equal_on_one_task_is_not_better_on_every_task(folder: ResultsFolder) -> None:
    for task in TASKS:
        write(folder, task, "estr", percent=80)
        write(folder, task, "async", percent=80 if task == "gsm8k" else 40)
    outcome = judge("C14", folder)
    assert outcome.verdict == "not held" and outcome.statistic.count("(not held)") == 1


@pytest.mark.parametrize(("sync", "verdict"), [(80, "held"), (60, "held"), (100, "not held")])
def test_matches_sync(sync: float, verdict: str, folder: ResultsFolder) -> None:
    for task in TASKS:
        write(folder, task, "estr", percent=80)
        write(folder, task, "sync", percent=sync)
    assert judge("C18", folder).verdict == verdict


@pytest.mark.parametrize(("estr", "verdict"), [(80, "held"), (50, "not held"), (30, "not held")])
def test_pass_at_4_exceeds_syncs(estr: float, verdict: str, folder: ResultsFolder) -> None:
    write(folder, "dapo_math", "estr", percent=estr)
    assert judge("C19", folder).verdict == "no data"
    write(folder, "dapo_math", "sync", percent=50)
    assert judge("C19", folder).verdict == verdict


def test_pass_at_4_of_two_samples_is_no_data(folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(synthetic.TASKS["dapo_math"], "k", 2)
    write(folder, "dapo_math", "estr")
    write(folder, "dapo_math", "sync")
    assert "2 samples per problem" in judge("C19", folder).statistic


@pytest.mark.parametrize(
    ("icepop", "kpop", "estr", "verdict"),
    [
        ([1, 1, 0], [1, 1, 1], [0, 0, 0], "held"),
        ([1, 1, 0], [0, 1, 1], [0, 0, 0], "not held"),  # both in one seed only
        ([1, 1, 1], [1, 1, 1], [1, 1, 0], "not held"),
        ([0, 0, 0], [0, 0, 0], [0, 0, 0], "not held"),
    ],
)
def test_collapse_of_both_and_not_of_estr(
    icepop: list[int], kpop: list[int], estr: list[int], verdict: str, folder: ResultsFolder
) -> None:
    for label, collapses in (("icepop", icepop), ("kpop", kpop), ("estr", estr)):
        for seed, collapse in enumerate(collapses):
            one_run(folder, "gsm8k", label, seed, FALLEN_LATE if collapse else 0.5)
    outcome = judge("C20", folder)
    assert outcome.verdict == verdict
    assert f"IcePop {sum(icepop)} of 3 seeds" in outcome.statistic


def one_run(folder: ResultsFolder, task: str, label: str, seed: int, reward: float | np.ndarray) -> None:
    folder.write(label, seed, task=task, metrics=curves(reward=reward))


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [([FALLEN, FALLEN], "held"), ([FALLEN, FALLEN_LATE], "not held"), ([0.5, 0.5], "not held")],
)
def test_early_collapse(rewards: list, verdict: str, folder: ResultsFolder) -> None:
    assert judge("C21", folder).verdict == "no data"
    for seed, reward in enumerate(rewards):
        one_run(folder, "dapo_math", "async", seed, reward)
    outcome = judge("C21", folder)
    assert outcome.verdict == verdict and f"in {STEPS} steps" in outcome.statistic


def staleness_runs(folder: ResultsFolder, intra: dict[int, float], inter: dict[int, float]) -> None:
    """Final rewards by versions; the two sweeps share the run at (1, 1)."""
    for value, reward in intra.items():
        write(folder, "dapo_math", f"estr__inter=1__intra={value}", reward=reward)
    for value, reward in inter.items():
        if value != 1:
            write(folder, "dapo_math", f"estr__inter={value}__intra=1", reward=reward)


def falling(versions: list[int], per_version: float) -> dict[int, float]:
    return {value: 0.8 - per_version * value for value in versions}


INTRA, INTER = [1, 5, 7, 9], [1, 5, 15, 20, 30]


def test_reward_falls_and_more_slowly_with_intra(folder: ResultsFolder) -> None:
    staleness_runs(folder, falling(INTRA, 0.001), falling(INTER, 0.01))
    for name in ("C27", "C28", "C29", "C30"):
        outcome = judge(name, folder)
        assert outcome.verdict == "held", outcome.statistic
    assert "tau -1.00" in judge("C29", folder).statistic


def test_reward_that_rises_and_runs_that_collapse(folder: ResultsFolder) -> None:
    staleness_runs(folder, falling(INTRA, 0.02), falling(INTER[:-1], 0.01) | {30: 0.78})
    assert judge("C29", folder).verdict == "not held"
    assert judge("C30", folder).verdict == "not held"
    folder.write("estr__inter=1__intra=9", 2, metrics=curves(reward=FALLEN))
    folder.write("estr__inter=15__intra=1", 2, metrics=curves(reward=FALLEN))
    for name, setting in (("C27", "intra 9"), ("C28", "inter 15")):
        outcome = judge(name, folder)
        assert outcome.verdict == "not held" and f"{setting}: 1 of 3 seeds (step" in outcome.statistic


def test_a_sweep_without_a_setting_is_no_data(folder: ResultsFolder) -> None:
    write(folder, "dapo_math", "estr")
    staleness_runs(folder, falling(INTRA[:-1], 0.01), falling(INTER, 0.01))
    assert "at intra 9" in judge("C27", folder).statistic
    for name in ("C27", "C29", "C30"):
        assert judge(name, folder).verdict == "no data"
    assert judge("C28", folder).verdict == "held"


MASKED = {"icepop": 0.01, "kpop": 0.008, "m2po": 0.002, "async": 0, "estr": 0.001}


def test_masking_as_claimed(folder: ResultsFolder) -> None:
    for label, fraction in MASKED.items():
        final = 0.01 if label == "estr" else 0.03
        write(
            folder,
            "dapo_math",
            label,
            masked_fraction=fraction,
            sequences_masked_fraction=30 * fraction,
            ratio_deviation=np.r_[np.full(STEPS // 2, 0.0), np.full(STEPS // 2, final)],
        )
    for name in ("C22", "C23", "C24", "C45"):
        outcome = judge(name, folder)
        assert outcome.verdict == "held", outcome.statistic
    assert "IcePop: 10 [10, 10] x ESTR's, 2 seeds" in judge("C23", folder).statistic
    assert "ESTR 3 %, IcePop 30 %" in judge("C45", folder).statistic


@pytest.mark.parametrize(
    ("name", "label", "column", "value"),
    [
        ("C22", "m2po", "masked_fraction", 0.001),
        ("C23", "kpop", "masked_fraction", 0.004),
        ("C24", "async", "ratio_deviation", 0.01),
        ("C45", "icepop", "sequences_masked_fraction", 0.09),
        ("C45", "estr", "sequences_masked_fraction", 0.09),
    ],
)
def test_one_rule_that_is_otherwise(name: str, label: str, column: str, value: float, folder: ResultsFolder) -> None:
    for other, fraction in MASKED.items():
        given = {"masked_fraction": fraction, "sequences_masked_fraction": 30 * fraction}
        given["ratio_deviation"] = 0.01 if other == "estr" else 0.03
        write(folder, "dapo_math", other, **(given | ({column: value} if other == label else {})))
    assert judge(name, folder).verdict == "not held"


def test_ratio_to_a_rule_that_masks_nothing(folder: ResultsFolder) -> None:
    for label, fraction in {"estr": 0.0, "icepop": 0.01, "kpop": 0.0}.items():
        write(folder, "dapo_math", label, masked_fraction=fraction)
    outcome = judge("C23", folder)
    assert outcome.verdict == "not computable" and "IcePop: inf" in outcome.statistic


@pytest.mark.parametrize(("last", "verdict"), [(0.002, "held"), (0.02, "not held")])
def test_self_regulating(last: float, verdict: str, folder: ResultsFolder) -> None:
    assert judge("C47", folder).verdict == "no data"
    fraction = np.r_[np.full(STEPS // 4, 0.001), np.full(STEPS - STEPS // 4, last)]
    write(folder, "browsecomp_plus", "estr", masked_fraction=fraction)
    assert judge("C47", folder).verdict == verdict


def matched_runs(
    folder: ResultsFolder,
    fractions: dict[str, float],
    entropies: dict[str, float],
    m2po: float,
    steps: tuple[int, int] = (1, 1),
) -> list:
    """The shared batch masks 0.05 % (see `ResultsFolder.write_calibration`)."""
    write(folder, "gsm8k", "estr", percent=60, masked_fraction=6e-4, masked_entropy=0.1)
    for method in MATCHED_RULES:
        label = f"{method}__thresholds=matched"
        columns = {"masked_fraction": fractions[method], "masked_entropy": entropies[method]}
        write(folder, "gsm8k", label, percent=m2po if method == "m2po" else 50, **columns)
    return [folder.write_calibration("gsm8k", steps)]


def test_matched_budget_as_in_the_first_version(folder: ResultsFolder) -> None:
    fractions = {"icepop": 0.01, "kpop": 0.001, "m2po": 0.001}
    files = matched_runs(folder, fractions, dict.fromkeys(fractions, 1.5), m2po=50)
    for name in ("C31", "C33", "C34"):
        assert judge(name, folder, files).verdict == "held"
    report = judge("C32", folder, files)
    assert report.verdict == "not computable" and report.statistic.startswith("our runs side with v1")
    assert "masked 0.05 % of the shared batch, 1 % over training: factor 20" in judge("C31", folder, files).statistic
    assert judge("C31", folder).verdict == "no data"


def test_no_ratio_to_step_0_where_the_budget_is_of_several_updates(folder: ResultsFolder) -> None:
    fractions = {"icepop": 0.01, "kpop": 0.001, "m2po": 0.001}
    files = matched_runs(folder, fractions, dict.fromkeys(fractions, 1.5), m2po=50, steps=(1, 50))
    for name, factor in (("C31", 20), ("C33", 2)):
        outcome = judge(name, folder, files)
        assert outcome.verdict == "not computable"
        assert "updates 1 to 50 together" in outcome.statistic and f"factor {factor}" in outcome.statistic


def test_a_rule_that_is_ahead_is_not_behind_whatever_its_budget(folder: ResultsFolder) -> None:
    fractions = {"icepop": 0.01, "kpop": 0.001, "m2po": 0.001}
    files = matched_runs(folder, fractions, dict.fromkeys(fractions, 1.5), m2po=70, steps=(1, 50))
    assert judge("C33", folder, files).verdict == "not held"


def test_matched_budget_otherwise(folder: ResultsFolder) -> None:
    fractions = {"icepop": 0.004, "kpop": 0.2, "m2po": 0.001}
    files = matched_runs(folder, fractions, {"icepop": 1.5, "kpop": 0.3, "m2po": 1.5}, m2po=60)
    for name in ("C31", "C33", "C34"):
        assert judge(name, folder, files).verdict == "not held"
    assert judge("C32", folder, files).statistic.startswith("our runs side with v2")


def test_matched_runs_with_other_thresholds_are_refused(folder: ResultsFolder) -> None:
    fractions = dict.fromkeys(MATCHED_RULES, 0.01)
    [file] = matched_runs(folder, fractions, fractions, m2po=50)
    rules = {method: rule | {"achieved": 5e-4, "phi": 9.0} for method, rule in MATCHED_RULES.items()}
    shared = {"budget": 6e-4, "tokens": 50_000, "steps": [1, 50], "source_runs": []}
    write_json(file, shared | {"rules": rules})
    with pytest.raises(UserError, match="train the run again"):
        judge("C32", folder, [file])


def test_dynamics_as_claimed_and_otherwise(folder: ResultsFolder) -> None:
    assert judge("C25", folder).verdict == "no data"
    rising = np.linspace(0.2, 0.6, STEPS)
    write(folder, "browsecomp_plus", "estr", entropy=rising, turns=2, response_length=10, reward=0.6)
    for label in ("async", "icepop", "kpop", "m2po"):
        write(folder, "browsecomp_plus", label, kl_to_behavior=0.002)
    for name in ("C25", "C26", "C46"):
        outcome = judge(name, folder)
        assert outcome.verdict == "held", outcome.statistic


def test_dynamics_otherwise(folder: ResultsFolder) -> None:
    falling_entropy = np.linspace(0.6, 0.2, STEPS)
    write(folder, "browsecomp_plus", "estr", entropy=falling_entropy, turns=2, response_length=10, kl_to_behavior=0.002)
    for label in ("async", "icepop", "kpop", "m2po"):
        write(folder, "browsecomp_plus", label)
    for name in ("C25", "C26", "C46"):
        assert judge(name, folder).verdict == "not held"
    assert "highest reward: ESTR and async" in judge("C46", folder).statistic


@pytest.mark.parametrize(
    ("both", "exploration", "outliers", "verdicts"),
    [(80, 60, 60, ["held"] * 3), (80, 50, 30, ["not held"] * 2 + ["held"]), (60, 60, 70, ["held"] * 2 + ["not held"])],
)
def test_components(both: int, exploration: int, outliers: int, verdicts: list[str], folder: ResultsFolder) -> None:
    write(folder, "browsecomp_plus", "fixed_magnitude", percent=50)
    assert [judge(name, folder).verdict for name in ("C35", "C36", "C37")] == ["no data"] * 3
    write(folder, "browsecomp_plus", "exploration_preserving", percent=exploration)
    write(folder, "browsecomp_plus", "outlier_suppressing", percent=outliers)
    write(folder, "browsecomp_plus", "estr", percent=both)
    assert [judge(name, folder).verdict for name in ("C35", "C36", "C37")] == verdicts


@pytest.mark.parametrize(("other", "verdict"), [(50, "held"), (90, "not held")])
def test_sensitivity_to_tau(other: float, verdict: str, folder: ResultsFolder) -> None:
    for task in ("browsecomp_plus", "dapo_math"):
        write(folder, task, "estr")  # tau 1.6 in both, as the made-up runs have it
        write(folder, task, "estr__tau=0.7")
    assert "at tau 1.0" in judge("C38", folder).statistic
    for task in ("browsecomp_plus", "dapo_math"):
        write(folder, task, "estr__tau=1.0", percent=other)
    assert judge("C38", folder).verdict == verdict


@pytest.mark.parametrize(
    ("rewards", "fractions", "verdicts"),
    [
        ([0.3, 0.4, 0.5, 0.51], [0.001, 0.002, 0.001, 0.002], ["held", "held"]),
        ([0.3, 0.4, 0.5, 0.6], [0.001, 0.004, 0.001, 0.001], ["not held", "not held"]),
        ([0.3, 0.2, 0.5, 0.51], [0.001, 0.001, 0.001, 0.001], ["not held", "held"]),
    ],
)
def test_batch_size(rewards: list[float], fractions: list[float], verdicts: list[str], folder: ResultsFolder) -> None:
    labels = ["estr__prompts=8", "estr__prompts=16", "estr", "estr__prompts=64"]
    for label, reward, fraction in zip(labels, rewards, fractions, strict=True):
        assert [judge(name, folder).verdict for name in ("C39", "C40")] == ["no data", "no data"]
        write(folder, "dapo_math", label, reward=reward, masked_fraction=fraction)
    assert [judge(name, folder).verdict for name in ("C39", "C40")] == verdicts


def test_what_was_read_is_named_once(folder: ResultsFolder) -> None:
    for task in TASKS:
        write(folder, task, "estr", percent=80)
        write(folder, task, "async", percent=40)
    evidence = Evidence(folder.run_dirs, [])
    judge("C14", evidence)
    assert evidence.take_used().split()[:2] == ["browsecomp_plus/estr/seed{0,1}", "browsecomp_plus/async/seed{0,1}"]
    assert evidence.take_used() == ""


def test_a_run_without_the_column_is_refused(folder: ResultsFolder) -> None:
    columns = curves()
    del columns["turns"]
    for label in ("estr", "async", "icepop", "kpop", "m2po"):
        folder.write(label, 0, task="browsecomp_plus", metrics=columns)
    with pytest.raises(UserError, match="lacks the column turns"):
        judge("C46", folder)
