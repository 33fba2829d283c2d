"""Table 1 as one data frame: the paper's numbers, ours, their spread, the paper's orderings tested on ours.

One row per method and variant, and one for the policy before training. Accuracies, their spreads and
differences are percentages or percentage points, as in the paper; masked fractions are percentages of
response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.evaluation.metrics import bootstrap_interval, pass_at_k
from estr.evaluation.paired import PairedDifference, paired_difference_interval
from estr.provenance import read_json
from estr.report.labels import MATCHED, METHODS, is_matched, matched, order, short_name, split_label
from estr.report.paper import PaperValues
from estr.report.runs import FIRST_STEPS, Evaluation, RunResult

WARM_START = "warm_start"
METRICS = ("avg", "pass")
REFERENCES = ("async", "sync", "estr")
SYNC_MARGIN = 1.5  # percentage points: what the paper's "closely approaching sync" allows
PAPER_TASK = {"dapo_math": "aime_mean"}  # the paper trains on DAPO-Math and evaluates on AIME 2024-2026
_PER_METRIC = ("", "_sd", "_low", "_high")
COLUMNS = [
    *("label", "method", "variant", "scale", "task", "k", "thresholds"),
    *("paper_avg_percent", "paper_pass_percent", "paper_basis"),
    *(f"ours_{metric}_percent{suffix}" for metric in METRICS for suffix in _PER_METRIC),
    *("n_seeds", "seeds", "n_problems", "verdict"),
    *(
        column
        for metric in METRICS
        for name in (f"{metric}_minus_{reference}" for reference in REFERENCES)
        for column in (
            f"paper_{name}",
            name,
            f"{name}_low",
            f"{name}_high",
            name.replace("minus", "vs") + "_verdict",
        )
    ),
    *(
        f"{name}{suffix}"
        for name in (
            "masked_fraction_first50_percent",
            "masked_fraction_mean_percent",
            "masked_entropy_first50_nats",
            "reward_last_quarter",
        )
        for suffix in ("", "_sd")
    ),
    *(
        "calibrated_masked_percent",
        "paper_gsm8k_masked_fraction_mean_percent",
        "paper_gsm8k_masked_entropy_first50_nats",
    ),
    *("run_ids", "commits", "config_hashes"),
]


@dataclass(frozen=True)
class Scores:
    """Evaluations of one label. values[metric]: float [seeds, problems], fractions 0..1."""

    seeds: tuple[int, ...]
    values: dict[str, np.ndarray]

    def difference(self, other: "Scores", metric: str, bootstrap_seed: int) -> PairedDifference | None:
        """self - other in percentage points over the seeds that both have; None if they share none."""
        common = sorted(set(self.seeds) & set(other.seeds))
        if not common:
            return None
        a, b = (100 * s.values[metric][[s.seeds.index(seed) for seed in common]] for s in (self, other))
        return paired_difference_interval(a, b, seed=bootstrap_seed)


def table1_frame(
    runs: Sequence[RunResult], calibration: Path | None, paper: PaperValues, bootstrap_seed: int
) -> pd.DataFrame:
    """Build the table from loaded runs of one scale and task.

    Raises:
        UserError: a label other than a method or its matched-budget variant, evaluations of different
        problems, or a matched-budget run whose thresholds are not those of the calibration file.
    """
    for run in runs:
        if split_label(run.label)[1] not in ((), (MATCHED,)):
            raise UserError(f"{run.path}: label '{run.label}' has no row in Table 1; leave the run out")
    evaluations = {run.run_id: run.read_evaluation() for run in runs}
    k = _same_problems(runs, evaluations)
    achieved = _check_calibration(runs, calibration)
    labels = sorted({*METHODS, *(run.label for run in runs)}, key=order)
    groups = {label: [run for run in runs if run.label == label] for label in labels}
    scores = {label: _scores(group, evaluations) for label, group in groups.items() if group}
    papers = {label: _paper_columns(label, runs[0].task, k, paper) for label in labels}

    rows = [_warm_start_row(runs, evaluations)]
    for label in labels:
        row: dict[str, Any] = {"label": label, "method": split_label(label)[0], **papers[label]}
        row["variant"] = "matched" if is_matched(label) else "published"
        if label in scores:
            row |= _score_columns(scores[label], bootstrap_seed) | _training_columns(groups[label])
        for reference, metric in product(references(label), METRICS):
            ours = None
            if label in scores and reference in scores:
                ours = scores[label].difference(scores[reference], metric, bootstrap_seed)
            row |= _difference_columns(label, reference, metric, papers, ours)
        row["verdict"] = "; ".join(filter(None, (claim(row, reference, "avg") for reference in references(label))))
        row["calibrated_masked_percent"] = achieved.get(label)
        rows.append(row)
    frame = pd.DataFrame(rows).assign(scale=runs[0].scale, task=runs[0].task, k=k)
    return frame.reindex(columns=COLUMNS)


def references(label: str) -> tuple[str, ...]:
    """What the label is compared with; a pair of references stands in one row only."""
    return {"async": (), "sync": ("async",), "estr": ("async", "sync")}.get(label, REFERENCES)


def ordering_verdict(paper_difference: float, ours: PairedDifference | None) -> str:
    """Does our data agree with the sign of the paper's difference?

    ``held``: the 95 % interval lies on the paper's side of zero; ``not held``: on the other side;
    ``within noise``: it contains zero; ``not tested``: no pair of runs.
    """
    if ours is None:
        return "not tested"
    low, high = (ours.low, ours.high) if paper_difference > 0 else (-ours.high, -ours.low)
    if low > 0:
        return "held"
    return "not held" if high < 0 else "within noise"


def margin_verdict(margin: float, ours: PairedDifference | None) -> str:
    """Is ours at most `margin` below zero? ``held``: the whole 95 % interval is; ``not held``: none of it."""
    if ours is None:
        return "not tested"
    if ours.low >= -margin:
        return "held"
    return "not held" if ours.high < -margin else "within noise"


def claim(row: dict[str, Any], reference: str, metric: str) -> str:
    """The paper's claim on this row and its verdict, e.g. ``above async: held``; empty without a claim."""
    verdict = row.get(f"{metric}_vs_{reference}_verdict")
    if not isinstance(verdict, str):
        return ""
    name = short_name(reference)
    if _is_margin_claim(row["label"], reference, metric):
        return f"within {SYNC_MARGIN:g} points of {name}: {verdict}"
    side = "above" if row[f"paper_{metric}_minus_{reference}"] > 0 else "below"
    return f"{side} {name}: {verdict}"


