"""Captions of the training curves; those of the sweeps are in `sweeps`."""

import pandas as pd

from estr.report.captions.base import Caption, best, last_quarter, listed, plus_minus, span
from estr.report.labels import COMPONENTS, display, is_matched, order


def with_spread(data: pd.DataFrame, metric: str, spec: str, factor: float = 1.0) -> str:
    """Means over the last quarter, ± the mean sd over seeds of the smoothed curves there."""
    return listed(factor * last_quarter(data, metric), spec, factor * _last_quarter_sd(data, metric))


def _last_quarter_sd(data: pd.DataFrame, metric: str) -> pd.Series:
    return _mean_sd(data[data["step"] > 0.75 * data["step"].max()], metric)


def _mean_sd(data: pd.DataFrame, metric: str) -> pd.Series:
    """Mean over steps of the sd over seeds of the smoothed curves."""
    return data[data["metric"] == metric].groupby("label")["sd"].mean()


def _last_quarter_text(data: pd.DataFrame, unit: str = "") -> str:
    spread = " (± mean over steps of the smoothed curves' sd over seeds)" if data["n_seeds"].max() > 1 else ""
    return f"Mean over the last quarter{spread}{unit}"


def _of_all_steps(data: pd.DataFrame, metric: str) -> pd.Series:
    means = data[data["metric"] == metric].groupby("label")["raw"].mean()
    return means.reindex(sorted(means.index, key=order))


def _validation(data: pd.DataFrame) -> str:
    rows = data[data["label"] != "sync"].pivot_table(index="step", columns="label", values="mean")
    last = data[data["step"] == data["step"].max()].set_index("label")
    ends = last["mean"].reindex(sorted(last.index, key=order))
    text = f"At the last validation (step {data['step'].max()}), in %: {listed(100 * ends, '.1f', 100 * last['sd'])}."
    if "estr" in rows and len(rows.columns) > 1:
        ahead = (rows["estr"] > rows.drop(columns="estr").max(axis=1)).sum()
        text += f" ESTR is above every other asynchronous method at {ahead} of {len(rows)} validations."
    return text


def _policy_entropy(data: pd.DataFrame) -> str:
    last = last_quarter(data, "entropy")
    rows = data[(data["metric"] == "entropy") & (data["step"] <= max(1, 0.25 * data["step"].max()))]
    first = rows.groupby("label")["raw"].mean()
    sds = _last_quarter_sd(data, "entropy")
    changes = ", ".join(
        f"{display(str(label))} {first[label]:.3f} to {value:.3f}{plus_minus(sds.get(label), '.3f')}"
        for label, value in last.items()
    )
    return f"Mean of the first and of the last quarter, in nats: {changes}."


def _kl(data: pd.DataFrame) -> str:
    means = last_quarter(data, "kl_to_behavior")
    listing = with_spread(data, "kl_to_behavior", ".3g", 1000)
    return f"{_last_quarter_text(data, ', in 10⁻³ nats')}: {listing}.{best('Smallest', -means)}"


def _reward(data: pd.DataFrame) -> str:
    means = last_quarter(data, "reward")
    return f"{_all_rewards(data)}{best('Highest', means)}"


def _masked(data: pd.DataFrame) -> str:
    masked = _of_all_steps(data, "masked_fraction")
    listing = listed(100 * masked, ".3g", 100 * _mean_sd(data, "masked_fraction"))
    return f"Masked over all steps, in %: {listing or 'no method that masks'}."


def _masking(data: pd.DataFrame) -> str:
    masked = _of_all_steps(data, "masked_fraction")
    text = _masked(data)
    others = masked[[label != "estr" and not is_matched(label) for label in masked.index]]
    if masked.get("estr", 0) > 0 and len(others):
        ratios = span(others / masked["estr"])
        text += f" The other rules at published thresholds mask {ratios} times as many as ESTR."
    deviation = with_spread(data, "ratio_deviation", ".3g")
    return f"{text} Ratio deviation, mean over the last quarter: {deviation}."


