"""Pipeline stages: where a graph is cut, by the user or by balanced work, and the passes that make the staged graph ready for the search."""

from planner.stages.assign import assign_stages
from planner.stages.blocks import block_of
from planner.stages.prepare import check_recompute, prepare
from planner.stages.staged import Staged

__all__ = ["Staged", "assign_stages", "block_of", "check_recompute", "prepare"]
