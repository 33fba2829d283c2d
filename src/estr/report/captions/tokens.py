"""Captions of the figures drawn from sampled tokens."""

import numpy as np
import pandas as pd

from estr.report.captions.base import Caption
from estr.report.scaling_fit import BEFORE_SWITCH, RANK_SHARE

RULE_NAMES = {"estr": "ESTR", "fixed_magnitude": "the fixed threshold", "icepop": "IcePop", "kpop": "KPop"}


def _entropy_ratio(data: pd.DataFrame) -> str:
    totals = _totals(data)
    tokens = totals["count"].sum()
    bins = data[data["series"] == "bin_mean"]
    common = bins[bins["count"] >= RANK_SHARE * tokens]
    c = data.loc[data["series"] == "boundary_fixed", "log_ratio_abs"].iloc[0]
    parts = [f"{tokens:,.0f} tokens."]
    if len(common) > 2 and common["log_ratio_abs"].nunique() > 1:
        rank = common["entropy"].rank().corr(common["log_ratio_abs"].rank())
        bins_text = f"{len(common)} bins of at least 1 % of the tokens"
        parts.append(f"Rank correlation of mean |δ| with entropy: {rank:.2f} over {bins_text}.")
    for name, own in (("entropy-scaled", "all_estr_only"), ("fixed", "all_fixed_only")):
        chosen = totals.loc[[own, "all_both"]]
        chosen = chosen[chosen["count"] > 0]
        where = ""
        if len(chosen):
            where = f", mean entropy {np.average(chosen['entropy'], weights=chosen['count']):.2f} nats"
        parts.append(f"The {name} rule masks {100 * chosen['count'].sum() / tokens:.3g} %{where}.")
    return " ".join(parts) + f" The fixed threshold that spends the same budget is |δ| ≤ {c:.3g}."


def _bulk_and_tail(data: pd.DataFrame) -> str:
    value, count = (data.drop_duplicates("series").set_index("series")[name] for name in ("value", "count"))
    fit, r_squared = float(value["fit"]), float(value["r_squared"])
    bins = int((data["series"] == "bulk_bin").sum())
    if pd.isna(fit):
        parts = ["Too few bulk bins for a line."]
    else:
        quality = "" if pd.isna(r_squared) else f", R² = {r_squared:.2f}"
        parts = [f"E[δ²] = {fit:.3g} H{quality} over {bins} bins between the 5th and 95th percentile of H."]
    kept, masked = (int(count[f"all_off_mode_{name}"]) for name in ("kept", "masked"))
    if kept + masked:
        parts.append(
            f"ESTR masks {masked} of {kept + masked} off-mode tokens (behavior probability below 0.05 at H < 0.05). "
            f"The arc of Eq. 34 is scaled by {value['arc_factor']:.3g}, with which δ over the arc has a "
            "mean square of 1 among them."
        )
    else:
        parts.append("No off-mode token (behavior probability below 0.05 at H < 0.05).")
    return " ".join(parts)


def _version_switch(data: pd.DataFrame) -> str:
    parts = []
    for quantity, name in (("entropy", "H"), ("log_ratio_abs", "|δ|"), ("z_abs", "|z|")):
        curve = data[data["quantity"] == quantity]
        before = curve[curve["offset"].isin(BEFORE_SWITCH)]
        before = curve[curve["offset"] < 0] if before.empty else before
        at = curve[curve["offset"] == 0]
        if at.empty or before.empty or before["mean"].sum() == 0:
            continue
        ratio = at["mean"].iloc[0] / np.average(before["mean"], weights=before["n_tokens"])
        first, last = before["offset"].min(), before["offset"].max()
        span = f"offset {first}" if first == last else f"offsets {first} to {last}"
        parts.append(f"{name} at the switch is {ratio:.2f} times its mean at {span}.")
    if not parts:
        return "No tokens on both sides of a switch."
    pooled = f"offsets {BEFORE_SWITCH[0]} to {BEFORE_SWITCH[-1]}"
    return " ".join([*parts, f"Ratios of the drawn means, not pooled over all tokens at {pooled} as in the table."])


def _signed_deviation(data: pd.DataFrame) -> str:
    totals = _totals(data)
    bins = data[data["series"] == "bin_mean"].merge(
        data[data["series"] == "bin_rms"], on="entropy", suffixes=("", "_rms")
    )
    bins = bins[(bins["count"] >= RANK_SHARE * totals["count"].sum()) & (bins["log_ratio_rms"] > 0)]
    if bins.empty:
        return "Too few tokens per entropy bin."
    relative = bins["log_ratio"] / bins["log_ratio_rms"]
    most = int(relative.abs().argmax())
    estr_only, fixed_only = (int(totals["count"][f"all_{name}_only"]) for name in ("estr", "fixed"))
    return (
        f"Over {len(bins)} bins of at least 1 % of the tokens the mean δ is farthest from zero at "
        f"H = {bins['entropy'].iloc[most]:.2g}, {relative.iloc[most]:+.2f} times the RMS δ there; the RMS goes from "
        f"{bins['log_ratio_rms'].iloc[0]:.2g} to {bins['log_ratio_rms'].iloc[-1]:.2g} nats. The fixed threshold keeps "
        f"{estr_only:,} tokens that ESTR masks, and masks {fixed_only:,} that ESTR keeps."
    )


