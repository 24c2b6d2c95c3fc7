"""Which chunk of an interleaved pipeline a task belongs to: its device holds several pieces of the model, and pictures shade them apart.

    device 0   F0 (chunk 0)        F2 (chunk 1)          hops of F0: 0, of F2: 2, so F2 is the second on its stream
    device 1        F1 (chunk 0)        F3 (chunk 1)     hops of F1: 1, of F3: 3

A hop is a transfer on the longest way of data to a task.  Fragments of one stage have equal hops, stages on different devices do not; two
stages that follow each other on one device (the turn of a V) count as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from planner.ir.plan import Plan, RegstKind, TaskKind

__all__ = ["chunk_of"]


def chunk_of(plan: Plan) -> Mapping[str, int]:
    """Task id -> chunk, counted from 0 in the order of the forward pass, for forward, backward and weight tasks; 0 without interleaving."""
    hops = _hops(plan)
    levels: dict[tuple[str, bool], set[int]] = defaultdict(set)
    passes = [task for task in plan.tasks if task.kind is TaskKind.FORWARD or task.kind.is_backward]
    for task in passes:
        levels[task.stream, task.kind is TaskKind.FORWARD].add(hops[task.id])
    chunks: dict[str, int] = {}
    for task in passes:
        forward = task.kind is TaskKind.FORWARD
        # Backward begins where forward ended: the chunk with the most hops forward has the fewest backward.
        chunks[task.id] = sorted(levels[task.stream, forward], reverse=not forward).index(hops[task.id])
    return chunks


def _hops(plan: Plan) -> Mapping[str, int]:
    """Task id -> transfers on the longest way of data to it within one step; plans are acyclic but for state, which is left out."""
    hops = {task.id: 0 for task in plan.tasks}
    waiting = {task.id: 0 for task in plan.tasks}
    edges: dict[str, list[str]] = defaultdict(list)
    for regst in plan.regsts:
        if regst.producer is None or regst.kind is RegstKind.STATE:
            continue
        for reader, _ in plan.consumers[regst.id]:
            edges[regst.producer].append(reader.id)
            waiting[reader.id] += 1
    ready = [name for name, count in waiting.items() if not count]
    while ready:
        done = ready.pop()
        reached = hops[done] + (plan.task[done].kind is TaskKind.TRANSFER)
        for follower in edges[done]:
            hops[follower] = max(hops[follower], reached)
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return hops
