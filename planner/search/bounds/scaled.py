"""Pieces at any micro-batch size, from the pieces at two sizes, so that a search over sizes need not trace the model at each of them.

Every integer in the graph that differs between the two sizes must be proportional to the size (the batch dim, and dims folded with it).
Floating-point factors, such as the 1/tokens of a mean, stay as they are; they do not change costs, so these graphs serve for costs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap

from planner.ir.graph import Arg, LogicalGraph, Op
from planner.ir.tensor import TensorType
from planner.search.bounds.pieces import ModelPiece

__all__ = ["scaled_graph", "scaled_pieces"]


class _NotProportional(Exception):
    """Some integer is not proportional to the micro-batch size."""


def scaled_pieces(
    one: Sequence[ModelPiece], two: Sequence[ModelPiece], samples: tuple[int, int], wanted: int
) -> tuple[ModelPiece, ...] | None:
    """The pieces at ``wanted`` samples per micro-batch, from those at two sizes, ``samples``; None if some integer is not proportional."""
    if len(one) != len(two):
        return None
    try:
        return tuple(starmap(_Scale(*samples, wanted).piece, zip(one, two, strict=True)))
    except _NotProportional:
        return None


def scaled_graph(one: LogicalGraph, two: LogicalGraph, samples: tuple[int, int], wanted: int) -> LogicalGraph | None:
    """The whole graph at ``wanted`` samples per micro-batch, from those at two sizes, ``samples``; None if some integer is not proportional."""
    if len(one.ops) != len(two.ops):
        return None
    try:
        return _Scale(*samples, wanted).graph(one, two)
    except _NotProportional:
        return None


class _Scale:
    def __init__(self, first: int, second: int, wanted: int) -> None:
        self.first, self.second, self.wanted = first, second, wanted
        self._types: dict[tuple[int, int], TensorType] = {}
        """By the identities of the two, which their graphs hold."""

    def piece(self, one: ModelPiece, two: ModelPiece) -> ModelPiece:
        if one.times != two.times or len(one.graph.ops) != len(two.graph.ops):
            raise _NotProportional
        return replace(one, graph=self.graph(one.graph, two.graph))

    def graph(self, one: LogicalGraph, two: LogicalGraph) -> LogicalGraph:
        other: dict[str, str] = {}  # name in one -> name in two; they may differ
        for a, b in zip(one.ops, two.ops, strict=True):
            if a.target != b.target or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
                raise _NotProportional
            other.update(zip(a.inputs, b.inputs, strict=True))
            other.update((x, y) for x, y in zip(a.outputs, b.outputs, strict=True) if x is not None and y is not None)
        values = {v: self.type(t, two.values[other.get(v, v)]) for v, t in one.values.items() if other.get(v, v) in two.values}
        if len(values) != len(one.values):
            raise _NotProportional
        return replace(one, ops=tuple(starmap(self.op, zip(one.ops, two.ops, strict=True))), values=values)

    def op(self, one: Op, two: Op) -> Op:
        if len(one.kwargs) != len(two.kwargs):
            raise _NotProportional
        kwargs = tuple([(name, self.arg(a, b)) for (name, a), (_, b) in zip(one.kwargs, two.kwargs, strict=True)])
        args = tuple([self.arg(a, b) for a, b in zip(one.args, two.args, strict=True)])
        return one if args == one.args and kwargs == one.kwargs else one.with_arguments(args, kwargs)

    def type(self, one: TensorType, two: TensorType) -> TensorType:
        key = id(one), id(two)
        if key not in self._types:
            if one.ndim != two.ndim:
                raise _NotProportional
            self._types[key] = one.with_shape(tuple(starmap(self.number, zip(one.shape, two.shape, strict=True))))
        return self._types[key]

    def arg(self, one: Arg, two: Arg) -> Arg:
        if isinstance(one, tuple) and isinstance(two, tuple):
            if len(one) != len(two):
                raise _NotProportional
            return tuple(starmap(self.arg, zip(one, two, strict=True)))
        if type(one) is int and type(two) is int:
            return self.number(one, two)
        return one

    def number(self, one: int, two: int) -> int:
        if one == two:
            return one
        if one * self.second != two * self.first or one * self.wanted % self.first:
            raise _NotProportional
        return one * self.wanted // self.first
