"""Look-ups along one dim whose index was widened to the others: they take it as it was.

    token [G, k, 1] -> expand [G, k, M];  gather(x [G, T, M], 1, ..)                becomes     take_along(x, 1, token)
    scatter_add(x, 1, .., source [G, k, M])                                        becomes     add_along(x, 1, token, source)

The widened index is a view in torch, which autograd keeps for the backward pass at no cost.  In a Plan it would be a value of its own where two
fragments read it: 28 GB in one of DeepSeek-V3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.frontend.to_graph.finish import Body
from planner.frontend.tracing.lookup import ADD_ALONG, TAKE_ALONG
from planner.ir.graph import Op, Ref
from planner.ir.tensor import TensorType

__all__ = ["with_narrow_indices"]

_EXPAND = "aten.expand.default"
_TARGETS: Mapping[str, str] = {"aten.gather.default": TAKE_ALONG, "aten.scatter_add.default": ADD_ALONG}


def with_narrow_indices(body: Body) -> Body:
    """The same micro-batch; widened indices that nobody reads any more are still there."""
    makers = {value: op for op in body.ops for value in op.outputs if value is not None}
    return replace(body, ops=tuple(_narrow(op, makers, body.types) or op for op in body.ops))


def _narrow(op: Op, makers: Mapping[str, Op], types: Mapping[str, TensorType]) -> Op | None:
    """A gather or scatter_add whose index is an ``expand`` over all other dims of x, as an op that takes what was expanded; None: of any other op."""
    target = _TARGETS.get(op.target)
    if target is None or not isinstance(dim := op.args[1], int) or not isinstance(wide := op.args[2], Ref):
        return None
    expand, looked_up = makers.get(wide.value), list(types[op.inputs[0]].shape)
    if expand is None or expand.target != _EXPAND:
        return None
    (narrow,), index = expand.inputs, types[wide.value].shape
    looked_up[dim] = index[dim]
    if types[narrow].ndim != len(index) or types[narrow].shape[dim] != index[dim] or list(index) != looked_up:
        return None
    source = op.args[3:4] if target == ADD_ALONG else ()
    if any(not isinstance(arg, Ref) or types[arg.value].shape != index for arg in source):
        return None
    return replace(op, target=target, args=(op.args[0], dim, Ref(narrow), *source), kwargs=())
