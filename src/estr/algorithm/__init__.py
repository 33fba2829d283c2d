"""The paper's algorithm in pure torch.

| paper | function |
|---|---|
| Eqs. 1, 27, 28 | `entropy_coefficient`, `binned_second_moment`, `fit_through_origin` |
| Eq. 2 | `staleness` |
| Eqs. 3, 10 | `standardized_deviation` |
| Eqs. 5, 33 / 6, 32 / 34 | `binary_entropy` / `off_mode_second_moment` / `arc_envelope` |
| Eq. 7 | `TokenSignals.log_ratio` |
| Eq. 8 | `entropy_from_logits`, `logprob_and_entropy`, `token_logprob` |
| Eqs. 9, 37 | `k3` |
| Eqs. 9, 35, 38 | `kl_second_order` |
| Eqs. 11, 14-16, 18 | `EntropyScaled` (`scale`, `score`, `keep`, `boundary`) |
| Eq. 17, A | `group_normalized_advantage` |
| Eqs. 19, 20, 44-48 | `objective` |
| Eqs. 21, 47 | `diagnose` |
| Eqs. 22 / 24 / 25 | `perturbed_log_ratio` / `first_order_log_ratio` / `token_second_moment` |
| Eqs. 12, 23 / 26 | `gini_uncertainty`, `renyi2_entropy`, `expected_second_moment` / `entropy_upper_bounds` |
| Eqs. 29 / 30 | `natural_scale` / `standardized_second_moment` |
| Eq. 40 | `tail_entropy_threshold` |
| v1 Table 7, v2 Table 3 | `calibrate` |
| "collapse" in Figs. 6, 7, 9 | `detect_collapse` (the paper defines none) |
| Section 5.1, v2 Table 2 | `RatioInterval`, `BinaryKL`, `SecondMoment`, `FixedMagnitude`, ... in `RULES` |
"""

from estr.algorithm.advantage import group_normalized_advantage
from estr.algorithm.calibration import Calibration, calibrate
from estr.algorithm.collapse import Collapse, detect_collapse
from estr.algorithm.diagnostics import diagnose, k3
from estr.algorithm.objective import ObjectiveOutput, objective
from estr.algorithm.rules import (
    RULES,
    BinaryKL,
    EntropyScaled,
    ExplorationPreserving,
    FixedMagnitude,
    KeepAll,
    KeepRule,
    OutlierSuppressing,
    RatioInterval,
    SecondMoment,
    ThresholdRule,
    build_rule,
)
from estr.algorithm.scaling_law import (
    BinnedMoments,
    ScalingFit,
    arc_envelope,
    binary_entropy,
    binned_second_moment,
    entropy_coefficient,
    entropy_upper_bounds,
    expected_second_moment,
    first_order_log_ratio,
    fit_through_origin,
    gini_uncertainty,
    kl_second_order,
    natural_scale,
    off_mode_second_moment,
    perturbed_log_ratio,
    renyi2_entropy,
    standardized_deviation,
    standardized_second_moment,
    tail_entropy_threshold,
    token_second_moment,
)
from estr.algorithm.signals import TokenSignals, entropy_from_logits, logprob_and_entropy, token_logprob
from estr.algorithm.staleness import Staleness, staleness

__all__ = [
    "RULES",
    "BinaryKL",
    "BinnedMoments",
    "Calibration",
    "Collapse",
    "EntropyScaled",
    "ExplorationPreserving",
    "FixedMagnitude",
    "KeepAll",
    "KeepRule",
    "ObjectiveOutput",
    "OutlierSuppressing",
    "RatioInterval",
    "ScalingFit",
    "SecondMoment",
    "Staleness",
    "ThresholdRule",
    "TokenSignals",
    "arc_envelope",
    "binary_entropy",
    "binned_second_moment",
    "build_rule",
    "calibrate",
    "detect_collapse",
    "diagnose",
    "entropy_coefficient",
    "entropy_from_logits",
    "entropy_upper_bounds",
    "expected_second_moment",
    "first_order_log_ratio",
    "fit_through_origin",
    "gini_uncertainty",
    "group_normalized_advantage",
    "k3",
    "kl_second_order",
    "logprob_and_entropy",
    "natural_scale",
    "objective",
    "off_mode_second_moment",
    "perturbed_log_ratio",
    "renyi2_entropy",
    "staleness",
    "standardized_deviation",
    "standardized_second_moment",
    "tail_entropy_threshold",
    "token_logprob",
    "token_second_moment",
]
