"""Traces: what a performer did, when, and the six laws that every trace obeys."""
