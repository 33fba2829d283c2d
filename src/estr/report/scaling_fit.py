"""The entropy-ratio law measured on sampled tokens: bulk, tail, symmetry, version switches.

Every function is pure and takes a frame with a row per token: entropy and log_ratio (nats, finite), what else it needs
is said there. NaN stands for what the tokens cannot say (no off-mode token, no two bins). Bins hold at least
MIN_BIN_TOKENS tokens, others are left out.

Two ways of binning, both fixed before any fit:

- `entropy_bins`: ENTROPY_BINS bins over all entropies, equally wide in sqrt(H) as the axis of Figure 1 is.
- `bulk_bins`: BULK_BINS bins equally wide in H between the 5th and the 95th percentile of H. The law (Eq. 28) is linear
  in H, so the line is fitted where entropies spread evenly; bins of equal count would lie nearly all at H = 0, where
  half of a policy's tokens are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from estr.algorithm.scaling_law import BinnedMoments, ScalingFit, arc_envelope, binary_entropy, fit_through_origin

EPS = 0.01  # entropy floor of z = delta / sqrt(H + eps), the paper's
ENTROPY_BINS = 24
BULK_BINS = 20
BULK = (0.05, 0.95)  # percentiles of H
MIN_BIN_TOKENS = 30
RANK_SHARE = 0.01  # smallest share of the tokens in a bin that counts for the rank correlation
OFF_MODE_ENTROPY, OFF_MODE_PROBABILITY, OFF_MODE_QUANTILE = 0.05, 0.05, 0.999
BEFORE_SWITCH = range(-10, -2)  # offsets that a switch is compared with
RESAMPLES = 500
SWITCH_QUANTITIES = ("entropy", "log_ratio_abs", "log_ratio_sq", "z_abs", "z_sq")
BIN_COLUMNS = ("mean_entropy", "mean_abs", "second_moment", "z_second_moment", "mean_signed", "count")


def entropy_bins(tokens: pd.DataFrame) -> pd.DataFrame:
    """BIN_COLUMNS of bins over all entropies, equally wide in sqrt(H); see `binned`."""
    top = max(float(tokens["entropy"].max()), 1e-3)
    return binned(tokens, np.linspace(0, np.sqrt(top), ENTROPY_BINS + 1) ** 2)


def bulk_bins(tokens: pd.DataFrame) -> pd.DataFrame:
    """BIN_COLUMNS of bins equally wide in H between the percentiles of BULK; empty if these are equal."""
    return binned(tokens, bulk_edges(tokens))


def bulk_edges(tokens: pd.DataFrame) -> np.ndarray:
    """BULK_BINS + 1 entropies from one percentile of BULK to the other; none if these are equal."""
    low, high = tokens["entropy"].astype(np.float64).quantile(list(BULK))
    return np.linspace(low, high, BULK_BINS + 1) if high > low else np.array([])


def binned(tokens: pd.DataFrame, edges: np.ndarray) -> pd.DataFrame:
    """A row per entropy bin that holds enough tokens, in order of entropy.

    Columns: mean_entropy and mean_abs = E|delta| (nats), second_moment = E[delta^2] and mean_signed = E[delta],
    z_second_moment = E[delta^2 / (H + eps)], count. Bins are [edge, next edge), the last one closed; tokens outside
    the edges are left out.
    """
    entropy, delta = tokens["entropy"].to_numpy(np.float64), tokens["log_ratio"].to_numpy(np.float64)
    bins = len(edges) - 1
    if bins < 1:
        return pd.DataFrame(columns=list(BIN_COLUMNS), dtype=np.float64)
    inside = (entropy >= edges[0]) & (entropy <= edges[-1])
    entropy, delta = entropy[inside], delta[inside]
    index = np.digitize(entropy, edges[1:-1])
    count = np.bincount(index, minlength=bins)
    enough = count >= MIN_BIN_TOKENS
    square = delta**2
    values = (entropy, np.abs(delta), square, square / (entropy.clip(min=0) + EPS), delta)
    sums = (np.bincount(index, weights=value, minlength=bins)[enough] for value in values)
    means = [total / count[enough] for total in sums]
    return pd.DataFrame(dict(zip(BIN_COLUMNS, [*means, count[enough]], strict=True)))


def common_bins(tokens: pd.DataFrame) -> pd.DataFrame:
    """The `entropy_bins` that hold at least RANK_SHARE of the tokens."""
    bins = entropy_bins(tokens)
    common: pd.DataFrame = bins[bins["count"] >= RANK_SHARE * len(tokens)]
    return common


def entropy_rank_correlation(tokens: pd.DataFrame) -> float:
    """Spearman's rho of mean H and mean |delta| over the `common_bins`."""
    bins = common_bins(tokens)
    if len(bins) < 3 or bins["mean_abs"].nunique() < 2:
        return float("nan")
    return float(bins["mean_entropy"].rank().corr(bins["mean_abs"].rank()))


