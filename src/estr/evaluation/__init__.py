"""Sampled answers on held-out problems: engines, judging, accuracy with intervals, resumable runs."""
