"""The front end: the only room of the planner that knows torch.  A module goes in, a LogicalGraph comes out."""

from __future__ import annotations

from planner.frontend.deferred import Deferred
from planner.frontend.load import load_program
from planner.frontend.optim import SGD, AdamW
from planner.frontend.program import Program

__all__ = ["SGD", "AdamW", "Deferred", "Program", "load_program"]
