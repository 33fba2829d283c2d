"""Captions of figures that are not in the paper."""

import pandas as pd

from estr.report.captions.base import Caption
from estr.report.labels import display


def _edge(data: pd.DataFrame) -> str:
    fallen = data[data["collapsed_share"] > 0.5]
    if fallen.empty:
        return f"No setting of {len(data)} collapsed in most seeds."
    first = fallen.sort_values(["learning_rate", "inter", "intra"]).iloc[0]
    return (
        f"{len(fallen)} of {len(data)} settings collapsed in most seeds, the mildest learning rate at "
        f"{first['learning_rate']:.3g} (intra {first['intra']:g}, inter {first['inter']:g})."
    )


def _frontier(data: pd.DataFrame) -> str:
    texts = []
    for axis, rows in data.groupby("axis", sort=False):
        ranked = rows.sort_values("stable_up_to", ascending=False)
        text = ", ".join(f"{display(str(row.label))} {row.stable_up_to:g}" for row in ranked.itertuples())
        texts.append(f"{axis}: {text}.")
    return "Largest stable value, " + " ".join(texts)


CAPTIONS: dict[str, Caption] = {
    "stability_frontier": Caption(
        "Stability frontier (not in the paper)",
        "The paper shows one staleness per task, at which vanilla async collapses and ESTR does not; how far each rule "
        "could be pushed is not reported.",
        _frontier,
    ),
    "stability_edge": Caption(
        "Stability edge of vanilla async (not in the paper)",
        "The paper only states that vanilla async collapses at its staleness; this scan shows where ours does.",
        _edge,
    ),
}