def _is_margin_claim(label: str, reference: str, metric: str) -> bool:
    return (label, reference, metric) == ("estr", "sync", "avg")


def _same_problems(runs: Sequence[RunResult], evaluations: dict[str, Evaluation]) -> int:
    shapes = {(evaluations[run.run_id].k, len(evaluations[run.run_id].correct)): run for run in runs}
    if len(shapes) > 1:
        listed = "; ".join(f"{run.path}: k={k}, {n} problems" for (k, n), run in shapes.items())
        raise UserError(f"the runs were not evaluated on the same problems ({listed}); evaluate them again")
    return next(iter(shapes))[0]


def _check_calibration(runs: Sequence[RunResult], path: Path | None) -> dict[str, float]:
    """Achieved masked fraction (percent) per matched label; the runs' thresholds must be the file's."""
    matched_runs = [run for run in runs if is_matched(run.label)]
    if path is None:
        if matched_runs:
            raise UserError(f"{matched_runs[0].path}: a matched-budget run needs the calibration file of its task")
        return {}
    rules = read_json(path).get("rules")
    if not isinstance(rules, dict):
        raise UserError(f"{path}: field 'rules' is missing or malformed")
    for run in matched_runs:
        wanted = rules.get(run.method)
        if wanted is None:
            raise UserError(f"{path}: lacks the thresholds of {run.method}, which {run.path} needs")
        for name, value in run.rule.items():
            same = np.isclose(value, wanted.get(name, np.nan), rtol=1e-6) if isinstance(value, float) else True
            if not same:
                raise UserError(
                    f"{run.path / 'run.json'}: {name}={value} is not the calibrated {wanted.get(name)} of "
                    f"{path}; train the run again"
                )
    return {matched(method): 100 * rule["achieved"] for method, rule in rules.items() if "achieved" in rule}


def _scores(group: Sequence[RunResult], evaluations: dict[str, Evaluation]) -> Scores:
    counts = np.stack([evaluations[run.run_id].correct for run in group])
    k = evaluations[group[0].run_id].k
    passes = np.array([pass_at_k(k, correct, k) for correct in range(k + 1)])
    return Scores(tuple(run.seed for run in group), {"avg": counts / k, "pass": passes[counts]})


