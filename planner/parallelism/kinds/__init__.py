"""Pipelines over several kinds of node: a bound on their step, and the search over their shapes."""

from planner.parallelism.kinds.best import best_of_kinds
from planner.parallelism.kinds.least import least_step_s

__all__ = ["best_of_kinds", "least_step_s"]
