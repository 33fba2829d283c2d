"""Sampled accuracy on held-out problems, with intervals."""
