"""What the paper claims in each figure, and what our data show, computed from the plotted numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from estr.report.labels import display, is_matched, order


@dataclass(frozen=True)
class Caption:
    """A title, the paper's claim, and the function that says from the figure's CSV what our data show."""

    title: str
    paper: str
    measured: Callable[[pd.DataFrame], str]


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
    best = f"Smallest {_AMONG}: {display(str(_asynchronous(means).idxmin()))}."
    return f"Mean over the last quarter, in 10⁻³ nats: {_listed(1000 * means, '.3g')}. {best}"


def _reward(data: pd.DataFrame) -> str:
    means = _last_quarter(data, "reward")
    best = f"Highest {_AMONG}: {display(str(_asynchronous(means).idxmax()))}."
    return f"Mean over the last quarter: {_listed(means, '.3f')}. {best}"


_AMONG = "of the asynchronous methods at published thresholds"


def _asynchronous(means: pd.Series) -> pd.Series:
    """Without sync and without the matched-budget variants; all of them if nothing else was run."""
    chosen = means[[not is_matched(label) and label != "sync" for label in means.index]]
    return chosen if len(chosen) else means


def _masking(data: pd.DataFrame) -> str:
    masked = data[data["metric"] == "masked_fraction"].groupby("label")["raw"].mean()
    masked = masked.reindex(sorted(masked.index, key=order))
    text = f"Masked over all steps, in %: {_listed(100 * masked, '.3g')}."
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
        "high-entropy exploration (blue); the entropy-scaled boundary separates them.",
        _entropy_ratio,
    ),
    "fig03_version_switch": Caption(
        "Figure 3: version switch",
        "Entropy and |δ| spike together at a version switch, while the standardized deviation z stays bounded (Eq. 4).",
        _version_switch,
    ),
    "fig05b_kl": Caption(
        "Figure 5b: KL to the behavior policy",
        "ESTR has the best train-inference consistency: the smallest KL between rollout and target policy "
        "(the paper shows BrowseComp-Plus).",
        _kl,
    ),
    "fig07_reward": Caption(
        "Figure 7: training reward",
        "Vanilla async collapses early and for good; IcePop and KPop plateau at a lower reward; ESTR "
        "improves throughout and ends highest of the asynchronous methods.",
        _reward,
    ),
    "fig08_masking": Caption(
        "Figure 8: masked fraction and ratio deviation",
        "ESTR masks the fewest tokens, about an order of magnitude below the fixed-threshold rules, and "
        "keeps the lowest and steadiest ratio deviation.",
        _masking,
    ),
    "stability_edge": Caption(
        "Stability edge of vanilla async (not in the paper)",
        "The paper only states that vanilla async collapses at its staleness; this scan shows where ours does.",
        _edge,
    ),
}
