"""Names of our policy losses in verl's configuration."""

LOSS_MODES = {
    "estr": "entropy_scaled",
    "icepop": "ratio_interval",
    "kpop": "binary_kl",
    "m2po": "second_moment",
    "fixed_magnitude": "fixed_magnitude",
    "exploration_preserving": "exploration_preserving",
    "outlier_suppressing": "outlier_suppressing",
    "keep_all": "keep_all",
}
"""`actor.policy_loss.loss_mode` -> keep rule of `estr.algorithm`."""


def loss_mode_of(rule: str) -> str:
    return next(mode for mode, name in LOSS_MODES.items() if name == rule)
