"""Every check by the name that configs/paper/claims.yaml calls it by."""

from collections.abc import Callable

from estr.report.claims import ablations, accuracy, dynamics, efficiency, masking, scaling, stability, theory
from estr.report.claims.outcome import Outcome

CHECKS: dict[str, Callable[..., Outcome]] = {
    check.__name__: check
    for check in (
        scaling.deviation_grows_with_entropy,
        scaling.second_moment_proportional,
        scaling.standardization_flattens,
        scaling.spikes_at_switch,
        scaling.standardized_bounded_at_switch,
        scaling.off_mode_tail,
        scaling.symmetric_about_zero,
        theory.logit_noise_second_moment,
        theory.entropy_envelope,
        theory.off_mode_variance,
        theory.strict_generalization,
        theory.objective_gradient,
        theory.kl_expansion,
        accuracy.beats_on_every_task,
        accuracy.matches_on_every_task,
        accuracy.exceeds_pass_at_k,
        stability.collapses_unlike,
        stability.collapses_early,
        stability.stays_stable,
        stability.reward_falls_with_staleness,
        stability.intra_costs_less,
        masking.masks_fewest,
        masking.masks_fewer_by,
        masking.lowest_at_the_end,
        masking.budget_drifts,
        masking.budget_versions,
        masking.budget_held_but_behind,
        masking.masked_entropy_lower,
        masking.sequences_masked,
        masking.mostly_below,
        dynamics.entropy_rises,
        dynamics.fewest_turns_highest_reward,
        ablations.improves_on,
        ablations.best_of,
        ablations.insensitive_to_tau,
        ablations.reward_grows_with_batch,
        ablations.masking_insensitive_to_batch,
        efficiency.faster_than_sync,
        efficiency.step_time_within,
        efficiency.step_time_below,
        efficiency.rule_costs_nothing,
    )
}
