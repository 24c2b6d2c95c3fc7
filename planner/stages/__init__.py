"""Pipeline stages: which device group performs which op, by the user's cut or by an even split of the work."""

from planner.stages.assign import assign_stages
from planner.stages.prepare import Staged, block_of, check_recompute, prepare

__all__ = ["Staged", "assign_stages", "block_of", "check_recompute", "prepare"]
