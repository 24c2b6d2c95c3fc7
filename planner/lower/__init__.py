"""Lowering: decisions and graph in, Plan out."""

from planner.lower.build import lower
from planner.lower.quotas import Schedule

__all__ = ["Schedule", "lower"]
