"""Bounds on a plan's step from pieces of its model, and the search that they guide within a memory limit."""
