"""What trainer processes record as sums, and by what each becomes the mean of `metrics.parquet`."""

DIVISORS = {
    "response_tokens": ("masked_fraction", "nonfinite_fraction", "clip_fraction_low", "clip_fraction_high"),
    "usable": ("entropy", "log_perplexity", "log_ratio_abs", "ratio_deviation", "kl_to_behavior"),
    "dropped": ("masked_entropy", "ratio_deviation_masked", "kl_to_behavior_masked"),
    "kept": ("kept_entropy", "ratio_deviation_kept", "kl_to_behavior_kept"),
    "trajectories": ("staleness_intra", "staleness_inter", "sequences_masked_fraction"),
}
"""Number -> columns that are sums over what it counts: response tokens, those with finite signals, of these the masked
and the kept ones, trajectories."""
