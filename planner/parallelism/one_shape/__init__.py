"""The Plan of one shape, and bounds on its plans from its end stages and from its whole model."""

from planner.parallelism.one_shape.closer import OtherBound
from planner.parallelism.one_shape.job import Job, is_known
from planner.parallelism.one_shape.planning import UNPROVEN, bound_one_shape, plan_one_shape
from planner.parallelism.one_shape.staged import staged_graph, staged_once

__all__ = ["UNPROVEN", "Job", "OtherBound", "bound_one_shape", "is_known", "plan_one_shape", "staged_graph", "staged_once"]
