"""Pipeline stages: which device group performs which op, by the user's cut or by an even split of the work."""

from planner.stages.assign import assign_stages
from planner.stages.blocks import block_of
from planner.stages.prepare import check_recompute, prepare
from planner.stages.staged import Staged

__all__ = ["Staged", "assign_stages", "block_of", "check_recompute", "prepare"]
