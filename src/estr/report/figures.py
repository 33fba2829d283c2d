"""All figures by name; each call reads runs and writes out_stem.pdf, .png and .csv (the plotted numbers)."""

from collections.abc import Callable, Sequence
from pathlib import Path

from estr.report.bulk_and_tail import fig01b_bulk_and_tail
from estr.report.dynamics import fig12_browsecomp_plus, fig14_gsm8k, fig15ab_dapo_math
from estr.report.edge_figure import stability_edge
from estr.report.efficiency_figures import fig12f_step_time, pipeline_speedup
from estr.report.entropy_ratio import fig01_entropy_ratio
from estr.report.frontier import stability_frontier
from estr.report.mask_allocation import fig11_mask_allocation
from estr.report.mask_evolution import fig13_mask_evolution
from estr.report.method_curves import (
    fig04_validation,
    fig05a_entropy,
    fig05b_kl,
    fig06_07_reward,
    fig08_masking,
    matched_budget,
    v2_components,
)
from estr.report.probability_space import v2_fig06_probability
from estr.report.signed_deviation import fig10_signed_deviation
from estr.report.sweeps_figure import fig09_staleness, fig15cd_batch_size
from estr.report.version_switch import fig03_version_switch

FIGURES: dict[str, Callable[[Sequence[Path], Path], None]] = {
    "fig01_entropy_ratio": fig01_entropy_ratio,
    "fig01b_bulk_and_tail": fig01b_bulk_and_tail,
    "fig03_version_switch": fig03_version_switch,
    "fig04_validation": fig04_validation,
    "fig05a_entropy": fig05a_entropy,
    "fig05b_kl": fig05b_kl,
    "fig06_07_reward": fig06_07_reward,
    "fig08_masking": fig08_masking,
    "fig09_staleness": fig09_staleness,
    "fig10_signed_deviation": fig10_signed_deviation,
    "fig11_mask_allocation": fig11_mask_allocation,
    "fig12_browsecomp_plus": fig12_browsecomp_plus,
    "fig12f_step_time": fig12f_step_time,
    "fig13_mask_evolution": fig13_mask_evolution,
    "fig14_gsm8k": fig14_gsm8k,
    "fig15ab_dapo_math": fig15ab_dapo_math,
    "fig15cd_batch_size": fig15cd_batch_size,
    "v2_fig06_probability": v2_fig06_probability,
    "matched_budget": matched_budget,
    "v2_components": v2_components,
    "pipeline_speedup": pipeline_speedup,
    "stability_edge": stability_edge,
    "stability_frontier": stability_frontier,
}
