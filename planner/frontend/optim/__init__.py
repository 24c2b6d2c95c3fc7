"""The optimizers that people have: their rules, parameter groups and states, as one op per parameter."""

from planner.frontend.optim.groups import Group, as_groups
from planner.frontend.optim.rules import SGD, AdamW, Optimizer

__all__ = ["SGD", "AdamW", "Group", "Optimizer", "as_groups"]
