"""A bound on the whole from its pieces: a model's blocks are alike, so their price is the price of one, times their number.

A piece is the forward ops of one block (the modules up to their first number: h.3), with the backward ops, accumulations and updates that
belong to them.  What enters a piece is free in any layout; so the sum over the pieces of their optima is at most the optimum of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.ir.cluster import Cluster
from planner.ir.graph import GraphInput, InputKind, LogicalGraph, Op, Role
from planner.search.menu import op_shape
from planner.search.model import build_model
from planner.search.pins import Pin, applicable
from planner.solve import solve_exactly
from planner.solve.memory import least_demand, priced
from planner.stages import Staged, block_of

__all__ = ["Piece", "PiecePrice", "pieces_of", "price_piece"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of the graph that occurs ``times`` times."""

    graph: LogicalGraph
    times: int


@dataclass(frozen=True, slots=True)
class PiecePrice:
    """turns_s: optimum, counted as the search counts.  held_bytes: what that choice holds per device;  least_bytes: what any choice does."""

    turns_s: float
    held_bytes: float
    least_bytes: float


def pieces_of(graph: LogicalGraph) -> tuple[Piece, ...]:
    """Pieces in order of their first op; equal ones once."""
    block: dict[str, str] = {}
    made_by = graph.producers()
    readers = graph.consumers()
    for op in graph.ops:
        if op.role is Role.FORWARD:
            block[op.id] = block_of(op.module)
        elif op.role is Role.BACKWARD:
            block[op.id] = block.get(op.forward_of or "", block_of(op.module))
        else:
            sources = [block[made_by[v].id] for v in op.inputs if v in made_by and made_by[v].id in block]
            block[op.id] = sources[0] if sources else next((block_of(r.module) for v in op.inputs for r in readers[v] if r.module), "")
    members: dict[str, list[Op]] = {}
    for op in graph.ops:
        members.setdefault(block[op.id], []).append(op)
    groups: dict[tuple[object, ...], list[Sequence[Op]]] = {}
    for ops in members.values():
        groups.setdefault(_content(graph, ops), []).append(ops)
    return tuple(Piece(_subgraph(graph, alike[0]), len(alike)) for alike in groups.values())


def price_piece(
    piece: Piece,
    mesh: tuple[int, ...],
    cluster: Cluster,
    pins: Sequence[Pin],
    turns: int,
    in_flight: int,
    *,
    s_per_byte: float = 0.0,
) -> PiecePrice:
    """Optimum of a piece by itself.

    Args:
        turns: how often the micro-batch part counts.   in_flight: micro-batches kept for their backward pass.
        s_per_byte: a price on what is held, part of turns_s; least_bytes is found at no price only.
    """
    staged = Staged(piece.graph, {op.id: 0 for op in piece.graph.ops}, 1)
    here = applicable(pins, piece.graph)
    problem = build_model(staged, mesh, cluster, here, turns, limit_bytes=1e30, in_flight=(in_flight,)).problem
    solution = solve_exactly(priced(problem, {0: s_per_byte}))
    least_bytes = problem.peak(least_demand(problem)) if s_per_byte == 0.0 else 0.0
    return PiecePrice(solution.lower_bound, problem.peak(solution.choice), least_bytes)


def _content(graph: LogicalGraph, ops: Sequence[Op]) -> tuple[object, ...]:
    """What makes two pieces alike: everything but the names."""
    number: dict[str, int] = {}
    lines: list[object] = []
    for op in ops:
        reads = tuple(number.setdefault(v, len(number)) for v in op.inputs)
        makes = tuple(number.setdefault(v, len(number)) if v else -1 for v in op.outputs)
        entering = tuple(i.kind if (i := graph.input_of(v)) is not None else None for v in op.inputs)
        lines.append((op_shape(op, graph.values), op.role, reads, makes, entering))
    updated = tuple(sorted((number[old], number[new]) for old, new in graph.updates.items() if old in number and new in number))
    return (tuple(lines), updated)


def _subgraph(graph: LogicalGraph, ops: Sequence[Op]) -> LogicalGraph:
    made = {v for op in ops for v in op.outputs if v}
    read = dict.fromkeys(v for op in ops for v in op.inputs)
    updates = {old: new for old, new in graph.updates.items() if new in made and old in read}
    inputs = []
    for value in (*read, *(old for old in updates if old not in read)):
        if value in made:
            continue
        entry = graph.input_of(value)
        if entry is None or (entry.kind.is_state and value not in updates):
            entry = GraphInput(value=value, kind=InputKind.BATCH, name=f"enters.{value}")
        inputs.append(entry)
    used = {*read, *made}
    return replace(
        graph,
        ops=tuple(ops),
        inputs=tuple(inputs),
        values={v: graph.values[v] for v in graph.values if v in used},
        gradients={name: v for name, v in graph.gradients.items() if v in made},
        updates=updates,
    )