def second_moment_fit(tokens: pd.DataFrame) -> ScalingFit:
    """a_B and R^2 of E[delta^2 | bin] = a_B mean(H) over the `bulk_bins` (Eq. 28); NaN for fewer than two bins."""
    bins = bulk_bins(tokens)
    if len(bins) < 2 or not bins["mean_entropy"].gt(0).any():
        return ScalingFit(float("nan"), float("nan"))
    entropy, moment = (torch.tensor(bins[name].to_numpy()) for name in ("mean_entropy", "second_moment"))
    return fit_through_origin(BinnedMoments(entropy, moment, torch.tensor(bins["count"].to_numpy())))


def coefficient_of_variation(values: pd.Series | np.ndarray | Sequence[float]) -> float:
    """Standard deviation over mean of the values, each with weight 1; e.g. of a column of `bulk_bins`."""
    array = np.asarray(values, np.float64)
    if len(array) < 2 or array.mean() == 0:
        return float("nan")
    return float(array.std() / array.mean())


def asymmetry(tokens: pd.DataFrame) -> float:
    """Largest |E[delta]| / RMS delta of the `bulk_bins`; 0 means symmetric about zero in every bin."""
    bins = bulk_bins(tokens)
    bins = bins[bins["second_moment"] > 0]
    if bins.empty:
        return float("nan")
    return float((bins["mean_signed"].abs() / np.sqrt(bins["second_moment"])).max())


def off_mode(tokens: pd.DataFrame) -> pd.DataFrame:
    """The tokens at H < 0.05 whose behavior probability is below 0.05; needs behavior_logprob."""
    confident = tokens["entropy"] < OFF_MODE_ENTROPY
    chosen: pd.DataFrame = tokens[confident & (tokens["behavior_logprob"] < np.log(OFF_MODE_PROBABILITY))]
    return chosen


def off_mode_ratio(tokens: pd.DataFrame) -> float:
    """99.9th percentile of |delta| of the `off_mode` tokens over that of all tokens at H < 0.05."""
    confident = tokens.loc[tokens["entropy"] < OFF_MODE_ENTROPY, "log_ratio"].abs()
    tail = off_mode(tokens)["log_ratio"].abs()
    if tail.empty or not confident.quantile(OFF_MODE_QUANTILE) > 0:
        return float("nan")
    return float(tail.quantile(OFF_MODE_QUANTILE) / confident.quantile(OFF_MODE_QUANTILE))


def envelope(entropy: np.ndarray) -> np.ndarray:
    """The arc of Eq. 34 at entropies in (0, log 2): sqrt((1 - log u) / H) of the u <= 1/2 with H_bin(u) = H."""
    mass = np.geomspace(1e-12, 0.5, 20_000)
    u = np.interp(entropy, binary_entropy(torch.from_numpy(mass)).numpy(), mass)
    arc: np.ndarray = arc_envelope(torch.from_numpy(u)).numpy()
    return arc


def envelope_factor(tokens: pd.DataFrame) -> float:
    """The factor of `envelope` with which delta over the arc has a mean square of 1 among the `off_mode` tokens.

    Eq. 34 gives the scale, a root mean square, up to that factor.
    """
    tail = off_mode(tokens)
    tail = tail[tail["entropy"] > 0]
    if tail.empty:
        return float("nan")
    relative = tail["log_ratio"].to_numpy(np.float64) / envelope(tail["entropy"].to_numpy(np.float64))
    return float(np.sqrt(np.square(relative).mean()))


@dataclass(frozen=True)
class SwitchSpike:
    """One quantity at version switches: mean at offset 0, mean over offsets -10 to -3, their ratio, 95 % intervals.

    ratio_low, ratio_high and difference_low, difference_high (of at - before) come from one paired bootstrap over
    clusters: a resample holds the same clusters at both offsets. tokens_at, tokens_before: how many there are.
    """

    at: float
    before: float
    ratio: float
    ratio_low: float
    ratio_high: float
    difference_low: float
    difference_high: float
    tokens_at: int
    tokens_before: int
    clusters: int


