"""A search on a graph that was scaled from other sizes (planner.search.bounds.scaled) is one on the traced graph, if they differ in
floating-point factors alone: these change no layout and no cost.  Only the ops that have such a factor are laid anew for the Plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from planner.ir.graph import LogicalGraph, Op
from planner.search.model import Assignment
from planner.search.strategies import LocalOp, StrategySets, relabel
from planner.stages import Staged

__all__ = ["Differs", "other_factors", "with_literals_of", "with_ops"]


class Differs(Exception):
    """Two graphs differ in more than floating-point factors."""


def other_factors(graph: LogicalGraph, other: LogicalGraph) -> Mapping[str, Op]:
    """The graph's ops that have other floating-point factors there, by id.

    Raises:
        Differs: in anything else.
    """
    same = all(getattr(graph, f.name) == getattr(other, f.name) for f in fields(graph) if f.name != "ops")
    if not same or len(graph.ops) != len(other.ops):
        raise Differs
    found: dict[str, Op] = {}
    for mine, theirs in zip(graph.ops, other.ops, strict=True):
        names = [(op.id, op.target, op.outputs, op.role, op.module, op.forward_of, op.draw, op.again) for op in (mine, theirs)]
        if names[0] != names[1]:
            raise Differs
        if not _are_same((mine.args, mine.kwargs), (theirs.args, theirs.kwargs)):
            found[mine.id] = mine
    return found


def with_ops(graph: LogicalGraph, ops: Mapping[str, Op]) -> LogicalGraph:
    """The graph with these ops instead of those of the same id."""
    return replace(graph, ops=tuple([ops.get(op.id, op) for op in graph.ops]))


def with_literals_of(staged: Staged, searched: Staged, assignment: Assignment, strategies: StrategySets) -> Assignment:
    """The decisions of a search on ``searched``, for the ops of ``staged``.

    Args:
        strategies: of the mesh.

    Raises:
        Differs: they are no decisions for it.
    """
    if (staged.stage, staged.num_stages, staged.interleaved) != (searched.stage, searched.num_stages, searched.interleaved):
        raise Differs
    others = other_factors(staged.graph, searched.graph)
    laid = {op_id: _laid(op, assignment.ops[op_id], staged, strategies) for op_id, op in others.items()}
    return replace(assignment, ops={**assignment.ops, **laid})


def _laid(op: Op, local: LocalOp, staged: Staged, strategies: StrategySets) -> LocalOp:
    for strategy in strategies.of(op, staged.graph.values).strategies:
        if (strategy.local.inputs, strategy.local.outputs) == (local.inputs, local.outputs):
            return relabel(strategy.local, op)
    raise Differs


def _are_same(mine: object, theirs: object) -> bool:
    """False: they differ in floating-point numbers.   Raises Differs: in anything else."""
    if type(mine) is not type(theirs):
        raise Differs
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        if len(mine) != len(theirs):
            raise Differs
        return sum(_are_same(a, b) for a, b in zip(mine, theirs, strict=True)) == len(mine)  # all are looked at
    if mine == theirs:
        return True
    if isinstance(mine, float):
        return False
    raise Differs
