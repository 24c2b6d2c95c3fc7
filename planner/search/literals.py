"""A search on a graph that was scaled from other sizes (planner.search.bounds.scaled) is one on the traced graph, if they differ in
floating-point factors alone: these change no layout and no cost.  Only the ops that have such a factor are laid anew for the Plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from planner.ir.graph import LogicalGraph, Op
from planner.search.model import Assignment, SearchModel
from planner.search.strategies import Strategy, StrategySet, StrategySets, relabel
from planner.stages.copies import original_name

__all__ = ["Differs", "other_factors", "with_factors_of", "with_ops"]


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


def with_factors_of(
    graph: LogicalGraph, searched: LogicalGraph, model: SearchModel, assignment: Assignment, strategies: StrategySets
) -> tuple[SearchModel, Assignment]:
    """The choice problem of ``searched`` and what was decided on it, for another graph.

    Args:
        model: its passes before the search (planner.stages.prepare) copy and join ops, and look at no factor.
        strategies: of the mesh.

    Raises:
        Differs: the graphs differ in more than factors.
    """
    others = other_factors(graph, searched)
    if not others:
        return model, assignment
    staged = model.staged
    ops = {op.id: _with_factors(op, other) for op in staged.graph.ops if (other := others.get(_traced_as(op.id))) is not None}
    mine = replace(staged, graph=with_ops(staged.graph, ops))
    menus, laid = dict(model.ops), dict(assignment.ops)
    known: dict[tuple[StrategySet, int], tuple[Strategy, ...]] = {}  # menus of ops that are alike are one
    for op_id, op in ops.items():
        node, menu = model.ops[op_id]
        wanted, here = strategies.of(op, mine.graph.values), laid[op_id]
        if (wanted, id(menu)) not in known:
            by_layouts = {(s.inputs, s.outputs): s for s in wanted.strategies}
            if not all((s.inputs, s.outputs) in by_layouts for s in menu):
                raise Differs
            known[wanted, id(menu)] = tuple([by_layouts[s.inputs, s.outputs] for s in menu])
        menus[op_id] = node, known[wanted, id(menu)]
        laid[op_id] = relabel(next(s for s in known[wanted, id(menu)] if (s.inputs, s.outputs) == (here.inputs, here.outputs)).local, op)
    return replace(model, staged=mine, ops=menus), replace(assignment, ops=laid)


def _traced_as(op_id: str) -> str:
    """The traced op of which this is a copy (of a copy), or the op itself."""
    original = original_name(op_id)
    return op_id if original is None else _traced_as(original)


def _with_factors(op: Op, other: Op) -> Op:
    """The op with the other's floating-point numbers; the values that it reads stay."""
    return op.with_arguments(_merged(op.args, other.args), _merged(op.kwargs, other.kwargs))


def _merged(mine: Any, theirs: Any) -> Any:
    if type(mine) is not type(theirs):
        raise Differs
    if isinstance(mine, tuple):
        if len(mine) != len(theirs):
            raise Differs
        return tuple([_merged(a, b) for a, b in zip(mine, theirs, strict=True)])
    return theirs if isinstance(mine, float) else mine


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
