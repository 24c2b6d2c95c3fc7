"""The graph on which stages are cut: groups of ops with work, and flows of tensors, which cost bytes if a border between stages crosses them.

A *group* is a set of ops that must lie on one stage: a forward op and its backward ops (``forward_of``).  Its flop are those of all of them.
Views and creations are no groups: each region that reads one makes its own copy (planner.stages.copies), so they have no cost and do not
cross; the tensor that they are made from does.  (A view is a group if a backward op that computes belongs to it, because that op needs a stage.)

A *flow* is one tensor and the groups that make or read it:

    kind of tensor                                              members                       bytes per step
    activation, gradient of an activation                       maker and readers             m T
    parameter or other state                                    the readers                   T
    gradient of a parameter                                     makers of its terms,          T
                                                                first reader of the parameter

    crossing bytes = sum over flows of size_bytes (last stage of a member - first stage of a member)            (1) -> crossing_bytes()

So a tensor with many readers is counted once per border that it crosses.  The gradient of an activation is counted as a tensor of the backward
graph (with the bytes of the activation; integers and masks have none).  A weight that is tied n times has a gradient of n terms: each is
accumulated on the stage that computes it and crosses once per step (planner.stages.sums).  If a tensor goes to, or comes from, several other
stages, a Plan sends it to each of them; a border that several of these messages cross counts once here.

Precedence: the stage of a reader is not before that of the maker; the stage of a group whose backward part sends a gradient to another group is
not before that group's stage.  Groups that form a cycle under these rules are one group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import networkx as nx

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Op, Role
from planner.opset import flop, is_creation, is_view
from planner.stages.sums import GradientSum, addends

__all__ = ["Flow", "OpGroup", "WorkDag", "crossing_bytes", "spread", "work_dag"]


_Sums = dict[tuple[tuple[int, ...], bool], float]


@dataclass(frozen=True, slots=True)
class OpGroup:
    """ops: ids of its forward ops, in trace order.  compute_flop: forward and backward, of one micro-batch."""

    ops: tuple[str, ...]
    compute_flop: float


@dataclass(frozen=True, slots=True)
class Flow:
    """members: groups, ascending, at least two.  size_bytes: per border crossed and step.  once: state, which crosses once per step."""

    members: tuple[int, ...]
    size_bytes: float
    once: bool = False


@dataclass(frozen=True, slots=True)
class WorkDag:
    """Groups in a topological order; ``edges`` (a, b), a < b: stage of b >= stage of a."""

    groups: tuple[OpGroup, ...]
    edges: tuple[tuple[int, int], ...]
    flows: tuple[Flow, ...]

    @property
    def total_flop(self) -> float:
        return sum(group.compute_flop for group in self.groups)


def crossing_bytes(dag: WorkDag, stage: Sequence[int]) -> float:
    """(1) Bytes per step over all borders between neighbouring stages.

    Args:
        stage: of each group.
    """
    return sum(f.size_bytes * (max(stage[p] for p in f.members) - min(stage[p] for p in f.members)) for f in dag.flows)


def work_dag(graph: LogicalGraph, micro_batches: int = 1) -> WorkDag:
    """Groups, precedence and flows of a graph.

    Args:
        graph: one step at micro-batch size.
        micro_batches: m, how often an activation crosses per step.

    Raises:
        Unsupported: no forward op, micro_batches < 1, or a backward op that does not name its forward op.
        UnknownOp: an op has no rule, so its flop are unknown.
    """
    if micro_batches < 1:
        raise Unsupported(f"{micro_batches} micro-batches; at least 1")
    makers, cheap = graph.producers(), {op.id for op in graph.ops if is_view(op) or is_creation(op)}
    below = _Below(makers, cheap)
    sums = _gradient_sums(graph, makers)
    summed_later = sums.keys() | {addition.id for made in sums.values() for addition in made.additions}
    anchors = _anchors(graph, cheap, summed_later)
    if not anchors:
        raise Unsupported("the graph has no forward op that computes anything, so there is nothing to cut into stages")
    number = {op_id: n for n, op_id in enumerate(anchors)}
    group_of = _group_of_ops(graph, makers, number)
    flows: _Sums = defaultdict(float)
    edges: dict[tuple[int, int], None] = {}
    members: dict[str, set[int]] = defaultdict(set)
    for op in graph.ops:
        at = group_of.get(op.id)
        if at is None or op.id in summed_later:
            continue
        if op.role is Role.FORWARD:
            edges.update({(group_of[makers[v].id], at): None for u in op.inputs for v in below.nearest(u, group_of) if v in makers})
        if op.id in cheap:
            continue
        for value in {v for u in op.inputs for v in below.real(u)}:
            members[value].add(at)
            made = makers.get(value)
            if made is not None and made.role is Role.BACKWARD and op.role is Role.BACKWARD:
                edges[at, group_of[made.id]] = None
    kinds = {i.value: i.kind for i in graph.inputs}
    for value, readers in members.items():
        made, size_bytes = makers.get(value), float(graph.values[value].size_bytes)
        if made is not None:
            flows[tuple(sorted(readers | {group_of[made.id]})), False] += micro_batches * size_bytes
        elif kinds[value].is_state:
            flows[tuple(sorted(readers)), True] += size_bytes
    copies: dict[str, list[str]] = defaultdict(list)
    for given in graph.inputs:
        if given.copy_of is not None:
            copies[given.copy_of].append(given.value)
    for value, groups in _gradient_groups(graph, makers, group_of, sums).items():
        # The parameter is stored on the stage of its first reader (planner.stages.staged); its gradient is sent there.
        first_reader = {min(reads)} if (reads := [n for v in (value, *copies[value]) for n in members.get(v, ())]) else set()
        flows[tuple(sorted(groups | first_reader)), True] += graph.values[value].size_bytes
    work = [0.0] * len(anchors)
    for op in graph.ops:
        if op.id in group_of and op.role is not Role.ACCUMULATE:
            work[group_of[op.id]] += flop(op, graph.values)
    return _condense([OpGroup((a,), w) for a, w in zip(anchors, work, strict=True)], edges, flows)


def spread(graph: LogicalGraph, dag: WorkDag, stage: Sequence[int]) -> dict[str, int]:
    """Stage of every forward op.  A view or a creation has the stage of the last op that it reads, else that of its first reader.

    Args:
        stage: of each group of ``dag``, which was made from ``graph``.
    """
    stage_of = {op: stage[n] for n, group in enumerate(dag.groups) for op in group.ops}
    makers, readers = graph.producers(), graph.consumers()
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    waiting = []
    for op in forward:
        sources = [stage_of[makers[v].id] for v in op.inputs if v in makers and makers[v].id in stage_of]
        if op.id not in stage_of and sources:
            stage_of[op.id] = max(sources)
        elif op.id not in stage_of:
            waiting.append(op)
    for op in reversed(waiting):
        stage_of[op.id] = min((stage_of[r.id] for v in op.outputs if v for r in readers[v] if r.id in stage_of), default=0)
    return {op.id: stage_of[op.id] for op in forward}


class _Below:
    """The values from which views and creations make a value."""

    def __init__(self, makers: Mapping[str, Op], cheap: set[str]) -> None:
        self._makers, self._cheap = makers, cheap
        self._real: dict[str, tuple[str, ...]] = {}

    def real(self, value: str) -> tuple[str, ...]:
        """The computed values and inputs from which views make ``value``: itself, unless a view or a creation makes it."""
        path = [value]
        while path:
            here = path[-1]
            made = self._makers.get(here)
            inputs = made.inputs if made is not None and made.id in self._cheap else ()
            missing = [v for v in inputs if v not in self._real]
            if missing:
                path.extend(missing)
                continue
            path.pop()
            computed = made is None or made.id not in self._cheap
            self._real[here] = (here,) if computed else tuple(dict.fromkeys(v for u in inputs for v in self._real[u]))
        return self._real[value]

    def nearest(self, value: str, group_of: Mapping[str, int]) -> Iterable[str]:
        """The first values at or below ``value`` whose maker has a group."""
        path = [value]
        while path:
            made = self._makers.get(here := path.pop())
            if made is None or made.id in group_of:
                yield here
            else:
                path.extend(made.inputs)


def _anchors(graph: LogicalGraph, cheap: Set[str], summed_later: Set[str]) -> list[str]:
    """Forward ops that compute, and views whose backward ops compute or make a gradient that is accumulated.

    An addition of gradients that prepare() takes apart is done on the stages of its terms, so its view needs no stage.
    """
    accumulated = {op.inputs[0] for op in graph.ops if op.role is Role.ACCUMULATE}
    needed = {op.id for op in graph.ops if op.role is Role.FORWARD and op.id not in cheap}
    for op in graph.ops:
        if op.id in summed_later or op.role is not Role.BACKWARD:
            continue
        if op.id not in cheap or not accumulated.isdisjoint(op.outputs):
            if op.forward_of is None:
                raise Unsupported(f"{op.where()} does not say which forward op it belongs to, so it cannot be placed on a stage")
            needed.add(op.forward_of)
    return [op.id for op in graph.ops if op.role is Role.FORWARD and op.id in needed]


def _group_of_ops(graph: LogicalGraph, makers: Mapping[str, Op], number: Mapping[str, int]) -> dict[str, int]:
    """Op -> group, for forward, backward and accumulate ops that have one."""
    group_of = dict(number)
    for op in graph.ops:
        if op.role is Role.BACKWARD and op.forward_of is not None and op.forward_of in number:
            group_of[op.id] = number[op.forward_of]
        elif op.role is Role.ACCUMULATE and op.inputs[0] in makers and makers[op.inputs[0]].id in group_of:
            group_of[op.id] = group_of[makers[op.inputs[0]].id]
    return group_of


def _gradient_sums(graph: LogicalGraph, makers: Mapping[str, Op]) -> dict[str, GradientSum]:
    """Accumulation -> the sum that prepare() takes apart; only sums of which every term is the result of an op."""
    readers = graph.consumers()
    sums = {op.id: addends(op.inputs[0], makers, readers) for op in graph.ops if op.role is Role.ACCUMULATE}
    return {op_id: made for op_id, made in sums.items() if made.additions and all(v in makers for v in made.terms)}


def _gradient_groups(
    graph: LogicalGraph, makers: Mapping[str, Op], group_of: Mapping[str, int], sums: Mapping[str, GradientSum]
) -> dict[str, set[int]]:
    """Parameter -> groups in which its gradient, or a term of it, is accumulated."""
    values = {i.name: i.value for i in graph.inputs if i.kind is InputKind.PARAMETER}
    groups_of: dict[str, set[int]] = {}
    for name, gradient in graph.gradients.items():
        accumulation = makers[gradient]
        terms = sums[accumulation.id].terms if accumulation.id in sums else accumulation.inputs[:1]
        groups_of[values[name]] = {group_of[makers[v].id] for v in terms if v in makers and makers[v].id in group_of}
    return groups_of


def _condense(groups: Sequence[OpGroup], edges: Iterable[tuple[int, int]], flows: _Sums) -> WorkDag:
    """One group per strongly connected component, in topological order (of several orders, the closest to the trace); equal flows are summed."""
    precedence = nx.DiGraph()
    precedence.add_nodes_from(range(len(groups)))
    precedence.add_edges_from((a, b) for a, b in edges if a != b)
    components = [sorted(component) for component in nx.strongly_connected_components(precedence)]
    component_of = {p: c for c, component in enumerate(components) for p in component}
    condensed = nx.DiGraph()
    condensed.add_nodes_from(range(len(components)))
    condensed.add_edges_from((component_of[a], component_of[b]) for a, b in precedence.edges if component_of[a] != component_of[b])
    order = list(nx.lexicographical_topological_sort(condensed, key=lambda c: components[c][0]))
    place = {c: n for n, c in enumerate(order)}
    merged: _Sums = defaultdict(float)
    for (members, once), size_bytes in flows.items():
        key = tuple(sorted({place[component_of[p]] for p in members}))
        if len(key) > 1 and size_bytes > 0:
            merged[key, once] += size_bytes
    return WorkDag(
        tuple(
            OpGroup(tuple(op for p in components[c] for op in groups[p].ops), sum(groups[p].compute_flop for p in components[c]))
            for c in order
        ),
        tuple(sorted({(place[a], place[b]) for a, b in condensed.edges})),
        tuple(Flow(members, merged[members, once], once) for members, once in sorted(merged)),
    )
