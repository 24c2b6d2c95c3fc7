"""Lowering: decisions and graph in, Plan out."""

from planner.lower.build import Recipe, lower

__all__ = ["Recipe", "lower"]
