"""A real language model, SmolLM2-135M-Instruct, on the embedded engine: the tokens of the scaling-law figures."""
