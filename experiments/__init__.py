"""Experiments: benchmarks, manifests, figures.  Run from the repository's root."""
