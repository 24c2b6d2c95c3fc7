"""Numbers of a padded trace that follow from the batch: what a mean divides by is the number of samples that count.

a mean over n samples of a micro-batch divides by n c; of the batch's N samples by N c   (the step traced at N samples)
mean over m micro-batches of  sum_k / (N c / m)  =  the mean over the batch                                   (1) -> _number()
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from planner.frontend.tracing.trace import Capture
from planner.ir.errors import Unsupported
from planner.ir.graph import Op, Role
from planner.opset import is_view

__all__ = ["with_numbers_of"]

_DIVISIONS = frozenset({"aten.div.Tensor", "aten.div.Scalar"})
_PRODUCTS = frozenset({"aten.mul.Tensor", "aten.mul.Scalar"})
_SUMS = frozenset(
    {"aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Scalar", "aten.pow.Tensor_Scalar"}
)
_WAY_OUT = "the batch does not divide and is padded: choose micro-batches and devices that divide it"


def with_numbers_of(own: Capture, padded: Capture, micro_batches: int) -> Capture:
    """The trace of a padded micro-batch with means over the samples that count; its nodes are changed in place.

    Args:
        own: the step traced at all of its own samples.   micro_batches: of as many samples as ``padded`` was traced at.

    Raises:
        Unsupported: the two are not the same ops, or a number follows from the batch in another way than a mean's does.
    """
    pairs = list(zip(padded.graph.nodes, own.graph.nodes, strict=False))
    if len(padded.graph.nodes) != len(own.graph.nodes) or any(_another(a, b) for a, b in pairs):
        raise Unsupported(f"the step computes something else at another batch size; {_WAY_OUT}")
    for node, twin in pairs:
        if node.op == "get_attr" and not _same(padded.constants[str(node.target)], own.constants[str(twin.target)]):
            raise Unsupported(f"the step computes with a constant tensor that follows from the size of the batch; {_WAY_OUT}")
        if node.op == "call_function":
            values = zip(node.args, twin.args, strict=True)
            node.args = tuple(_number(node, value, other, micro_batches) for value, other in values)
            for name, value in node.kwargs.items():
                _number(node, value, twin.kwargs[name], 0)
    return padded


def _another(node: fx.Node, twin: fx.Node) -> bool:
    return node.op != twin.op or (node.op == "call_function" and (node.target is not twin.target or len(node.args) != len(twin.args)))


def _same(padded: Tensor, own: Tensor) -> bool:
    return padded is own or (padded.shape == own.shape and padded.dtype is own.dtype and torch.equal(padded.nan_to_num(), own.nan_to_num()))


def _number(node: fx.Node, padded: object, own: object, micro_batches: int) -> object:
    if padded == own or not isinstance(padded, int | float) or not isinstance(own, int | float):
        return padded
    target = str(node.target)
    if micro_batches and target in _DIVISIONS:
        return own / micro_batches if micro_batches > 1 else own
    if micro_batches and target in _PRODUCTS:
        return own * micro_batches
    if micro_batches == 1 and target in _SUMS:
        return own
    if target.startswith("aten.arange") or is_view(Op(id="", target=target, args=(), outputs=("",), role=Role.FORWARD)):
        return padded  # a size, or where a part begins
    raise Unsupported(f"{target} computes with {own:g}, which follows from the size of the batch, and is no mean; {_WAY_OUT}")
