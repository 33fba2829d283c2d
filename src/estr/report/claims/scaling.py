"""The entropy-ratio law on sampled tokens: those of a real language model and of the policies of the ESTR runs.

The claims speak of the paper's measurements without naming a policy, so each must hold on every source: the language
model and the policy of each task. With single seeds of a policy's runs, where there are several, as its spread.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import NoData, NotComputable, Outcome, everywhere, judged, known
from estr.report.claims.spread import seeds_text, single_seeds
from estr.report.scaling_fit import (
    SwitchSpike,
    asymmetry,
    bulk_bins,
    coefficient_of_variation,
    entropy_rank_correlation,
    off_mode,
    off_mode_ratio,
    second_moment_fit,
    switch_spike,
)
from estr.report.tokens import TokenSource

Statistic = Callable[[pd.DataFrame], float]


def deviation_grows_with_entropy(evidence: Evidence, *, scenario: str, rank_correlation_at_least: float) -> Outcome:
    """Fig. 1: Spearman's rho of entropy and mean |delta| over bins that hold enough of the tokens."""
    return _compared(
        evidence,
        scenario,
        entropy_rank_correlation,
        lambda value: value >= rank_correlation_at_least,
        "Spearman rho {:.3f}",
        "too few entropy bins hold 1 % of the tokens",
    )


def second_moment_proportional(evidence: Evidence, *, scenario: str, r_squared_at_least: float) -> Outcome:
    """Eqs. 1, 28: R^2 of the line through the origin."""
    return _compared(
        evidence,
        scenario,
        lambda tokens: second_moment_fit(tokens).r_squared,
        lambda value: value >= r_squared_at_least,
        "R^2 {:.3f}",
        "too few entropy bins in the bulk",
    )


def standardization_flattens(evidence: Evidence, *, scenario: str, ratio_below: float) -> Outcome:
    """Prop. A3: coefficients of variation over the bulk's bins, of E[z^2] over that of E[delta^2]."""
    return _compared(
        evidence,
        scenario,
        _ratio_of_variations,
        lambda value: value < ratio_below,
        "CV of E[z^2] over CV of E[delta^2] {:.3f}",
        "too few entropy bins in the bulk",
    )


def off_mode_tail(evidence: Evidence, *, scenario: str, ratio_at_least: float) -> Outcome:
    """Eqs. 5, 6: 99.9th percentile of |delta| of confident positions' improbable tokens over that of all of theirs."""

    def measure(source: TokenSource) -> Outcome:
        value = known(off_mode_ratio(source.tokens), "no token of probability < 0.05 at H < 0.05")
        return judged(value >= ratio_at_least, f"ratio {value:.2f}, off-mode tokens: {len(off_mode(source.tokens))}")

    return _on_every_source(evidence, scenario, measure)


def symmetric_about_zero(evidence: Evidence, *, scenario: str, share_at_most: float) -> Outcome:
    """Fig. 10: the largest |mean delta| / RMS delta of the bulk's bins."""
    return _compared(
        evidence,
        scenario,
        asymmetry,
        lambda value: value <= share_at_most,
        "largest |mean delta| / RMS delta {:.3f}",
        "too few entropy bins in the bulk",
    )


def spikes_at_switch(evidence: Evidence, *, scenario: str) -> Outcome:
    """Sec. 3.2, Fig. 3: H and |delta| are larger at a switch than before it, beyond the 95 % interval."""

    def measure(source: TokenSource) -> Outcome:
        spikes, alike = _spikes(source), _spikes(source, matched=True)
        names = {"H": "entropy", "|delta|": "log_ratio_abs"}
        texts = [
            f"{name} {spikes[key].before:.3g} -> {spikes[key].at:.3g} (difference [{spikes[key].difference_low:.2g}, "
            f"{spikes[key].difference_high:.2g}], position-matched [{alike[key].difference_low:.2g}, "
            f"{alike[key].difference_high:.2g}])"
            for name, key in names.items()
        ]
        held = all(spikes[key].difference_low > 0 for key in names.values())
        return judged(held, f"{', '.join(texts)}, {spikes['entropy'].tokens_at} switched tokens")

    return _on_every_source(evidence, scenario, measure)


def standardized_bounded_at_switch(evidence: Evidence, *, scenario: str, share_below: float) -> Outcome:
    """Eq. 4: z^2 rises at a switch by less than a share of what delta^2 does, both as ratio at / before minus 1.

    z is read as its square, as Eq. 4 has it: z itself has mean 0, and |z| against delta^2 would be below half in any
    spike, even where entropy stands still.
    """

    def measure(source: TokenSource) -> Outcome:
        spikes = _spikes(source)
        rises = {name: spikes[name].ratio - 1 for name in ("z_abs", "z_sq", "log_ratio_sq")}
        known(sum(rises.values()), "all deviations before the switch are 0")
        z, square = spikes["z_sq"], spikes["log_ratio_sq"]
        if square.ratio <= 1:
            raise NotComputable(f"delta^2 does not rise at a switch ({square.ratio:.2f} of before), nothing to halve")
        return judged(
            rises["z_sq"] < share_below * rises["log_ratio_sq"],
            f"z^2 changes by {100 * rises['z_sq']:+.1f} % [{100 * (z.ratio_low - 1):+.1f}, "
            f"{100 * (z.ratio_high - 1):+.1f}], delta^2 by {100 * rises['log_ratio_sq']:+.1f} % "
            f"[{100 * (square.ratio_low - 1):+.1f}, {100 * (square.ratio_high - 1):+.1f}], "
            f"|z| by {100 * rises['z_abs']:+.1f} %",
        )

    return _on_every_source(evidence, scenario, measure)


def _on_every_source(evidence: Evidence, scenario: str, measure: Callable[[TokenSource], Outcome]) -> Outcome:
    model, policies = evidence.model_tokens(scenario), evidence.policy_tokens()
    parts: dict[str, TokenSource | None] = {source.heading: source for source in (*model, *policies)}
    lacking = {f"a language model, {scenario}": model, "ESTR's policies": policies}
    parts |= {name: None for name, sources in lacking.items() if not sources}

    def measured(source: TokenSource | None) -> Outcome:
        if source is None:
            raise NoData("no tokens")
        return measure(source)

    return everywhere(parts, measured)


def _compared(
    evidence: Evidence, scenario: str, statistic: Statistic, holds: Callable[[float], bool], text: str, missing: str
) -> Outcome:
    """A statistic of all tokens of a source, with that of single runs as its spread."""

    def measure(source: TokenSource) -> Outcome:
        value = known(statistic(source.tokens), missing)
        size = f"{len(source.tokens):,} tokens"
        if not source.runs:
            return judged(holds(value), f"{text.format(value)}, {size}")
        seeds = [statistic(tokens) for _, tokens in source.tokens.groupby("run")]
        spread = single_seeds([seed for seed in seeds if np.isfinite(seed)], ".3f")
        return judged(holds(value), f"{text.format(value)}{spread}, {size}, {seeds_text(source.runs)}")

    return _on_every_source(evidence, scenario, measure)


def _ratio_of_variations(tokens: pd.DataFrame) -> float:
    bins = bulk_bins(tokens)
    scaled, plain = (coefficient_of_variation(bins[name]) for name in ("z_second_moment", "second_moment"))
    return scaled / plain if plain > 0 else float("nan")


def _spikes(source: TokenSource, *, matched: bool = False) -> dict[str, SwitchSpike]:
    spikes = switch_spike(source.tokens, matched=matched)
    if not spikes:
        raise NoData("no sampled sequence switches version")
    return spikes
