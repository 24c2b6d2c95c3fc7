"""The choice problem of a staged graph: its strategies, their costs, and the memory that they hold."""

from planner.search.formulation.build import build_model

__all__ = ["build_model"]
