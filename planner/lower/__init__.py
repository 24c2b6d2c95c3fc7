"""Lowering: makes a Plan from a staged graph and the decisions of the search."""

from planner.lower.build import Recipe, lower

__all__ = ["Recipe", "lower"]
