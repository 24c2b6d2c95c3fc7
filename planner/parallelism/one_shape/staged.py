"""The graph of a shape, cut into its stages and made ready for the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

from planner.cost import op_work_s, transfer_s
from planner.ir.cluster import Cluster
from planner.ir.graph import LogicalGraph, Role
from planner.parallelism.memory import SearchMemory, again_of
from planner.parallelism.options import PlanOptions
from planner.parallelism.shape import stage_devices
from planner.stages import Staged, assign_stages, prepare

__all__ = ["learn_staged", "staged_graph", "staged_once"]


def staged_once(graph: LogicalGraph, options: PlanOptions, cluster: Cluster, memory: SearchMemory) -> Staged:
    """``staged_graph``, looked up where a search has made it.

    Raises:
        Unsupported: as there.
    """
    again = memory.again(graph, options.again, cluster).ops
    return memory.staged(_staged_key(memory.number(graph), options, cluster, again), partial(staged_graph, graph, options, cluster, again))


def learn_staged(graph: LogicalGraph, options: PlanOptions, cluster: Cluster, memory: SearchMemory, staged: Staged) -> None:
    """Have ``staged_once`` find what was made of the graph in another way."""
    again = memory.again(graph, options.again, cluster).ops
    memory.staged(_staged_key(memory.number(graph), options, cluster, again), lambda: staged)


def _staged_key(number: int, options: PlanOptions, cluster: Cluster, again: frozenset[str]) -> tuple[object, ...]:
    """All that ``staged_graph`` depends on."""
    cut = options.cuts, options.balance, options.micro_batches if options.balance is not None or cluster.parts else None, cluster.parts
    return number, options.stages, options.interleave, again, *cut


def staged_graph(graph: LogicalGraph, options: PlanOptions, cluster: Cluster, again: frozenset[str] | None = None) -> Staged:
    """The graph cut as the options ask for, or as the planner cuts it, and made ready for the search.

    Args:
        options: with stages and micro-batches.   again: what the backward part computes again; None: worked out.

    Raises:
        Unsupported: no such cut, or nothing to recompute.
    """
    stages, micro_batches = options.stages, options.micro_batches
    assert stages is not None and micro_batches is not None
    op_s: list[Mapping[str, float]] = []
    send_s: list[Callable[[float], float]] = []
    if cluster.parts:
        devices, size, total = stage_devices(cluster, stages), cluster.num_devices // stages, stages * options.interleave
        groups = [range(s % stages * size, (s % stages + 1) * size) for s in range(total)]
        op_s = [_op_s(graph, devices[s % stages], size) for s in range(total)]
        send_s = [partial(_send_s, cluster, *pair) for pair in pairwise(groups)]
    number = stages * options.interleave
    stage = assign_stages(graph, number, options.cuts, balance=options.balance, micro_batches=micro_batches, op_s=op_s, send_s=send_s)
    ops = again_of(graph, options.again, cluster).ops if again is None else again
    return prepare(graph, stage, stages, recompute=ops, interleave=options.interleave)


def _send_s(cluster: Cluster, src_ranks: range, dst_ranks: range, size_bytes: float) -> float:
    """Seconds in which a value goes from a device group to another, an equal part from each device; 0 of nothing."""
    return transfer_s(cluster, src_ranks, dst_ranks, size_bytes / len(src_ranks)) if size_bytes else 0.0


def _op_s(graph: LogicalGraph, cluster: Cluster, size: int) -> Mapping[str, float]:
    """Seconds of each op of the passes on ``size`` devices of a cluster of equal devices, if each did an equal part."""
    ops = [op for op in graph.ops if op.role in (Role.FORWARD, Role.BACKWARD)]
    return {op.id: op_work_s(cluster, op, {v: graph.values[v] for v in (*op.inputs, *op.outputs) if v}) / size for op in ops}
