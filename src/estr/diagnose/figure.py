"""Figure 1 of the paper for a dump: |log-ratio| against entropy, and what ESTR and a fixed bound would mask."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from estr.algorithm import EntropyScaled
from estr.diagnose.dump import Dump
from estr.report import style
from estr.report.entropy_ratio import entropy_ratio_data
from estr.report.token_plane import FLOOR, draw_masked, entropy_axis, masked_handles, name_panel, panels
from estr.report.tokens import TokenSource


def draw(dump: Dump, usable: np.ndarray, tau: float, png: Path) -> None:
    """Write the figure (.png, .pdf) and its numbers (.csv); a bounded entropy is drawn at its upper bound.

    Args:
        dump: the tokens.
        usable: bool [tokens], those with finite signals; the others are left out.
        tau: ESTR's threshold.
        png: the picture's name; the others go beside it.

    Raises:
        UserError: no token is off-policy.
    """
    behavior, target = dump.behavior_logprob[usable], dump.target_logprob[usable]
    signals = {
        "behavior_logprob": behavior,
        "target_logprob": target,
        "entropy": dump.entropy[-1][usable].clip(min=0),
        "log_ratio": target - behavior,
    }
    source = TokenSource(dump.path.stem, dump.path.name, "", EntropyScaled(tau=tau), pd.DataFrame(signals))
    data = entropy_ratio_data(source)
    stem = png.with_suffix("")
    style.save_data(data, stem)
    series = {str(name): part for name, part in data.groupby("series")}
    with style.look():
        fig, (ax,) = panels([source])
        draw_masked(ax, data, "entropy", "log_ratio_abs")
        lines: list[Line2D] = []
        for name, label, look in (
            ("bin_mean", "mean |δ| per entropy bin", {"color": style.PURPLE, "marker": "o", "markersize": 2.5}),
            ("boundary_estr", "ESTR's boundary", {"color": style.INK}),
            ("boundary_fixed", "fixed boundary, equal budget", {"color": style.INK, "linestyle": "--"}),
        ):
            if name in series:
                lines += ax.plot(series[name]["entropy"], series[name]["log_ratio_abs"], label=label, **look)
        name_panel(ax, source, f"τ = {tau:g}")
        ax.set_yscale("log")
        entropy_axis(ax, series["boundary_fixed"]["entropy"].max())
        ax.set_ylim(FLOOR, 1.5 * data["log_ratio_abs"].max())
        bound = "" if len(dump.entropy) == 1 else ", upper bound from top-k"
        ax.set_xlabel(f"token entropy H (nats{bound}; square-root axis)")
        ax.set_ylabel("|δ| (nats)")
        fig.legend(handles=[*masked_handles(), *lines], loc="outside upper center", ncols=2)
        style.save(fig, stem)
