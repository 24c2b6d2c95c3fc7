"""Performs a listing's operations with torch: on values, or while they are traced."""

from planner.frontend.stablehlo.performing.perform import perform
from planner.frontend.stablehlo.performing.values import Value

__all__ = ["Value", "perform"]
