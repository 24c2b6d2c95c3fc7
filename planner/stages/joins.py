"""The norm of all gradients in a pipeline: each placement puts its own measures together, and one number per placement crosses.

join(a, b, c, d) = join(join(a, b), join(c, d))          the sum of squares, the largest absolute value          -> split_joins()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.ir.graph import LogicalGraph, Op, Ref
from planner.opset.optimizer import JOINS

__all__ = ["split_joins"]


def split_joins(graph: LogicalGraph, stage: Mapping[str, int], num_stages: int) -> tuple[LogicalGraph, dict[str, int]]:
    """Take apart every op that joins measures of several placements (stage mod num_stages); returns the graph and the stage of every op."""
    producers, stages, values = graph.producers(), dict(stage), dict(graph.values)
    ops: list[Op] = []
    for op in graph.ops:
        by_placement: dict[int, list[str]] = {}
        for value in op.inputs if op.target in JOINS else ():
            by_placement.setdefault(stages[producers[value].id] % num_stages, []).append(value)
        if len(by_placement) > 1:
            (result,) = op.outputs
            joined: list[str] = []
            for placement, members in by_placement.items():
                if len(members) == 1:
                    joined += members
                    continue
                part = f"{result}.{placement}"
                ops.append(replace(op, id=f"{op.id}.{placement}", args=tuple(map(Ref, members)), outputs=(part,)))
                stages[f"{op.id}.{placement}"] = stages[producers[members[0]].id]
                values[part] = graph.values[members[0]]
                joined.append(part)
            op = replace(op, args=tuple(map(Ref, joined)))
        ops.append(op)
    return replace(graph, ops=tuple(ops), values=values), stages
