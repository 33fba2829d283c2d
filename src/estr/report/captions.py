"""What the paper claims in each figure, and what our data show, computed from the plotted numbers of each task."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from estr.report.labels import display, is_matched, order, task_name


@dataclass(frozen=True)
class Caption:
    """A title, the paper's claim, and what our data show: a function from the figure's CSV, of one task, to text."""

    title: str
    paper: str
    say: Callable[[pd.DataFrame], str]

    def measured(self, data: pd.DataFrame) -> list[str]:
        """What the figure's CSV shows, a text per task."""
        if "task" not in data:
            return [self.say(data)]
        texts = []
        for task, rows in data.groupby("task", sort=False):
            name = rows["title"].iloc[0] if "title" in rows else task_name(str(task))
            texts.append(f"{name}: {self.say(rows)}")
        return texts


def _entropy_ratio(data: pd.DataFrame) -> str:
    bins = data[data["series"] == "bin_mean"]
    bulk = bins[bins["count"] >= 0.01 * bins["count"].sum()]
    tokens = data.groupby("series")["count"].sum()
    points = data[data["series"].isin(["estr_only", "fixed_only", "both"])]
    total = tokens.reindex(["kept_by_both", "estr_only", "fixed_only", "both"]).sum()
    masked = {
        "entropy-scaled": points[points["series"] != "fixed_only"]["entropy"],
        "fixed": points[points["series"] != "estr_only"]["entropy"],
    }
    c = data.loc[data["series"] == "boundary_fixed", "log_ratio_abs"].iloc[0]
    parts = [f"{total:,.0f} tokens."]
    if len(bulk) > 2:
        rank = bulk["entropy"].rank().corr(bulk["log_ratio_abs"].rank())
        bins_text = f"{len(bulk)} bins of at least 1 % of the tokens"
        parts.append(f"Rank correlation of mean |δ| with entropy: {rank:.2f} over {bins_text}.")
    for name, entropy in masked.items():
        where = f", mean entropy {entropy.mean():.2f} nats" if len(entropy) else ""
        parts.append(f"The {name} rule masks {100 * len(entropy) / total:.3g} %{where}.")
    return " ".join(parts) + f" The fixed threshold that spends the same budget is |δ| ≤ {c:.3g}."


def _version_switch(data: pd.DataFrame) -> str:
    parts = []
    for quantity, name in (("entropy", "H"), ("log_ratio_abs", "|δ|"), ("z_abs", "|z|")):
        curve = data[data["quantity"] == quantity]
        before = curve[curve["offset"] < -2] if (curve["offset"] < -2).any() else curve[curve["offset"] < 0]
        at = curve[curve["offset"] == 0]
        if at.empty or before.empty:
            continue
        ratio = at["mean"].iloc[0] / np.average(before["mean"], weights=before["n_tokens"])
        span = f"{before['offset'].min()} to {before['offset'].max()}"
        parts.append(f"{name} at the switch is {ratio:.2f} times its mean at offsets {span}.")
    return " ".join(parts) or "No tokens on both sides of a switch."


def _last_quarter(data: pd.DataFrame, metric: str) -> pd.Series:
    rows = data[(data["metric"] == metric) & (data["step"] > 0.75 * data["step"].max())]
    means: pd.Series = rows.groupby("label")["raw"].mean()
    return means.reindex(sorted(means.index, key=order))


def _listed(values: pd.Series, spec: str) -> str:
    return ", ".join(f"{display(str(label))} {value:{spec}}" for label, value in values.items())


def _kl(data: pd.DataFrame) -> str:
    means = _last_quarter(data, "kl_to_behavior")
    return f"Mean over the last quarter, in 10⁻³ nats: {_listed(1000 * means, '.3g')}.{_best('Smallest', -means)}"


def _policy_entropy(data: pd.DataFrame) -> str:
    last = _last_quarter(data, "entropy")
    rows = data[(data["metric"] == "entropy") & (data["step"] <= max(1, 0.25 * data["step"].max()))]
    first = rows.groupby("label")["raw"].mean()
    changes = ", ".join(f"{display(str(label))} {first[label]:.3f} to {value:.3f}" for label, value in last.items())
    return f"Mean of the first and of the last quarter, in nats: {changes}."


