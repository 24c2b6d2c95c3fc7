"""Which results of the forward pass are kept for the backward one and which are computed again, within a limit of bytes, with a proof."""

from planner.stages.recompute.asked import OpsAgain, Recompute, ops_again, recompute_of
from planner.stages.recompute.choose import choose_recompute
from planner.stages.recompute.problem import ForwardOp, Keeping, SavingProblem

__all__ = ["ForwardOp", "Keeping", "OpsAgain", "Recompute", "SavingProblem", "choose_recompute", "ops_again", "recompute_of"]
