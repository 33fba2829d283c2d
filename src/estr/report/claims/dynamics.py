"""Training dynamics on BrowseComp-Plus: entropy, turns, responses, reward."""

import numpy as np

from estr.report.claims.evidence import ESTR, Evidence
from estr.report.claims.outcome import Outcome, judged, known
from estr.report.claims.spread import last_quarter, mean_of, seeds_text, single_seeds, training
from estr.report.labels import short_name
from estr.report.staleness_table import kendall_tau


def entropy_rises(evidence: Evidence, *, task: str, tau_above: float) -> Outcome:
    """Kendall's tau of ESTR's entropy against the step, mean over seeds."""
    runs = evidence.trained(task, ESTR)
    taus = [kendall_tau(run.metrics["step"].tolist(), training("entropy")(run).tolist()) for run in runs]
    tau = known(float(np.mean(taus)), "the entropy is constant")
    start = np.mean([training("entropy")(run)[: max(1, run.steps // 4)].mean() for run in runs])
    end = mean_of(runs, last_quarter("entropy"))
    return judged(
        tau > tau_above,
        f"tau {tau:.2f}{single_seeds(taus, '.2f')}, {start:.3f} nats in the first quarter, {end:.3f} in the last, "
        f"{seeds_text(runs)}",
    )


def fewest_turns_highest_reward(evidence: Evidence, *, task: str, others: list[str]) -> Outcome:
    """Over the last quarter of training: fewest turns, shortest responses and highest reward are ESTR's."""
    groups = {label: evidence.trained(task, label) for label in (ESTR, *others)}
    best, texts = [], []
    for column, name, pick, spec in (
        ("turns", "fewest turns", min, ".2f"),
        ("response_length", "shortest responses", min, ".1f"),
        ("reward", "highest reward", max, ".3f"),
    ):
        means = {
            label: known(mean_of(runs, last_quarter(column)), f"{label} has steps without {column}")
            for label, runs in groups.items()
        }
        winners = [label for label, mean in means.items() if mean == pick(means.values())]
        best.append(winners == [ESTR])
        values = ", ".join(f"{short_name(label)} {mean:{spec}}" for label, mean in means.items())
        texts.append(f"{name}: {' and '.join(map(short_name, winners))} ({values})")
    return judged(all(best), f"{'; '.join(texts)}; {seeds_text(groups[ESTR])}")
