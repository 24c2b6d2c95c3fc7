"""Search: which SBP signature each op takes."""

from planner.search.assign import Assignment, LocalOp, assign
from planner.search.pins import Pin, parse_pins

__all__ = ["Assignment", "LocalOp", "Pin", "assign", "parse_pins"]
