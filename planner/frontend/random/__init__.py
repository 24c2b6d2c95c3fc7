"""Random ops as functions of a counter: what a draw is, its kernels, and how torch's random ops become such draws."""

from planner.frontend.random.drawing import Drawing, drawing
from planner.frontend.random.kernels import KERNELS

__all__ = ["KERNELS", "Drawing", "drawing"]
