"""Fragments: the parts of one stage's graph between communications.

The level of an op is the largest number of communications on a path to it.  An op that could stand at several levels stands at the
latest, beside its first reader, if it belongs to the forward or backward part, and at the earliest if it updates.  Ops of one (stage, role, level)
form a fragment: edges inside it need no communication, and edges out of it go to a higher level or a later role, so fragments cannot wait for
each other in a cycle.

A state that the forward or backward part updates is written in place once all that read it have done so.  So what reads it stands at no later level
than what makes its new value, which else would wait for a fragment that waits for its own.

    forward, level 0 --> all-reduce --> forward, level 1 --> ... --> backward, level k --> gradient all-reduce --> update
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import readers_with_views
from planner.stages.staged import region_of

__all__ = ["FragmentKey", "fragment_keys"]

_ROLE_ORDER = {Role.FORWARD: 0, Role.BACKWARD: 1, Role.UPDATE: 2}


class FragmentKey(NamedTuple):
    """The fragment of an op; ``order`` sorts fragments so that each comes after those whose results it reads."""

    stage: int
    role: Role
    level: int
    chunk: int
    weight: bool

    @property
    def order(self) -> tuple[int, bool, int, int, int]:
        return (_ROLE_ORDER[self.role], self.weight, self.level, self.stage, self.chunk)


def fragment_keys(
    graph: LogicalGraph,
    stage: Mapping[str, int],
    num_moves: Callable[[Op, str], int],
    gradient_bytes: Mapping[str, int],
    bucket_bytes: int,
    unit: Mapping[str, str],
    *,
    split: bool = False,
) -> dict[str, FragmentKey]:
    """Op id -> its fragment.

    Args:
        num_moves: (consumer, value) -> communications between the value's producer and this consumer.
        gradient_bytes: op id -> bytes of the gradient that the op completes and that must be communicated after its accumulation.
        bucket_bytes: a backward fragment ends when it has completed so many bytes of gradients, so that their reduction overlaps later ones.
        unit: op id -> its unit; ops of different units may not share a fragment.
        split: the weight part of the backward pass, off the critical path of the step's passes, has fragments of its own.
    """
    producers = graph.producers()
    region = {op.id: region_of(op, stage, producers) for op in graph.ops}
    level = _levels(graph, producers, region, num_moves)
    weight = _weight_part(graph, region) if split else frozenset()
    chunk: dict[str, int] = {}
    filled: dict[tuple[int, Role, int, bool], tuple[int, int, str | None]] = {}
    for op in graph.ops:
        if region[op.id][1] is Role.UPDATE:
            continue
        place = (*region[op.id], level[op.id], op.id in weight)
        made_by = producers.get(op.inputs[0]) if op.role is Role.ACCUMULATE else None
        if made_by is not None and level[made_by.id] == level[op.id]:
            chunk[op.id] = chunk[made_by.id]  # a gradient is accumulated in the fragment that makes it, whatever its place in the trace
            continue
        number, size_bytes, inside = filled.get(place, (0, 0, None))
        here = unit.get(op.id, inside)
        if inside is not None and here != inside:
            number, size_bytes = number + 1, 0
        chunk[op.id] = number
        size_bytes += gradient_bytes.get(op.id, 0)
        filled[place] = (number + 1, 0, here) if size_bytes >= bucket_bytes else (number, size_bytes, here)
    # An update starts when the bucket of its gradient is reduced; without communication one update fragment suffices.
    buckets: dict[tuple[int, int, int, bool], int] = {}
    for op in graph.ops:
        if region[op.id][1] is not Role.UPDATE:
            continue
        number = 0
        for value in op.inputs:
            made_by = producers.get(value)
            if made_by is None:
                continue
            if region[made_by.id][1] is Role.UPDATE:
                number = max(number, chunk[made_by.id])
            elif num_moves(op, value):
                bucket = (stage[made_by.id], level[made_by.id], chunk[made_by.id], made_by.id in weight)
                number = max(number, buckets.setdefault(bucket, len(buckets) + 1))
        chunk[op.id] = number
    return {op.id: FragmentKey(*region[op.id], level[op.id], chunk[op.id], op.id in weight) for op in graph.ops}


def _weight_part(graph: LogicalGraph, region: Mapping[str, tuple[int, Role]]) -> frozenset[str]:
    """Ops of the backward part whose results lead to one accumulated gradient only, and the accumulations of only such results.

    No other pass of the micro-batch reads their results.  An op whose results lead to several gradients, or to another stage, belongs to the input
    part, and so does a kernel that computes gradients of both the input and the weight.
    """
    producers, consumers = graph.producers(), graph.consumers()
    feeds: dict[str, frozenset[str]] = {}  # op -> the accumulations, and the ops outside of the backward part, to which its results lead
    leaves: set[str] = set()  # ops whose results lead out of their region
    for op in reversed(graph.ops):
        if op.role is Role.ACCUMULATE:
            feeds[op.id] = frozenset({op.id})
        elif op.role is Role.BACKWARD:
            readers = [r for v in op.outputs if v for r in consumers[v]]
            feeds[op.id] = frozenset().union(*(feeds.get(r.id, frozenset({r.id})) for r in readers))
            if any((r.role is not Role.ACCUMULATE and region[r.id] != region[op.id]) or r.id in leaves for r in readers):
                leaves.add(op.id)
    weight_part = {op.id for op in graph.ops if op.role is Role.BACKWARD and len(feeds[op.id]) == 1 and op.id not in leaves}
    for op in graph.ops:
        if op.role is Role.ACCUMULATE and region[op.id][1] is Role.BACKWARD:
            made_by = producers.get(op.inputs[0])
            if made_by is None or made_by.id in weight_part:
                weight_part.add(op.id)
    return frozenset(weight_part)


def _levels(
    graph: LogicalGraph, producers: Mapping[str, Op], region: Mapping[str, tuple[int, Role]], num_moves: Callable[[Op, str], int]
) -> dict[str, int]:
    """Op id -> level.  An op of the forward or backward part takes the latest level that its readers allow, an update the earliest."""
    level: dict[str, int] = {}
    readers_before = _readers_before(graph, producers, region)
    writers: dict[str, list[str]] = {}
    for writer, readers in readers_before.items():
        for reader in readers:
            writers.setdefault(reader, []).append(writer)
    made_by: dict[str, list[tuple[str, int]]] = {}
    for op in graph.ops:
        update = region[op.id][1] is Role.UPDATE
        made = made_by[op.id] = [(producers[v].id, num_moves(op, v)) for v in dict.fromkeys(op.inputs) if v in producers]
        # Levels of updates count communications between updates only, because the step's forward and backward parts read no update.
        earliest = [level[p] + n for p, n in made if not update or region[p][1] is Role.UPDATE]
        earliest += [level.get(reader, 0) for reader in readers_before.get(op.id, ())]
        level[op.id] = max(earliest, default=0)
    latest: dict[str, int] = {}  # what the readers of an op allow that have their levels
    for op in reversed(graph.ops):
        if region[op.id][1] is not Role.UPDATE and op.id in latest:
            allowed = [latest[op.id], *(level[writer] for writer in writers.get(op.id, ()))]
            level[op.id] = max(level[op.id], min(allowed))
        for maker, n in made_by[op.id]:
            if n or region[maker] == region[op.id]:
                latest[maker] = min(latest.get(maker, level[op.id] - n), level[op.id] - n)
    return level


def _readers_before(graph: LogicalGraph, producers: Mapping[str, Op], region: Mapping[str, tuple[int, Role]]) -> dict[str, set[str]]:
    """Op that makes a state's new value in the forward or backward part -> ops of its region that read the old one, or a view of it."""
    consumers = graph.consumers()
    readers: dict[str, set[str]] = {}
    for state, new in graph.updates.items():
        writer = producers.get(new)
        if writer is None or region[writer.id][1] is Role.UPDATE:
            continue
        for op in readers_with_views(consumers, state):
            if region[op.id] == region[writer.id] and op.id != writer.id:
                readers.setdefault(writer.id, set()).add(op.id)
    return readers
