"""The laptop engine: a tiny real policy, a sampler that records signals, and an asynchronous GRPO trainer."""
