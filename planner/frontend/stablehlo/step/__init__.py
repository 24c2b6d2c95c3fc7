"""What a step of StableHLO does: its loss in the ops that torch has, and its update as an optimizer with its numbers."""

from planner.frontend.stablehlo.step.gradients import is_long
from planner.frontend.stablehlo.step.patterns import simplified
from planner.frontend.stablehlo.step.update import State, recognised

__all__ = ["State", "is_long", "recognised", "simplified"]
