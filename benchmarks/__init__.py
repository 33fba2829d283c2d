"""What the parts cost, as ratios measured in one run: `python -m benchmarks`. README.md has targets and results."""
