"""All figures by name; each call reads runs and writes out_stem.pdf, .png and .csv (the plotted numbers)."""

from collections.abc import Callable, Sequence
from pathlib import Path

from estr.report.curves import fig05a_entropy, fig05b_kl, fig07_reward, fig08_masking
from estr.report.edge_figure import stability_edge
from estr.report.entropy_ratio import fig01_entropy_ratio
from estr.report.version_switch import fig03_version_switch

FIGURES: dict[str, Callable[[Sequence[Path], Path], None]] = {
    "fig01_entropy_ratio": fig01_entropy_ratio,
    "fig03_version_switch": fig03_version_switch,
    "fig05a_entropy": fig05a_entropy,
    "fig05b_kl": fig05b_kl,
    "fig07_reward": fig07_reward,
    "fig08_masking": fig08_masking,
    "stability_edge": stability_edge,
}
