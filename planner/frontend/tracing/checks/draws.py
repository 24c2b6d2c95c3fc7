"""Comparisons of a draw whose outcome is the same whatever is drawn, as of a LayerDrop whose probability is 0.

A draw is taken to lie between 0 and 1, neither of them: ``torch.rand(1) > 0`` is true, as who writes it means, though torch draws 0 once in 2^24.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from planner.frontend.tracing.checks.known import node_of

__all__ = ["DrawDecides", "outcome"]

_DRAW = torch.ops.regista.uniform.default
_BELOW = frozenset({torch.ops.aten.lt.Scalar, torch.ops.aten.le.Scalar})
_ABOVE = frozenset({torch.ops.aten.gt.Scalar, torch.ops.aten.ge.Scalar})


class DrawDecides(Exception):
    """What is computed depends on what is drawn."""


def outcome(tensor: Tensor) -> bool | None:
    """Of ``draw < number`` and its like, where every draw gives the same; None: it is no such comparison.

    Raises:
        DrawDecides: draws give different outcomes.
    """
    compared = _compared(tensor)
    if compared is None:
        return None
    target, number = compared
    is_below = target in _BELOW
    if number >= 1:
        return is_below
    if number <= 0:
        return not is_below
    raise DrawDecides("a random number")


def _compared(tensor: Tensor) -> tuple[object, float] | None:
    """The comparison and the number beside the draw."""
    node = node_of(tensor)
    if node is None or node.target not in _BELOW | _ABOVE:
        return None
    draw, number = node.args
    is_draw = isinstance(draw, fx.Node) and draw.target == _DRAW
    return (node.target, float(number)) if is_draw and isinstance(number, int | float) else None