def switch_spike(tokens: pd.DataFrame, *, matched: bool = True) -> dict[str, SwitchSpike]:
    """How far each of SWITCH_QUANTITIES rises at a version switch; empty if nothing switches.

    Needs switch_offset, turn, place, cluster and settled, as the tokens of `estr.report.tokens.token_sources` have
    them. Which token stands at a position matters more than a switch does, so means are position-matched as in
    Figure 3 (`matched_means`), unless `matched` is False: then they are plain means.
    """
    settled = tokens[tokens["settled"]]
    if not matched:
        settled = settled.assign(turn=0, place=0)
    if settled.empty:
        return {}
    groups = settled["switch_offset"] == 0, settled["switch_offset"].isin(BEFORE_SWITCH)
    spikes = {}
    for name, values in switch_quantities(settled).items():
        found = matched_means(settled, values, groups)
        if not found.tokens.all():
            return {}
        (at, before), drawn = found.means, found.resampled
        spikes[name] = SwitchSpike(
            float(at),
            float(before),
            float(_quotient(at, before)),
            *interval(_quotient(drawn[:, 0], drawn[:, 1])),
            *interval(drawn[:, 0] - drawn[:, 1]),
            int(found.tokens[0]),
            int(found.tokens[1]),
            settled.loc[groups[0] | groups[1], "cluster"].nunique(),
        )
    return spikes


def switch_quantities(tokens: pd.DataFrame) -> dict[str, pd.Series]:
    """SWITCH_QUANTITIES of each token, float64: H, |delta|, delta^2, |z| and z^2 = delta^2 / (H + eps) (Eq. 3)."""
    entropy, square = tokens["entropy"].astype(np.float64), tokens["log_ratio"].astype(np.float64) ** 2
    standardized = square / (entropy.clip(lower=0) + EPS)
    values: tuple[pd.Series, ...] = (entropy, square**0.5, square, standardized**0.5, standardized)
    return dict(zip(SWITCH_QUANTITIES, values, strict=True))


@dataclass(frozen=True, eq=False)
class MatchedMeans:
    """Position-matched means of some groups of tokens.

    means: [groups]. resampled: [RESAMPLES, groups], the same of one bootstrap over clusters, NaN where a resample has
    no token of the group. tokens, clusters: how many a group has, [groups].
    """

    means: np.ndarray
    resampled: np.ndarray
    tokens: np.ndarray
    clusters: np.ndarray


def matched_means(tokens: pd.DataFrame, values: pd.Series, groups: Sequence[pd.Series]) -> MatchedMeans:
    """The overall mean of the values times the ratio of what a group sums to and what is expected of its places.

    Expected of a token is the mean over all tokens at its turn and place. A spike raises that mean too, so ratios are
    drawn towards 1 by the share of the spike's tokens among those of their places. Leaving these out would compare
    them with an odd rest where a switch nearly always falls on one place (a turn's first token, after tool output). A
    resample draws clusters with replacement, for groups and expectation alike.
    """
    place = tokens.groupby(["turn", "place"]).ngroup().to_numpy()
    cluster = tokens.groupby("cluster").ngroup().to_numpy()
    shape = cluster.max() + 1, place.max() + 1
    array = values.to_numpy(np.float64)

    def sums(chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Sum of the chosen tokens' weights per cluster and place, float64 of `shape`."""
        flat = np.ravel_multi_index((cluster[chosen], place[chosen]), shape)
        return np.bincount(flat, weights[chosen], minlength=shape[0] * shape[1]).reshape(shape)

    draws = np.random.default_rng(0).multinomial(shape[0], np.full(shape[0], 1 / shape[0]), size=RESAMPLES)
    draws = np.vstack([np.ones(shape[0], int), draws])  # the first row is the data themselves
    one, everything = np.ones(len(tokens)), np.ones(len(tokens), bool)
    expected = np.nan_to_num(_quotient(draws @ sums(everything, array), draws @ sums(everything, one)))
    means, number, clusters = [], [], []
    for group in groups:
        chosen = group.to_numpy()
        observed = (draws @ sums(chosen, array)).sum(axis=1)
        means.append(array.mean() * _quotient(observed, ((draws @ sums(chosen, one)) * expected).sum(axis=1)))
        number.append(chosen.sum())
        clusters.append(len(np.unique(cluster[chosen])))
    stacked = np.stack(means, axis=1)
    return MatchedMeans(stacked[0], stacked[1:], np.array(number), np.array(clusters))


def interval(sample: np.ndarray) -> tuple[float, float]:
    """2.5th and 97.5th percentile of the finite values; NaN without any."""
    finite = sample[np.isfinite(sample)]
    low, high = np.quantile(finite, [0.025, 0.975]) if len(finite) else (np.nan, np.nan)
    return float(low), float(high)


def _quotient(over: float | np.ndarray, under: float | np.ndarray) -> np.ndarray:
    """Elementwise, NaN where the denominator is 0."""
    over, under = np.asarray(over, np.float64), np.asarray(under, np.float64)
    ratio: np.ndarray = np.divide(over, under, out=np.full(np.broadcast(over, under).shape, np.nan), where=under != 0)
    return ratio
