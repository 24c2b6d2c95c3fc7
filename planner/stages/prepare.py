"""Passes between the traced graph and the search, which reduce the bytes that cross from stage to stage or are saved.

1. Terms of the gradient of a parameter that several stages read are accumulated on the stages that compute them, and added once per step
   instead of once per micro-batch (planner.stages.sums).  For the norm of all gradients each placement joins its own (planner.stages.joins).
2. Views and creations are cheap: each (stage, role) that reads one makes its own copy, and the base is sent instead.  So no view of a parameter
   is saved as an activation, and no alias is counted twice.
3. With recompute, the backward part computes the values inside a numbered block (planner.stages.blocks) again, from the block's inputs, so that
   only these are saved (Chen et al. 2016, OneFlow's CheckpointingPass); or the results of given ops (planner.stages.recompute).  The copies stand
   right before their first reader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Role
from planner.opset import is_creation, is_view
from planner.stages.copies import copy_into_regions, recomputed_late
from planner.stages.joins import split_joins
from planner.stages.recompute.asked import inside_blocks, on_one_stage
from planner.stages.staged import Staged
from planner.stages.sums import split_accumulations

__all__ = ["check_recompute", "prepare"]


def prepare(
    graph: LogicalGraph, stage: Mapping[str, int], num_stages: int, *, recompute: bool | Collection[str] = False, interleave: int = 1
) -> Staged:
    """Run the passes; the meaning of the graph does not change.

    Args:
        stage: op id -> stage, of num_stages x interleave.
        recompute: save only the inputs of numbered blocks, and compute their other values again for the backward part; or the forward ops whose
            results it computes again.
        interleave: v, stages per placement: stage s lies on placement s mod num_stages.
    """
    split = split_joins(*split_accumulations(graph, stage, num_stages), num_stages)
    inside = inside_blocks(graph) if recompute is True else frozenset()
    again = inside if isinstance(recompute, bool) else on_one_stage(graph, stage, recompute)
    prepared, stages = copy_into_regions(*split, again)
    if again:
        prepared = recomputed_late(prepared)
    if interleave == 1:
        return Staged(prepared, stages, num_stages)
    return Staged(prepared, {op: s % num_stages for op, s in stages.items()}, num_stages, stages)


def check_recompute(graph: LogicalGraph) -> None:
    """Raises Unsupported if recomputing would change nothing, because the backward part reads no value from inside a numbered block."""
    inside = inside_blocks(graph)
    read = {value for op in graph.ops if op.role is Role.BACKWARD for value in op.inputs}
    for op in reversed(graph.ops):
        free = is_view(op) or is_creation(op)
        if op.role is not Role.FORWARD or not (free or op.id in inside) or read.isdisjoint(op.outputs):
            continue
        if not free:
            return
        read.update(op.inputs)
    modules = list(dict.fromkeys(op.module for op in graph.ops if op.role is Role.FORWARD and op.module))
    raise Unsupported(
        f"recompute makes again what numbered blocks (h.0, h.1, ...) keep for their own backward part, and none of the {len(modules)} modules of "
        f"this model keeps anything inside of one (modules are {', '.join(modules[:8])} ...); put the layers, and the functions between them, "
        f"into a ModuleList of blocks, or do not ask for recompute"
    )
