"""Ops that the front end took apart and a performer puts together again (batch norm, log softmax): computed again all together, or none of them.

    x -> sum -> mean -> x - mean -> ... rsqrt ... -> y          one op that makes y, from x
                                                                and one that makes mean and rsqrt, which are kept

Where the parts stand in one fragment, one kernel computes them, whose rounding is not that of the parts.  To compute y again from a kept mean would
be the parts' rounding, so that a Plan which recomputes would differ from one that does not in the last bit.  The statistics count as kept
where y is computed again, too, although their copies stand in its stead: a vector beside a map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from planner.ir.graph import LogicalGraph, Op, Role
from planner.stages.recompute.problem import ForwardOp, Keeping

__all__ = ["put_together"]

_ROOTS = frozenset({"aten.rsqrt.default", "aten.log.default"})
_PARTS = frozenset(
    f"aten.{name}"
    for name in (
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "add.Scalar", "sum.dim_IntList", "amax.default", "exp.default"),
        *("view.default", "unsqueeze.default", "expand.default", "_to_copy.default", "rsqrt.default", "log.default"),
    )
)


def put_together(ops: Sequence[ForwardOp], graph: LogicalGraph, size_bytes: Mapping[str, int]) -> tuple[ForwardOp, ...]:
    """The forward ops, each group of parts as one op and one for its statistics.

    Statistics are the results that are smaller than the largest.  Where something outside reads another part before the last one is computed,
    all parts are kept instead.
    """
    group_of: dict[str, int] = {}
    for number, members in enumerate(_groups(graph)):
        for member in members:
            group_of.setdefault(member, number)
    members_of: dict[int, list[ForwardOp]] = {}
    for op in ops:
        if op.id in group_of:
            members_of.setdefault(group_of[op.id], []).append(op)
    merged: dict[str, tuple[ForwardOp, ...]] = {}
    for together in members_of.values():
        merged |= _merged(together, ops, size_bytes)
    return tuple(one for op in ops for one in merged.get(op.id, (op,)))


def _merged(members: list[ForwardOp], ops: Sequence[ForwardOp], size_bytes: Mapping[str, int]) -> dict[str, tuple[ForwardOp, ...]]:
    """Member -> what stands in its place."""
    own, made = {op.id for op in members}, [v for op in members for v in op.outputs]
    largest = max((size_bytes[v] for v in made), default=0)
    statistics = tuple(v for v in made if size_bytes[v] < largest)
    inner = {*made}.difference(statistics)
    last = max(place for place, op in enumerate(ops) if op.id in own)
    early = any(op.id not in own and op.keeping is not Keeping.KEPT and inner.intersection(op.inputs) for op in ops[:last])
    if early or any(op.keeping is Keeping.KEPT for op in members):
        return {op.id: (replace(op, keeping=Keeping.KEPT if op.keeping is Keeping.CHOSEN else op.keeping),) for op in members}
    first, end = members[0], members[-1]
    whole = ForwardOp(
        id=end.id,
        inputs=tuple(dict.fromkeys(v for op in members for v in op.inputs if v not in made)),
        outputs=tuple(v for v in made if v in inner),
        duration_s=sum(op.duration_s for op in members),
        parts=tuple(op.id for op in members),
    )
    kept = ForwardOp(
        id=f"{end.id} statistics", inputs=(), outputs=statistics, duration_s=0.0, keeping=Keeping.KEPT, parts=tuple(op.id for op in members)
    )
    return dict.fromkeys((op.id for op in members), ()) | {first.id: (kept,)} | {end.id: (whole,) if end.id != first.id else (kept, whole)}


def _groups(graph: LogicalGraph) -> list[frozenset[str]]:
    """Of each root, the parts of the same module from which it is made, and those that are made from them."""
    producers, consumers = graph.producers(), graph.consumers()
    groups = []
    for root in graph.ops:
        if root.role is not Role.FORWARD or root.target not in _ROOTS:
            continue
        above = _reached([root], lambda op: [producers[v] for v in op.inputs if v in producers])
        sums = [op for op in above if op.target in ("aten.sum.dim_IntList", "aten.amax.default")]
        if not sums:
            continue
        groups.append(frozenset(op.id for op in _reached([root], lambda op: [r for v in op.outputs if v for r in consumers[v]], above)))
    return groups


def _reached(begin: list[Op], further: Callable[[Op], list[Op]], known: Sequence[Op] = ()) -> list[Op]:
    """The forward parts of the module of ``begin`` that are reached from it by such steps, and those known."""
    found = {op.id: op for op in (*known, *begin)}
    open_ops = list(begin)
    while open_ops:
        op = open_ops.pop()
        for other in further(op):
            if other.id not in found and other.role is Role.FORWARD and other.module == op.module and other.target in _PARTS:
                found[other.id] = other
                open_ops.append(other)
    return list(found.values())
