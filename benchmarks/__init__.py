"""Measured ratios: `python -m benchmarks [name …]`."""