def _mask_allocation(data: pd.DataFrame) -> str:
    medians, masked = [], 0.0
    for rule, name in RULE_NAMES.items():
        shares = data[data["series"] == f"share_{rule}"]
        if shares["count"].sum() > 0:
            masked = max(masked, shares["count"].sum())
            medians.append(f"{name} {_median(shares):.2g}")
    if not medians:
        tokens = _totals(data)["count"].sum()
        return f"ESTR masks none of these {tokens:,.0f} tokens, so at equal budget no rule masks any."
    return f"Each rule masks {masked:,.0f} tokens. Median entropy of those, in nats: {', '.join(medians)}."


def _mask_evolution(data: pd.DataFrame) -> str:
    counts = data[data["series"].isin(["all_kept", "all_masked"])].pivot_table("count", "step", "series")
    share = 100 * counts["all_masked"] / counts.sum(axis=1)
    return "Masked, in %: " + ", ".join(f"{value:.2f} at step {step}" for step, value in share.items()) + "."


def _probability(data: pd.DataFrame) -> str:
    c = data.loc[data["series"] == "need_fixed", "discrepancy"].max()
    parts = []
    for series, name in (("share_estr", "ESTR"), ("share_fixed", "the fixed threshold")):
        shares = data[data["series"] == series]
        if shares["count"].sum() > 0:
            low = 100 * shares.loc[shares["probability"] < 0.2 - 1e-9, "discrepancy"].sum()
            high = 100 * shares.loc[shares["probability"] > 0.9 - 1e-9, "discrepancy"].sum()
            parts.append(f"{name} spends {low:.0f} % of its budget at μ < 0.2 and {high:.0f} % at μ > 0.9")
    need = data[data["series"] == "need_estr"]
    if len(need):
        last = need.sort_values("probability").iloc[-1]
        parts.append(
            f"at μ = {last['probability']:.2f} ESTR masks above a median μ|δ| of {last['discrepancy']:.2f}, the fixed "
            f"threshold above {c * last['probability']:.2f}"
        )
    text = "; ".join(parts) or "too few tokens"
    return f"{text[0].upper()}{text[1:]}."


def _totals(data: pd.DataFrame) -> pd.DataFrame:
    """The rows of `masked_series` with the totals, by series."""
    names = ("all_kept_by_both", "all_estr_only", "all_fixed_only", "all_both")
    return data[data["series"].isin(names)].set_index("series").loc[list(names)]


def _median(shares: pd.DataFrame) -> float:
    """Median entropy of the tokens in the bins, evenly spread in each."""
    below = np.append(0, shares["count"].cumsum()) / shares["count"].sum()
    edges = np.append(shares["entropy"], shares["entropy_high"].iloc[-1])
    return float(np.interp(0.5, below, edges))


CAPTIONS: dict[str, Caption] = {
    "fig01_entropy_ratio": Caption(
        "Figure 1: entropy and ratio scale",
        "The per-bin mean |δ| grows with entropy. A fixed threshold admits low-entropy noise (red) and clips "
        "high-entropy exploration (blue); the entropy-scaled boundary separates them. The paper shows BrowseComp-Plus.",
        _entropy_ratio,
    ),
    "fig01b_bulk_and_tail": Caption(
        "Figure 1b: the bulk and the tail behind Figure 1 (not drawn in the paper)",
        "In the bulk the second moment of the log-ratio is proportional to entropy, E[δ²] ≈ a H (Eqs. 1, 28). At low "
        "entropy, off-mode tokens have very large |δ| on concave arcs (Eqs. 5, 6, 34), which ESTR's boundary cuts off.",
        _bulk_and_tail,
    ),
    "fig03_version_switch": Caption(
        "Figure 3: version switch",
        "Entropy and |δ| spike together at a version switch, while the standardized deviation z stays bounded "
        "(Eqs. 3, 4). The paper shows BrowseComp-Plus.",
        _version_switch,
    ),
    "fig10_signed_deviation": Caption(
        "Figure 10: signed deviation",
        "The signed log-ratio is symmetric about zero at every entropy and its typical size grows with entropy; a "
        "fixed threshold retains large low-entropy deviations and discards large high-entropy ones. The paper shows "
        "BrowseComp-Plus.",
        _signed_deviation,
    ),
    "fig11_mask_allocation": Caption(
        "Figure 11: mask allocation",
        "Entropy is a bounded, order-reversing proxy of the tail scale (1 - q)/q (Eqs. 39, 40); the figure shows which "
        "tokens are masked on either scale. Ours adds where IcePop and KPop spend the same budget, with thresholds "
        "calibrated on these very tokens.",
        _mask_allocation,
    ),
    "fig13_mask_evolution": Caption(
        "Figure 13 (v2: Figure 9): mask evolution",
        "At every stage the kept tokens fill the region beneath the boundary, masked ones are mostly low-entropy "
        "outliers, and the masked fraction stays below 1 % through most of training (4.8 % at step 800). The paper "
        "shows BrowseComp-Plus.",
        _mask_evolution,
    ),
    "v2_fig06_probability": Caption(
        "v2 Figure 6: the keep rule in probability space",
        "Masking concentrates on improbable tokens under both rules, and ESTR moves part of the budget toward "
        "confident positions: the discrepancy that a fixed threshold asks for grows linearly in the token's "
        "probability, that of ESTR saturates. The paper shows BrowseComp-Plus.",
        _probability,
    ),
}