def _warm_start_row(runs: Sequence[RunResult], evaluations: dict[str, Evaluation]) -> dict[str, Any]:
    """Runs that share a warm start carry equal values, so the distinct ones are its seeds."""
    distinct = 100 * np.array(sorted({evaluations[run.run_id].warm_start for run in runs}))
    row: dict[str, Any] = {"label": WARM_START, "method": WARM_START, "variant": "before training"}
    for index, metric in enumerate(METRICS):
        values, low, high = distinct[:, index].T
        row |= _mean_sd(f"ours_{metric}_percent", values)
        if len(distinct) == 1:
            row |= {f"ours_{metric}_percent_low": low[0], f"ours_{metric}_percent_high": high[0]}
    n_problems = len(evaluations[runs[0].run_id].correct)
    return row | {"n_seeds": len(distinct), "n_problems": n_problems}


def _score_columns(scores: Scores, bootstrap_seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for metric in METRICS:
        percent = 100 * scores.values[metric]
        row |= _mean_sd(f"ours_{metric}_percent", percent.mean(axis=1))
        low, high = bootstrap_interval(percent.mean(axis=0), seed=bootstrap_seed)
        row |= {f"ours_{metric}_percent_low": low, f"ours_{metric}_percent_high": high}
    return row | {
        "n_seeds": len(scores.seeds),
        "n_problems": scores.values["avg"].shape[1],
        "seeds": " ".join(map(str, scores.seeds)),
    }


def _training_columns(group: Sequence[RunResult]) -> dict[str, Any]:
    """Means over seeds; per run, the entropy is a mean over masked tokens, the others are over steps."""
    per_run: dict[str, list[float]] = {
        "masked_fraction_first50_percent": [],
        "masked_fraction_mean_percent": [],
        "masked_entropy_first50_nats": [],
        "reward_last_quarter": [],
    }
    for run in group:
        first = run.metrics.head(FIRST_STEPS)
        entropy = first["masked_entropy"].dropna()
        masked = (first["masked_fraction"] * first["response_tokens"])[entropy.index]
        total = masked.sum()
        last_quarter = run.metrics["step"] > 0.75 * run.steps
        per_run["masked_fraction_first50_percent"].append(100 * first["masked_fraction"].mean())
        per_run["masked_fraction_mean_percent"].append(100 * run.metrics["masked_fraction"].mean())
        per_run["masked_entropy_first50_nats"].append((masked * entropy).sum() / total if total > 0 else np.nan)
        per_run["reward_last_quarter"].append(run.metrics.loc[last_quarter, "reward"].mean())
    row: dict[str, Any] = {"thresholds": "; ".join(dict.fromkeys(run.thresholds for run in group))}
    for name, values in per_run.items():
        row |= _mean_sd(name, np.array([value for value in values if np.isfinite(value)]))
    return row | {
        "run_ids": " ".join(run.run_id for run in group),
        "commits": " ".join(dict.fromkeys(run.commit for run in group)),
        "config_hashes": " ".join(dict.fromkeys(run.config_hash for run in group)),
    }


def _paper_columns(label: str, task: str, k: int, paper: PaperValues) -> dict[str, Any]:
    method = split_label(label)[0]
    row: dict[str, Any] = {}
    if not is_matched(label):
        values = {m: paper.get("table1", PAPER_TASK.get(task, task), method, f"{m}@{k}") for m in METRICS}
        row |= {f"paper_{metric}_percent": value and value.value for metric, value in values.items()}
        row["paper_basis"] = "; ".join(dict.fromkeys(v.provenance for v in values.values() if v))
    if is_matched(label) or label == "estr":
        for artifact in ("table7_matched_budget", "table3_matched_budget"):
            for metric, unit in (("masked_fraction_mean", "percent"), ("masked_entropy_first50", "nats")):
                value = paper.get(artifact, "gsm8k", method, metric)
                if value:
                    row[f"paper_gsm8k_{metric}_{unit}"] = value.value
    return row


def _difference_columns(
    label: str, reference: str, metric: str, papers: dict[str, dict[str, Any]], ours: PairedDifference | None
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    name = f"{metric}_minus_{reference}"
    if ours is not None:
        columns |= {name: ours.mean, f"{name}_low": ours.low, f"{name}_high": ours.high}
    value, base = (papers[key].get(f"paper_{metric}_percent") for key in (label, reference))
    if value is not None and base is not None:
        columns[f"paper_{name}"] = value - base
        if _is_margin_claim(label, reference, metric):
            verdict = margin_verdict(SYNC_MARGIN, ours)
        else:
            verdict = ordering_verdict(value - base, ours)
        columns[f"{metric}_vs_{reference}_verdict"] = verdict
    return columns


def _mean_sd(name: str, values: np.ndarray) -> dict[str, float]:
    """Mean over seeds and standard deviation over seeds (n - 1); NaN where there are too few."""
    return {
        name: float(values.mean()) if len(values) else np.nan,
        f"{name}_sd": float(values.std(ddof=1)) if len(values) > 1 else np.nan,
    }
