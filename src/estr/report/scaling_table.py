"""Table scaling_fit: the entropy-ratio law in numbers, a row per source of tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from estr.report.scaling_fit import (
    OFF_MODE_ENTROPY,
    SWITCH_QUANTITIES,
    asymmetry,
    bulk_bins,
    coefficient_of_variation,
    common_bins,
    entropy_rank_correlation,
    off_mode,
    off_mode_ratio,
    second_moment_fit,
    switch_spike,
)
from estr.report.tokens import TokenSource, masked_by, token_sources
from estr.report.views import EMPTY, View, number, plus_minus, write_table

SCENARIOS = ("mismatch", "stale", "switch")


def scaling_fit(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table; it has no use for a calibration."""
    frame = scaling_fit_frame(folders)
    write_table(frame, scaling_fit_views(frame), out_stem)


def scaling_fit_frame(folders: Sequence[Path]) -> pd.DataFrame:
    """A row per task and per scenario of a language model; `estr.report.scaling_fit` defines the numbers.

    Columns: task, title, made_by, runs, steps (of which tokens were sampled), tokens, masked_share (by ESTR);
    bulk_bins, coefficient (a_B, 1/nats), r_squared, each also as the standard deviation over the runs (_sd, NaN for
    one), cv_second_moment and cv_z_second_moment (over the bulk bins), asymmetry; rank_bins, rank_correlation;
    confident_tokens (H < 0.05), off_mode_tokens, off_mode_masked (by ESTR), off_mode_ratio; switch_tokens and
    switch_clusters (at and around switches) and per quantity of SWITCH_QUANTITIES switch_<quantity> (ratio of the mean
    at a switch to that before) with _low and _high, and switch_<quantity>_rise_low and _rise_high (of the difference).
    """
    rows = []
    for source in token_sources(folders, SCENARIOS):
        tokens = source.tokens
        bulk, ranked = bulk_bins(tokens), common_bins(tokens)
        tail = off_mode(tokens)
        fit = second_moment_fit(tokens)
        fits = [second_moment_fit(rows) for _, rows in tokens.groupby("run")]
        row = {
            "task": source.key,
            "title": source.title,
            "made_by": source.maker,
            "runs": max(len(source.runs), 1),
            "steps": tokens["step"].nunique(),
            "tokens": len(tokens),
            "masked_share": masked_by(source.rule, tokens).mean(),
            "bulk_bins": len(bulk),
            "coefficient": fit.coefficient,
            "coefficient_sd": _deviation([one.coefficient for one in fits]),
            "r_squared": fit.r_squared,
            "r_squared_sd": _deviation([one.r_squared for one in fits]),
            "cv_second_moment": coefficient_of_variation(bulk["second_moment"]),
            "cv_z_second_moment": coefficient_of_variation(bulk["z_second_moment"]),
            "asymmetry": asymmetry(tokens),
            "rank_bins": len(ranked),
            "rank_correlation": entropy_rank_correlation(tokens),
            "confident_tokens": int((tokens["entropy"] < OFF_MODE_ENTROPY).sum()),
            "off_mode_tokens": len(tail),
            "off_mode_masked": int(masked_by(source.rule, tail).sum()) if len(tail) else 0,
            "off_mode_ratio": off_mode_ratio(tokens),
        }
        rows.append(row | _switch(source))
    return pd.DataFrame(rows)


def scaling_fit_views(frame: pd.DataFrame) -> list[View]:
    """The bulk, and the tail with the switches."""

    def cells(columns: Sequence[tuple[str, Callable[[pd.Series], str]]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(cell(row) for _, cell in columns) for _, row in frame.iterrows())

    bulk: list[tuple[str, Callable[[pd.Series], str]]] = [
        ("tokens of", lambda row: row["title"]),
        ("n", lambda row: f"{row['tokens']:,}"),
        ("runs", lambda row: str(row["runs"])),
        ("masked, %", lambda row: number(100 * row["masked_share"], ".2f")),
        ("a_B, 1/nat", lambda row: plus_minus(row, "coefficient", ".3g")),
        ("R²", lambda row: plus_minus(row, "r_squared", ".2f")),
        ("CV of E[δ²]", lambda row: number(row["cv_second_moment"], ".2f")),
        ("CV of E[z²]", lambda row: number(row["cv_z_second_moment"], ".2f")),
        ("max |mean δ| / RMS", lambda row: number(row["asymmetry"], ".2f")),
        ("rank correlation", lambda row: number(row["rank_correlation"], ".2f")),
    ]
    rest: list[tuple[str, Callable[[pd.Series], str]]] = [
        ("tokens of", lambda row: row["title"]),
        ("at H < 0.05", lambda row: f"{row['confident_tokens']:,}"),
        ("off-mode", lambda row: f"{row['off_mode_tokens']:,}"),
        ("of these masked", lambda row: f"{row['off_mode_masked']:,}"),
        ("99.9 % |δ| ratio", lambda row: number(row["off_mode_ratio"], ".3g")),
        ("switches", lambda row: f"{row['switch_tokens']:,}" if row["switch_tokens"] else EMPTY),
    ]
    names = {"entropy": "H", "log_ratio_abs": "|δ|", "log_ratio_sq": "δ²", "z_sq": "z²"}
    rest += [(name, partial(_ratio, quantity)) for quantity, name in names.items()]
    return [
        View(
            "The entropy-ratio law in the bulk",
            "a_B and R² of E[δ²] = a_B H (Eq. 28) over bins equally wide in H between its 5th and 95th percentile, ± "
            "standard deviation over runs; coefficients of variation (CV) and the largest |mean δ| / RMS over the same "
            "bins; Spearman's rank correlation of mean |δ| with H over bins of at least 1 % of the tokens, equally "
            "wide in the square root of H.",
            tuple(name for name, _ in bulk),
            cells(bulk),
        ),
        View(
            "Low entropy, and version switches",
            "Off-mode: behavior probability below 0.05 at H < 0.05 nats; ratio of the 99.9th percentiles of |δ| among "
            "them and among all tokens at H < 0.05. Switches: tokens at offset 0; ratio of the position-matched mean "
            "there to that at offsets -10 to -3, 95 % interval of a paired bootstrap.",
            tuple(name for name, _ in rest),
            cells(rest),
            groups=(("", 1), ("low entropy", 4), ("at a switch, over before", 5)),
        ),
    ]


def _switch(source: TokenSource) -> dict[str, float]:
    spikes = switch_spike(source.tokens)
    row: dict[str, float] = {
        "switch_tokens": next((spike.tokens_at for spike in spikes.values()), 0),
        "switch_clusters": next((spike.clusters for spike in spikes.values()), 0),
    }
    for name in SWITCH_QUANTITIES:
        spike = spikes.get(name)
        row |= {
            f"switch_{name}": spike.ratio if spike else np.nan,
            f"switch_{name}_low": spike.ratio_low if spike else np.nan,
            f"switch_{name}_high": spike.ratio_high if spike else np.nan,
            f"switch_{name}_rise_low": spike.difference_low if spike else np.nan,
            f"switch_{name}_rise_high": spike.difference_high if spike else np.nan,
        }
    return row


def _ratio(quantity: str, row: pd.Series) -> str:
    name = f"switch_{quantity}"
    if pd.isna(row[name]):
        return EMPTY
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
