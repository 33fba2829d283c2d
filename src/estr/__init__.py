"""Reproduction pipeline for Entropy-Scaled Trust Regions (ESTR/ENTR) in asynchronous RL."""
