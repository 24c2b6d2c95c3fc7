"""Bounds on the time of a step from pieces of the model, and the search within a memory limit that begins with their multipliers."""