def _reward(data: pd.DataFrame) -> str:
    means = _last_quarter(data, "reward")
    return f"Mean over the last quarter: {_listed(means, '.3f')}.{_best('Highest', means)}"


def _best(what: str, means: pd.Series) -> str:
    """The label with the largest mean, sync and the matched-budget variants left out."""
    chosen = means[[not is_matched(label) and label != "sync" for label in means.index]]
    if chosen.empty:
        return ""
    return f" {what} of the asynchronous methods at published thresholds: {display(str(chosen.idxmax()))}."


def _masking(data: pd.DataFrame) -> str:
    masked = data[data["metric"] == "masked_fraction"].groupby("label")["raw"].mean()
    masked = masked.reindex(sorted(masked.index, key=order))
    text = f"Masked over all steps, in %: {_listed(100 * masked, '.3g') or 'no method that masks'}."
    others = masked[[label != "estr" and not is_matched(label) for label in masked.index]]
    if masked.get("estr", 0) > 0 and len(others):
        ratios = _range(others / masked["estr"])
        text += f" The other rules at published thresholds mask {ratios} times as many as ESTR."
    deviation = _listed(_last_quarter(data, "ratio_deviation"), ".3g")
    return f"{text} Ratio deviation, mean over the last quarter: {deviation}."


def _edge(data: pd.DataFrame) -> str:
    fallen = data[data["collapsed_share"] > 0.5]
    if fallen.empty:
        return f"No setting of {len(data)} collapsed in most seeds."
    first = fallen.sort_values(["learning_rate", "inter", "intra"]).iloc[0]
    return (
        f"{len(fallen)} of {len(data)} settings collapsed in most seeds, the mildest learning rate at "
        f"{first['learning_rate']:.3g} (intra {first['intra']:g}, inter {first['inter']:g})."
    )


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


CAPTIONS = {
    "fig01_entropy_ratio": Caption(
        "Figure 1: entropy and ratio scale",
        "The per-bin mean |δ| grows with entropy. A fixed threshold admits low-entropy noise (red) and clips "
        "high-entropy exploration (blue); the entropy-scaled boundary separates them. The paper shows BrowseComp-Plus.",
        _entropy_ratio,
    ),
    "fig03_version_switch": Caption(
        "Figure 3: version switch",
        "Entropy and |δ| spike together at a version switch, while the standardized deviation z stays bounded "
        "(Eq. 4). The paper shows BrowseComp-Plus.",
        _version_switch,
    ),
    "fig05a_entropy": Caption(
        "Figure 5a: policy entropy",
        "On BrowseComp-Plus ESTR's entropy rises steadily. On GSM8K (Figure 14a) IcePop's and vanilla async's spike "
        "and ESTR's stays low and stable; on DAPO-Math (Figure 15b) vanilla async's rises sharply, IcePop's and KPop's "
        "fall towards zero and ESTR's rises gradually.",
        _policy_entropy,
    ),
    "fig05b_kl": Caption(
        "Figure 5b: KL to the behavior policy",
        "ESTR has the best train-inference consistency: the smallest KL between rollout and target policy. "
        "The paper shows BrowseComp-Plus only.",
        _kl,
    ),
    "fig07_reward": Caption(
        "Figures 6, 7 and 12d: training reward",
        "On GSM8K (Figure 6) IcePop and KPop drop irreversibly within a few hundred steps and ESTR ends highest of the "
        "asynchronous methods. On DAPO-Math (Figure 7) vanilla async collapses early and for good, IcePop and KPop "
        "plateau at a lower reward and ESTR improves throughout. On BrowseComp-Plus (Figure 12d) ESTR ends highest, "
        "vanilla async lowest. The validation accuracy of Figure 4 has no counterpart here: we evaluate at the end.",
        _reward,
    ),
    "fig08_masking": Caption(
        "Figure 8: masked fraction and ratio deviation",
        "ESTR masks the fewest tokens, about an order of magnitude below the fixed-threshold rules, and keeps the "
        "lowest and steadiest ratio deviation (DAPO-Math). On GSM8K (Figure 14b) IcePop's masked fraction drifts up "
        "by orders of magnitude.",
        _masking,
    ),
    "stability_edge": Caption(
        "Stability edge of vanilla async (not in the paper)",
        "The paper only states that vanilla async collapses at its staleness; this scan shows where ours does.",
        _edge,
    ),
}
