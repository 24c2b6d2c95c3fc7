"""Means whose denominator depends on the data: ignored targets, class weights, masks.

One device divides the sum over the whole batch by the count over the whole batch.  The mean over micro-batches of sum / count is another
number unless every micro-batch counts the same:

    targets of two micro-batches   3 7 . .      2 5 1 4        (.  ignored)
    whole batch                    (l1 + .. + l6) / 6
    mean of two means              ((l1 + l2) / 2 + (l3 + .. + l6) / 4) / 2

So the counts of each batch are worked out from the batch alone, and a batch whose micro-batches differ is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.frontend.tracing.stamp import STAMP, Stamp
from planner.frontend.tracing.trace import Capture
from planner.ir.graph import Role

__all__ = ["Denominators"]

aten = torch.ops.aten

_MOST_SHOWN = 4
_RELATIVE = 1e-6


class Denominators:
    """The scalars of a traced micro-batch that the forward part divides scalars by, and that follow from the batch alone."""

    def __init__(self, captured: Capture) -> None:
        nodes = list(captured.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        first = len(captured.parameters) + len(captured.buffers)
        sliced = {
            node
            for node, dim in zip(placeholders[first : first + len(captured.batch_dims)], captured.batch_dims, strict=True)
            if dim is not None
        }
        self._places = {node: place for place, node in enumerate(placeholders[first : first + len(captured.batch_dims)])}
        self._constants: Mapping[str, Tensor] = captured.constants
        known = _follows_from(nodes, set(self._places))
        varies = _reached_from(nodes, sliced)
        found = dict.fromkeys(b for node in nodes for b in _divisors(node) if b in known and b in varies)
        self._found = tuple(found)
        self._work = _needed(nodes, found)

    def values(self, inputs: Sequence[Tensor]) -> tuple[float, ...]:
        """What one micro-batch divides by."""
        held: dict[fx.Node, object] = {}
        for node in self._work:
            if node.op == "placeholder":
                held[node] = inputs[self._places[node]]
            elif node.op == "get_attr":
                held[node] = self._constants[str(node.target)]
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), cast(Any, held.__getitem__))
                assert callable(node.target)
                held[node] = node.target(*args, **kwargs)
        return tuple(float(torch.as_tensor(held[node])) for node in self._found)

    def difference(self, micro_batches: Sequence[Sequence[Tensor]], what: str) -> str:
        """What is to be told of a batch whose micro-batches divide by different numbers: the numbers, where they are and the way out; else empty.

        Args:
            what: the batch, as messages name it.
        """
        if not self._found or any(t.is_meta or isinstance(t, torch._subclasses.FakeTensor) for t in micro_batches[0]):
            return ""
        counts = [self.values(inputs) for inputs in micro_batches]
        for node, of_node in zip(self._found, zip(*counts, strict=True), strict=True):
            if not all(math.isclose(value, of_node[0], rel_tol=_RELATIVE) for value in of_node):
                stamp = node.meta.get(STAMP)
                where = f"module {stamp.module!r}" if isinstance(stamp, Stamp) and stamp.module else "the loss"
                shown = ", ".join(f"{value:g}" for value in of_node[:_MOST_SHOWN]) + (", ..." if len(of_node) > _MOST_SHOWN else "")
                return (
                    f"{where} takes a mean whose count depends on the data: the {len(of_node)} micro-batches of {what} count {shown} (ignored "
                    "targets, class weights, a mask), and each weighs alike, as where one device accumulates: the mean of their means is not the "
                    "mean of the batch; plan with one micro-batch, or divide a sum by a number that every micro-batch has"
                )
        return ""


def _divisors(node: fx.Node) -> tuple[fx.Node, ...]:
    """Scalars that a forward node divides a scalar by."""
    stamp = node.meta.get(STAMP)
    if not isinstance(stamp, Stamp) or stamp.role is not Role.FORWARD or node.op != "call_function":
        return ()
    if node.target is aten.div.Tensor and all(isinstance(arg, fx.Node) for arg in node.args[:2]) and _is_scalar(node):
        (_, divisor) = node.args[:2]
        return (divisor,) if isinstance(divisor, fx.Node) else ()
    (operand, *_) = node.args or (None,)
    return (operand,) if node.target is aten.reciprocal.default and isinstance(operand, fx.Node) and _is_scalar(node) else ()


def _is_scalar(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.ndim == 0


def _follows_from(nodes: Sequence[fx.Node], inputs: set[fx.Node]) -> set[fx.Node]:
    """Nodes that follow from these inputs and from constants alone, without drawing."""
    known = set(inputs)
    for node in nodes:
        drawn = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        if node.op == "get_attr" or (node.op == "call_function" and not drawn and all(n in known for n in node.all_input_nodes)):
            known.add(node)
    return known


def _reached_from(nodes: Sequence[fx.Node], inputs: set[fx.Node]) -> set[fx.Node]:
    reached = set(inputs)
    for node in nodes:
        if any(n in reached for n in node.all_input_nodes):
            reached.add(node)
    return reached


def _needed(nodes: Sequence[fx.Node], wanted: Mapping[fx.Node, None]) -> tuple[fx.Node, ...]:
    needed = set(wanted)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return tuple(node for node in nodes if node in needed)
