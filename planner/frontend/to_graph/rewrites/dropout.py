"""Dropout as one op each way: nothing is kept for the backward pass, which draws the same numbers again.

    k = bernoulli(draw 3);  n = k / 0.9;  y = x n;  ..  dx = dy n       becomes       y = dropout(x, draw 3);  ..  dx = dropout(dy, draw 3)

Only where the product has the shape of the draw: a mask that is broadcast (of whole channels, or samples) stays apart, and is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.frontend.to_graph.finish import Body
from planner.ir.graph import Arg, Op, Ref
from planner.ir.tensor import TensorType

__all__ = ["dropped"]

_MUL, _DIV, _DRAW, _DROPOUT = "aten.mul.Tensor", "aten.div.Tensor", "regista.bernoulli", "regista.dropout"


def dropped(body: Body) -> Body:
    """The same micro-batch with dropouts; what nobody reads any more is still there."""
    makers = {value: op for op in body.ops for value in op.outputs if value is not None}
    return replace(body, ops=tuple(_dropout(op, makers, body.types) or op for op in body.ops))


def _dropout(product: Op, makers: Mapping[str, Op], types: Mapping[str, TensorType]) -> Op | None:
    """The dropout that a product with a noise is."""
    (made, *_) = product.outputs
    if product.target != _MUL or len(product.inputs) != 2 or made is None:
        return None
    for x, noise in (product.inputs, product.inputs[::-1]):
        if types[x] == types[noise] == types[made] and (draw_and_divisor := _noise(noise, makers)) is not None:
            draw, divisor = draw_and_divisor
            seed, steps, _, _, p, whole, cuts = draw.args
            return replace(product, target=_DROPOUT, args=(Ref(x), seed, steps, p, divisor, whole, cuts), draw=draw.draw)
    return None


def _noise(value: str, makers: Mapping[str, Op]) -> tuple[Op, Arg] | None:
    """The draw behind a noise, and by what it is divided."""
    op = makers.get(value)
    if op is not None and op.target == _DIV and not op.kwargs and isinstance(op.args[0], Ref) and isinstance(op.args[1], int | float):
        drawn = makers.get(op.args[0].value)
        return (drawn, float(op.args[1])) if drawn is not None and drawn.target == _DRAW else None
    return (op, 1.0) if op is not None and op.target == _DRAW else None
