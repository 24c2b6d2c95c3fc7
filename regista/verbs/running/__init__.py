"""Verbs that perform plans or measure machines, and those around a run: checkpoints, deployment, sweeps."""
