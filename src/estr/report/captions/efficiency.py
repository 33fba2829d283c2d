"""Captions of the efficiency figures; what is modelled is called so."""

import pandas as pd

from estr.report.captions.base import Caption, plus_minus
from estr.report.labels import display


def _step_time(data: pd.DataFrame) -> str:
    measured = data[data["measured"]]
    times = {str(label): rows["step_seconds"] for label, rows in measured.groupby("label", sort=False)}
    parts = [
        f"{display(label)} {seconds.mean():.3g}{plus_minus(seconds.std(), '.2g')} s over {len(seconds)} updates"
        for label, seconds in times.items()
    ]
    text = f"Measured: {', '.join(parts)}."
    if {"sync", "estr"} <= times.keys():
        text += f" Ratio of the means: {times['sync'].mean() / times['estr'].mean():.2f}."
    return text


def _speedup(data: pd.DataFrame) -> str:
    lines = data[data["kind"] == "modelled"]
    splits = lines[lines["panel"] == "split"]
    reference = splits[splits["series"] == splits["series"].iloc[0]]
    best = reference.loc[reference["speedup"].idxmax()]
    skew = lines[(lines["panel"] == "skew") & (lines["series"] == best["series"])]
    threshold = lines[(lines["panel"] == "threshold") & (lines["series"] == best["series"])]
    text = (
        f"Modelled, with the paper's costs (solid line): {skew['speedup'].iloc[0]:.2f} for equal lengths, "
        f"{skew['speedup'].iloc[-1]:.2f} at skew {skew['x'].iloc[-1]:g}; the best split gives {best['speedup']:.2f} "
        f"with {100 * best['x']:.0f} % of the devices for rollouts; "
        f"threshold 0 gives {threshold['speedup'].iloc[0]:.2f}."
    )
    measured = data[(data["kind"] == "measured") & (data["panel"] == "skew")]
    modelled = data[(data["kind"] == "modelled from its stage times") & (data["panel"] == "skew")]
    own = modelled.set_index("series")["speedup"]
    for _, row in measured.iterrows():
        text += (
            f" Measured, {row['series']}: {row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]; "
            f"modelled from its own stage times {own[row['series']]:.2f}."
        )
    return text


CAPTIONS: dict[str, Caption] = {
    "fig12f_step_time": Caption(
        "Figure 12f: time per update",
        "Synchronous training stalls at every step; ESTR overlaps rollouts with training and settles at a "
        "substantially lower, stable time per step (BrowseComp-Plus). On DAPO-Math 514.84 s against 1356.47 s.",
        _step_time,
    ),
    "pipeline_speedup": Caption(
        "Speedup by the model of the pipeline (not in the paper)",
        "One configuration: 2.6 times as fast as synchronous training on 16 GPUs, 8 of them for rollouts. Two step "
        "times do not fix the model, so two members of the family that fits them are drawn.",
        _speedup,
    ),
}
