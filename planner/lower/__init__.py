"""Lowering: decisions and graph in, Plan out."""

from planner.lower.build import Recipe, lower
from planner.lower.quotas import Schedule, in_flight

__all__ = ["Recipe", "Schedule", "in_flight", "lower"]
