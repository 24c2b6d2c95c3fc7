"""Measuring: the acts of a Plan on real processes, and the constants of a machine."""
