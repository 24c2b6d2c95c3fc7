"""The layout search: the choice problem of a staged graph, and the methods that solve it."""

from planner.search.assign import FoundLayouts, find_layouts
from planner.search.formulation import build_model
from planner.search.methods.method import Method, search
from planner.search.model import Assignment

__all__ = ["Assignment", "FoundLayouts", "Method", "build_model", "find_layouts", "search"]
