"""The layout search of a staged graph as a choice problem."""

from planner.search.formulation.build import build_model

__all__ = ["build_model"]