def _browsecomp_plus(data: pd.DataFrame) -> str:
    peaks = data[data["metric"] == "grad_norm"].groupby("label")["raw"].max()
    parts = [f"Largest gradient norm: {_range(peaks, '.2f')}.", "Mean over the last quarter:"]
    signals = {
        "turns": ("turns", ".2f"),
        "response_length": ("response length", ".1f"),
        "reward": ("reward", ".3f"),
        "log_perplexity": ("log-perplexity", ".3f"),
    }
    listing = [f"{name} {_range(last_quarter(data, metric), spec)}" for metric, (name, spec) in signals.items()]
    return " ".join([*parts, "; ".join(listing) + ".", "The range is that of the asynchronous methods."])


def _range(means: pd.Series, spec: str) -> str:
    """Lowest and highest of the asynchronous methods, and where ESTR and sync are."""
    chosen = means.drop("sync", errors="ignore")
    if chosen.empty:
        chosen = means
    low, high = str(chosen.idxmin()), str(chosen.idxmax())
    ends = f"{chosen[low]:{spec}} ({display(low)}) to {chosen[high]:{spec}} ({display(high)})"
    named = [f"{display(label)} {means[label]:{spec}}" for label in ("estr", "sync") if label in means]
    return ", ".join([ends, *named])


def _gsm8k(data: pd.DataFrame) -> str:
    text = f"{_policy_entropy(data)} {_masked(data)} Accuracy, {_lower_first(_reward(data))}"
    rewards = last_quarter(data, "reward")
    if {"estr", "sync"} <= set(rewards.index):
        points = 100 * (rewards["estr"] - rewards["sync"])
        text += f" ESTR minus sync: {points:+.1f} percentage points."
    return text


def _dapo_math(data: pd.DataFrame) -> str:
    masked = data[data["metric"] == "sequences_masked_fraction"]
    means = 100 * _of_all_steps(data, "sequences_masked_fraction")
    peaks, sds = 100 * masked.groupby("label")["raw"].max(), 100 * _mean_sd(data, "sequences_masked_fraction")
    listing = [
        f"{display(label)} {mean:.3g}{plus_minus(sds[label], '.2g')} (at most {peaks[label]:.3g})"
        for label, mean in zip(map(str, means.index), means, strict=True)
    ]
    sequences = ", ".join(listing) or "no method that masks"
    return f"Sequences with a masked token, mean over all steps in %: {sequences}. {_policy_entropy(data)}"


def _matched_budget(data: pd.DataFrame) -> str:
    rows = data[data["metric"] == "masked_fraction"]
    first = rows[rows["step"] <= max(1, 0.25 * data["step"].max())].groupby("label")["raw"].mean()
    last = last_quarter(data, "masked_fraction")
    drift = ", ".join(
        f"{display(str(label))} {100 * first[label]:.3g} to {100 * last[label]:.3g}" for label in last.index
    )
    return f"Masked in the first and in the last quarter, in %: {drift}. Reward, {_lower_first(_all_rewards(data))}"


def _all_rewards(data: pd.DataFrame) -> str:
    return f"{_last_quarter_text(data)}: {with_spread(data, 'reward', '.3f')}."


def _components(data: pd.DataFrame) -> str:
    rewards = last_quarter(data, "reward")
    text = f"Reward, {_lower_first(_all_rewards(data))} {_masked(data)}"
    arms = [label for label in (*COMPONENTS, "estr") if label in rewards]
    return f"{text} Highest reward: {display(str(rewards[arms].idxmax()))}."


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


