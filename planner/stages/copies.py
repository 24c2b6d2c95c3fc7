"""Copies of ops in other regions, so that no view is sent to another region and, with recompute, a block saves only its inputs.

A copy has the name of its original and of its region:  transpose_3~1b  is the op transpose_3 copied to the backward part of stage 1, and its
result is named likewise.  A Plan's file has only the name, so this module makes the name (-> copy_name) and reads it (-> original_name,
is_recomputed).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from planner.ir.graph import LogicalGraph, Op, Role
from planner.ir.tensor import TensorType
from planner.opset import is_creation, is_view
from planner.stages.staged import Region, region_of

__all__ = ["copy_into_regions", "is_recomputed", "recomputed_late"]

_MARK = "~"


def copy_name(name: str, region: Region) -> str:
    """The name of the copy of an op or of a value for a region.

    >>> copy_name("view_7", (1, Role.BACKWARD))
    'view_7~1b'
    """
    return f"{name}{_MARK}{region[0]}{region[1].value[0]}"


def original_name(name: str) -> str | None:
    """The name from which ``copy_name`` made this one; None for any other name.

    >>> original_name("view_7~1b"), original_name("view_7")
    ('view_7', None)
    """
    original, mark, _ = name.rpartition(_MARK)
    return original if mark else None


def is_recomputed(op: Op) -> bool:
    """Whether the op is a copy that the backward part makes of a forward op, as planned, or as the module has it (torch.utils.checkpoint)."""
    return op.again or (op.role is Role.BACKWARD and op.forward_of is None and original_name(op.id) is not None)


def copy_into_regions(graph: LogicalGraph, stage: Mapping[str, int], again: Collection[str]) -> tuple[LogicalGraph, dict[str, int]]:
    """Copy views, creations and the ops of ``again`` into each region that reads them; returns the graph and the stage of every op.

    Args:
        again: ops that each reading region recomputes.
    """
    producers, stage = graph.producers(), dict(stage)
    regions = {op.id: region_of(op, stage, producers) for op in graph.ops}
    # Value -> regions that read it; ops are visited from the last to the first.
    read_in: defaultdict[str, dict[Region, None]] = defaultdict(dict)
    results = {graph.loss, graph.mean_loss, *graph.gradients.values(), *graph.updates.values(), *graph.output_values}
    values = dict(graph.values)
    ops: list[Op] = []
    for op in reversed(graph.ops):
        here = regions[op.id]
        where: Iterable[Region] = (here,)
        if (is_view(op) or is_creation(op) or op.id in again) and results.isdisjoint(op.outputs):
            where = {region: None for value in op.outputs if value is not None for region in read_in.get(value, ())}
        for region in where:
            ops.append(op if region == here else _copy(op, region, values, stage))
            for value in op.inputs:
                read_in[value][region] = None
    ops.reverse()
    copies = {value for op in ops if op.id not in regions for value in op.outputs if value}
    copied = {original_name(value) for value in copies}
    renamed = []
    for op in ops:
        if copied.isdisjoint(op.inputs):
            renamed.append(op)
            continue
        region = regions.get(op.id, (stage[op.id], op.role))
        names = {value: copy for value in op.inputs if value in copied and (copy := copy_name(value, region)) in copies}
        renamed.append(op.renamed(names))
    used = {v for op in renamed for v in (*op.inputs, *op.outputs) if v} | {i.value for i in graph.inputs}
    trimmed = replace(graph, ops=tuple(renamed), values={v: t for v, t in values.items() if v in used})
    trimmed.verify()
    return trimmed, {op.id: stage[op.id] for op in renamed}


def _copy(op: Op, region: Region, values: dict[str, TensorType], stage: dict[str, int]) -> Op:
    outputs = tuple(copy_name(v, region) if v else None for v in op.outputs)
    for old, new in zip(op.outputs, outputs, strict=True):
        if old and new:
            values[new] = values[old]
    copy = replace(op, id=copy_name(op.id, region), outputs=outputs, role=region[1])
    stage[copy.id] = region[0]
    return copy


def recomputed_late(graph: LogicalGraph) -> LogicalGraph:
    """The same graph with each recomputed op right before its first reader, so that results live as short as possible.

    A sort by graphlib would place the ops level by level, far from their readers.
    """
    copies = {v: op for op in graph.ops if is_recomputed(op) for v in op.outputs if v}
    placed: dict[str, Op] = {}
    for op in graph.ops:
        if is_recomputed(op):
            continue
        path = [op]
        while path:
            missing = next((copies[v] for v in path[-1].inputs if v in copies and copies[v].id not in placed), None)
            if missing is None:
                ready = path.pop()
                placed.setdefault(ready.id, ready)
            else:
                path.append(missing)
    return replace(graph, ops=tuple(placed.values()))
