"""Closer bounds of shapes, one after another, where a second core is free by two processes; what is found is the same."""

from planner.parallelism.bounding.ahead import Ahead
from planner.parallelism.bounding.closer import BoundKind, Closer, Entry, WholeBounds
from planner.parallelism.bounding.traced import SecondTrace, TracedBeside

__all__ = ["Ahead", "BoundKind", "Closer", "Entry", "SecondTrace", "TracedBeside", "WholeBounds"]
