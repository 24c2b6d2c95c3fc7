"""The forward graph as a stage planner sees it: pieces with work, and flows that cost bytes when a border cuts them.

A *piece* is what must lie on one stage: a forward op together with its backward ops (``forward_of``).  Its flop are those of both.
Views and creations are no pieces: whoever needs one makes its own (planner.stages.prepare), so they neither cost nor cross; the tensor below
them does.  (A view is a piece where a backward op that really computes belongs to it, since it then decides where that op lies.)

A *flow* is one tensor and the pieces that make or read it, in either direction:

    kind of tensor                                              members                       bytes per step
    activation, gradient of an activation                       maker and readers             m T
    parameter or other state                                    the readers                   T
    gradient of a parameter                                     where it arises, first reader T

    hop bytes of an assignment = sum over flows of size_bytes (last stage of a member - first stage of a member)      (1) -> hop_bytes()

So a tensor with many readers is paid once per border that it crosses, a relay is paid border by border, and the gradient of a cut activation
is counted from the backward graph itself (the same bytes as the activation, none for integers and masks).

Precedence: a reader lies not before the maker; the backward of a piece that hands gradients on lies not before the piece that it hands them to.
Pieces that these rules tie in a circle are one piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Op, Role
from planner.opset import flop, is_creation, is_view

__all__ = ["Flow", "Piece", "WorkDag", "hop_bytes", "spread", "work_dag"]


_Sums = dict[tuple[tuple[int, ...], bool], float]


@dataclass(frozen=True, slots=True)
class Piece:
    """ops: ids of its forward ops, in trace order.  compute_flop: forward and backward, of one micro-batch."""

    ops: tuple[str, ...]
    compute_flop: float


@dataclass(frozen=True, slots=True)
class Flow:
    """members: pieces, ascending, at least two.  size_bytes: per border crossed and step.  once: state, which crosses once per step."""

    members: tuple[int, ...]
    size_bytes: float
    once: bool = False


@dataclass(frozen=True, slots=True)
class WorkDag:
    """Pieces in a topological order; ``edges`` (a, b), a < b: stage of b >= stage of a."""

    pieces: tuple[Piece, ...]
    edges: tuple[tuple[int, int], ...]
    flows: tuple[Flow, ...]

    @property
    def total_flop(self) -> float:
        return sum(piece.compute_flop for piece in self.pieces)


def hop_bytes(dag: WorkDag, stage: Sequence[int]) -> float:
    """(1) Bytes per step over all borders between neighbouring stages.

    Args:
        stage: of each piece.
    """
    return sum(f.size_bytes * (max(stage[p] for p in f.members) - min(stage[p] for p in f.members)) for f in dag.flows)


def work_dag(graph: LogicalGraph, micro_batches: int = 1) -> WorkDag:
    """Pieces, precedence and flows of a graph.

    Args:
        graph: one step at micro-batch size.
        micro_batches: m, how often an activation crosses per step.

    Raises:
        Unsupported: no forward op, micro_batches < 1, or a backward op that does not say which forward op it belongs to.
        UnknownOp: an op without a rule, so without known flop.
    """
    if micro_batches < 1:
        raise Unsupported(f"{micro_batches} micro-batches; at least 1")
    makers, cheap = graph.producers(), {op.id for op in graph.ops if is_view(op) or is_creation(op)}
    below = _Below(makers, cheap)
    anchors = _anchors(graph, makers, cheap)
    if not anchors:
        raise Unsupported("the graph has no forward op that computes anything, so there is nothing to cut into stages")
    number = {op_id: n for n, op_id in enumerate(anchors)}
    home = _homes(graph, makers, number)
    split = _split_adders(graph, makers)
    flows: _Sums = defaultdict(float)
    edges: dict[tuple[int, int], None] = {}
    members: dict[str, set[int]] = defaultdict(set)
    for op in graph.ops:
        at = home.get(op.id)
        if at is None or op.id in split:
            continue
        if op.role is Role.FORWARD:
            edges.update({(home[makers[v].id], at): None for u in op.inputs for v in below.nearest(u, home) if v in makers})
        if op.id in cheap:
            continue
        for value in {v for u in op.inputs for v in below.real(u)}:
            members[value].add(at)
            made = makers.get(value)
            if made is not None and made.role is Role.BACKWARD and op.role is Role.BACKWARD:
                edges[at, home[made.id]] = None
    kinds = {i.value: i.kind for i in graph.inputs}
    for value, readers in members.items():
        made, size_bytes = makers.get(value), float(graph.values[value].size_bytes)
        if made is not None:
            flows[tuple(sorted(readers | {home[made.id]})), False] += micro_batches * size_bytes
        elif kinds[value].is_state:
            flows[tuple(sorted(readers)), True] += size_bytes
    for value, pieces in _gradient_pieces(graph, makers, home, split).items():
        # The parameter lives where it is first read; its gradient travels there.
        at_home = {min(members[value])} if value in members else set()
        flows[tuple(sorted(pieces | at_home)), True] += graph.values[value].size_bytes
    work = [0.0] * len(anchors)
    for op in graph.ops:
        if op.id in home and op.role is not Role.ACCUMULATE:
            work[home[op.id]] += flop(op, graph.values)
    return _condense([Piece((a,), w) for a, w in zip(anchors, work, strict=True)], edges, flows)


def spread(graph: LogicalGraph, dag: WorkDag, stage: Sequence[int]) -> dict[str, int]:
    """Stage of every forward op, views and creations included: after what they read, else with their first reader.

    Args:
        stage: of each piece of ``dag``, which was made from ``graph``.
    """
    found = {op: stage[n] for n, piece in enumerate(dag.pieces) for op in piece.ops}
    makers, readers = graph.producers(), graph.consumers()
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    waiting = []
    for op in forward:
        sources = [found[makers[v].id] for v in op.inputs if v in makers and makers[v].id in found]
        if op.id not in found and sources:
            found[op.id] = max(sources)
        elif op.id not in found:
            waiting.append(op)
    for op in reversed(waiting):
        found[op.id] = min((found[r.id] for v in op.outputs if v for r in readers[v] if r.id in found), default=0)
    return {op.id: found[op.id] for op in forward}


class _Below:
    """What stands below a value once views and creations are made where they are needed."""

    def __init__(self, makers: Mapping[str, Op], cheap: set[str]) -> None:
        self._makers, self._cheap = makers, cheap
        self._known: dict[str, tuple[str, ...]] = {}

    def real(self, value: str) -> tuple[str, ...]:
        """Values that really exist and that ``value`` is made from: itself, unless a view or a creation makes it."""
        path = [value]
        while path:
            here = path[-1]
            made = self._makers.get(here)
            inputs = made.inputs if made is not None and made.id in self._cheap else ()
            missing = [v for v in inputs if v not in self._known]
            if missing:
                path.extend(missing)
                continue
            path.pop()
            computed = made is None or made.id not in self._cheap
            self._known[here] = (here,) if computed else tuple(dict.fromkeys(v for u in inputs for v in self._known[u]))
        return self._known[value]

    def nearest(self, value: str, home: Mapping[str, int]) -> Iterable[str]:
        """The first values at or below ``value`` whose maker has a piece."""
        path = [value]
        while path:
            made = self._makers.get(here := path.pop())
            if made is None or made.id in home:
                yield here
            else:
                path.extend(made.inputs)


def _anchors(graph: LogicalGraph, makers: Mapping[str, Op], cheap: set[str]) -> list[str]:
    """Forward ops that compute, and views whose backward ops compute or hand a gradient to an accumulator."""
    accumulated = {op.inputs[0] for op in graph.ops if op.role is Role.ACCUMULATE}
    needed = {op.id for op in graph.ops if op.role is Role.FORWARD and op.id not in cheap}
    for op in graph.ops:
        if op.role is Role.BACKWARD and (op.id not in cheap or not accumulated.isdisjoint(op.outputs)):
            if op.forward_of is None:
                raise Unsupported(f"{op.where()} does not say which forward op it belongs to, so it cannot be placed on a stage")
            needed.add(op.forward_of)
    return [op.id for op in graph.ops if op.role is Role.FORWARD and op.id in needed]


def _homes(graph: LogicalGraph, makers: Mapping[str, Op], number: Mapping[str, int]) -> dict[str, int]:
    """Op -> piece, for forward, backward and accumulate ops that have one."""
    home = dict(number)
    for op in graph.ops:
        if op.role is Role.BACKWARD and op.forward_of is not None and op.forward_of in number:
            home[op.id] = number[op.forward_of]
        elif op.role is Role.ACCUMULATE and op.inputs[0] in makers and makers[op.inputs[0]].id in home:
            home[op.id] = home[makers[op.inputs[0]].id]
    return home


def _split_adders(graph: LogicalGraph, makers: Mapping[str, Op]) -> set[str]:
    """Adders of two gradients of one parameter: prepare() accumulates before them, so what they read crosses once per step with the state."""
    readers = graph.consumers()
    found: set[str] = set()
    for op in graph.ops:
        adder = makers.get(op.inputs[0]) if op.role is Role.ACCUMULATE else None
        if adder is None or adder.target != "aten.add.Tensor" or len(adder.inputs) != 2 or adder.kwargs or len(readers[op.inputs[0]]) != 1:
            continue
        if all(v in makers for v in adder.inputs):
            found |= {op.id, adder.id}
    return found


def _gradient_pieces(graph: LogicalGraph, makers: Mapping[str, Op], home: Mapping[str, int], split: set[str]) -> dict[str, set[int]]:
    """Parameter -> pieces in which its gradient, or a part of it, is accumulated."""
    values = {i.name: i.value for i in graph.inputs if i.kind is InputKind.PARAMETER}
    found: dict[str, set[int]] = {}
    for name, gradient in graph.gradients.items():
        accumulator = makers[gradient]
        parts = makers[accumulator.inputs[0]].inputs if accumulator.id in split else accumulator.inputs[:1]
        found[values[name]] = {home[makers[v].id] for v in parts if v in makers and makers[v].id in home}
    return found


def _condense(pieces: Sequence[Piece], edges: Iterable[tuple[int, int]], flows: _Sums) -> WorkDag:
    """One piece per circle of precedence, numbered topologically (trace order where it has a choice); equal flows are added up."""
    net = nx.DiGraph()
    net.add_nodes_from(range(len(pieces)))
    net.add_edges_from((a, b) for a, b in edges if a != b)
    groups = [sorted(group) for group in nx.strongly_connected_components(net)]
    group_of = {p: g for g, group in enumerate(groups) for p in group}
    short = nx.DiGraph()
    short.add_nodes_from(range(len(groups)))
    short.add_edges_from((group_of[a], group_of[b]) for a, b in net.edges if group_of[a] != group_of[b])
    order = list(nx.lexicographical_topological_sort(short, key=lambda g: groups[g][0]))
    place = {g: n for n, g in enumerate(order)}
    merged: _Sums = defaultdict(float)
    for (members, once), size_bytes in flows.items():
        key = tuple(sorted({place[group_of[p]] for p in members}))
        if len(key) > 1 and size_bytes > 0:
            merged[key, once] += size_bytes
    return WorkDag(
        tuple(Piece(tuple(op for p in groups[g] for op in pieces[p].ops), sum(pieces[p].compute_flop for p in groups[g])) for g in order),
        tuple(sorted({(place[a], place[b]) for a, b in short.edges})),
        tuple(Flow(members, merged[members, once], once) for members, once in sorted(merged)),
    )
