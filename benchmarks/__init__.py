"""Measures Headgate against its peers and a floor, and renders docs/benchmarks.md: ``python -m benchmarks``."""
