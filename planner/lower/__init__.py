"""Lowering: decisions and graph in, Plan out."""

from planner.lower.build import Recipe, lower
from planner.lower.quotas import Schedule

__all__ = ["Recipe", "Schedule", "lower"]