CAPTIONS: dict[str, Caption] = {
    "fig04_validation": Caption(
        "Figure 4: validation accuracy",
        "On BrowseComp-Plus ESTR's validation accuracy is above that of every other asynchronous method throughout "
        "training; v2 has it end 2.6 % above the strongest.",
        _validation,
    ),
    "fig05a_entropy": Caption(
        "Figure 5a: policy entropy",
        "On BrowseComp-Plus ESTR's entropy rises steadily, from 0.23 to 0.60 nats (v2), and no other method's does. "
        "GSM8K is Figure 14a, DAPO-Math Figure 15b.",
        _policy_entropy,
    ),
    "fig05b_kl": Caption(
        "Figure 5b: KL to the behavior policy",
        "ESTR has the best train-inference consistency: the smallest KL between rollout and target policy. In v2 "
        "(Figure 8a) it falls for every method, and ESTR and M2PO end lowest. The paper shows BrowseComp-Plus only.",
        _kl,
    ),
    "fig06_07_reward": Caption(
        "Figures 6 and 7: training reward",
        "On GSM8K (Figure 6) IcePop and KPop drop irreversibly within a few hundred steps and ESTR ends highest of the "
        "asynchronous methods. On DAPO-Math (Figure 7) vanilla async collapses early and for good, IcePop and KPop "
        "plateau at a lower reward and ESTR improves throughout; in v2 M2PO saturates below it. BrowseComp-Plus is "
        "Figure 12d.",
        _reward,
    ),
    "fig08_masking": Caption(
        "Figure 8: masked fraction and ratio deviation",
        "On DAPO-Math ESTR masks the fewest tokens, about an order of magnitude below the fixed-threshold rules, and "
        "keeps the lowest and steadiest ratio deviation; IcePop's drifts up late. In v2 M2PO masks six times as many "
        "tokens as ESTR and ends with the largest deviation.",
        _masking,
    ),
    "fig12_browsecomp_plus": Caption(
        "Figure 12a-e: BrowseComp-Plus",
        "Vanilla async's gradient norm spikes and IcePop's and KPop's drift up; ESTR's stays low. ESTR ends with the "
        "fewest turns, the shortest responses, the highest reward and the highest log-perplexity, which rises "
        "smoothly; vanilla async ends with the lowest reward.",
        _browsecomp_plus,
    ),
    "fig14_gsm8k": Caption(
        "Figure 14: GSM8K",
        "IcePop's entropy spikes and its masked fraction drifts up by orders of magnitude, vanilla async's entropy "
        "spikes late; ESTR's entropy and masked fraction stay low and stable. ESTR's accuracy follows the synchronous "
        "run within about one point; async, IcePop and KPop collapse and do not recover. In v2 M2PO is stable as well "
        "and ends at 0.94 against ESTR's 0.96.",
        _gsm8k,
    ),
    "fig15ab_dapo_math": Caption(
        "Figure 15a, b: DAPO-Math",
        "Sequences with a masked token: 40 to 65 % under IcePop (v2: 40 to 70 %), large spikes under KPop, below 5 % "
        "under ESTR (v2: 8 %, but for one spike). Vanilla async's entropy rises sharply, IcePop's and KPop's fall "
        "towards zero, and ESTR's rises gradually (v2: to 0.45 nats).",
        _dapo_math,
    ),
    "matched_budget": Caption(
        "Matched budget: masked fraction and reward (curves of v1 Table 7, v2 Table 3)",
        "The paper tabulates these runs and draws no curves. With ESTR's budget at the start IcePop's masked fraction "
        "drifts from 0.07 to 19 % and its training collapses; KPop holds 0.25 % (v1) or drifts above 17 % (v2) and "
        "collapses as well; M2PO holds 0.24 % and ends below ESTR, which masks 0.12 %.",
        _matched_budget,
    ),
    "v2_components": Caption(
        "Component ablation: reward and masked fraction (curves of v2 Table 2)",
        "The paper tabulates avg@1 and draws no curves: fixed threshold 32.53, with high-entropy tokens preserved "
        "35.08, with low-entropy outliers suppressed 34.73, with both (ESTR) 37.34.",
        _components,
    ),
}
