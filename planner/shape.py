"""The shape of a plan: how many pipeline stages, which mesh inside them, how many micro-batches, whether to recompute.

Best first: every shape stands in a queue with a bound that no plan of it can beat, and the one with the least bound is looked at more closely,
until the least of the queue is no better than the best plan worked out in full.  The bounds, from quick to close, with p stages, m micro-batches
on n devices:

    step >= (m + p - 1) / m * (roofline time of all ops on one device) / n                                     (1)
    step >= (sum over pieces of their optimum, per-micro-batch parts counted m + p - 1 times) / p              (2)  planner.search.pieces
    step >= max over prices y >= 0 of (sum over pieces of their optimum at y per byte) / p - y * memory        (3)  where (2)'s layouts do not fit

(2) and (3) take the stages to be equal, as the plan's own cut aims at; (3) counts what the first stage holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf
from time import perf_counter

from planner.cost import compute_dtype, meshes, op_s
from planner.ir.cluster import Cluster
from planner.ir.errors import InvalidProgram, OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph, Role
from planner.opset import flop, traffic_bytes
from planner.search import Piece, Pin, pieces_of, price_piece
from planner.stages import block_of, prepare
from planner.stages.micro import micro_batch_choices

__all__ = ["Shape", "ShapeSearch", "ShapeWatch", "first_stage", "most_stages", "shapes"]

ShapeWatch = Callable[[str, float, float], None]
"""(shape, best step so far in seconds, bound in seconds)"""

_MOST_AXES = 2
_MOST_PER_STAGE = 8
_PRICES = (0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """stages p, micro-batches m, mesh of a stage, and whether numbered blocks are recomputed in the backward part."""

    stages: int
    micro_batches: int
    mesh: tuple[int, ...]
    recompute: bool = False

    def __str__(self) -> str:
        return (
            f"{self.stages} stages of {'x'.join(map(str, self.mesh))}, {self.micro_batches} micro-batches{', recompute' * self.recompute}"
        )


class _Known(IntEnum):
    """How closely a shape was looked at."""

    WORK = 1
    PIECES = 2
    MEMORY = 3


def shapes(
    batch_size: int,
    cluster: Cluster,
    *,
    stages: int | None = None,
    mesh: tuple[int, ...] | None = None,
    micro_batches: int | None = None,
    most_stages: int = 1,
    recompute: bool = False,
) -> tuple[Shape, ...]:
    """The shapes worth looking at; what is given is kept.

    Args:
        most_stages: how many stages the model can be cut into.   recompute: of all shapes.
    """
    devices = cluster.num_devices
    counts = [stages] if stages is not None else [p for p in range(1, min(most_stages, devices) + 1) if devices % p == 0]
    found = []
    for p in counts:
        if devices % p:
            continue
        inner = [mesh] if mesh is not None else meshes(devices // p, cluster.devices_per_node, _MOST_AXES)
        if micro_batches is not None:
            slices = [micro_batches]
        else:
            slices = [c.count for c in micro_batch_choices(batch_size) if p <= c.count <= _MOST_PER_STAGE * p]
            slices = [m for m in slices if m % p == 0 and (m // p) & (m // p - 1) == 0] or slices[:1] or [1]
        found += [Shape(p, m, one, recompute) for one in inner for m in slices]
    return tuple(sorted(found))


def most_stages(graph: LogicalGraph) -> int:
    """As many stages as the forward pass has numbered blocks (h.0, h.1, ...), at least 1."""
    blocks = {block_of(op.module) for op in graph.ops if op.role is Role.FORWARD}
    return max(1, len(blocks - {""}))


def first_stage(
    pieces: Sequence[Piece], shape: Shape, cluster: Cluster, pins: Sequence[Pin], s_per_byte: float = 0.0
) -> tuple[float, float, float]:
    """(seconds with the price of bytes, bytes held, bytes held at least: at no price only) of a device of the first of equal stages."""
    turns, flight = shape.micro_batches + shape.stages - 1, min(shape.micro_batches, shape.stages)
    totals = [0.0, 0.0, 0.0]
    for piece in pieces:
        price = price_piece(piece, shape.mesh, cluster, pins, turns, flight, s_per_byte=s_per_byte)
        for i, amount in enumerate((price.turns_s, price.held_bytes, price.least_bytes)):
            totals[i] += piece.times * amount / shape.stages
    return totals[0], totals[1], totals[2]


@dataclass(slots=True)
class ShapeSearch:
    """Best-first search over shapes.

    graph_of: micro-batches -> the graph at that size.
    work_out: (shape, whether memory binds) -> its step in seconds, solved in full, and the bound of that; raises OutOfMemory where it does not fit.
    recompute: where a shape does not fit, try it with recomputation too.
    """

    graph_of: Callable[[int], LogicalGraph]
    cluster: Cluster
    pins: Sequence[Pin]
    work_out: Callable[[Shape, bool], tuple[float, float]]
    recompute: bool = False
    on_progress: ShapeWatch | None = None
    _pieces: dict[tuple[int, bool], tuple[Piece, ...]] = field(default_factory=dict)
    _queue: list[tuple[float, Shape, _Known, bool]] = field(default_factory=list)
    _refused: list[Exception] = field(default_factory=list)

    def best(self, candidates: Sequence[Shape], seconds: float = inf) -> tuple[Shape, float]:
        """(the best shape, lower bound over all shapes in seconds); after ``seconds``, or when interrupted, the best so far.

        Raises:
            OutOfMemory: no shape fits.   Unsupported, InvalidProgram: no shape can be planned.
            KeyboardInterrupt: before any shape was worked out.
        """
        began = perf_counter()
        work_s = self._work_s(candidates[0].micro_batches) * candidates[0].micro_batches
        for shape in candidates:
            least_s = (shape.micro_batches + shape.stages - 1) / shape.micro_batches * work_s / self.cluster.num_devices
            heapq.heappush(self._queue, (least_s, shape, _Known.WORK, False))
        found: Shape | None = None
        step_s = floor_s = inf
        while self._queue and self._queue[0][0] < step_s:
            if found is not None and perf_counter() - began > seconds:
                break
            least_s, shape, known, tight = heapq.heappop(self._queue)
            try:
                if known is _Known.WORK:
                    self._look_at_pieces(least_s, shape)
                elif known is _Known.PIECES and tight:
                    self._look_at_memory(least_s, shape)
                else:
                    value, proven = self.work_out(shape, tight)
                    floor_s = min(floor_s, proven)
                    if value < step_s:
                        found, step_s = shape, value
            except KeyboardInterrupt:
                if found is None:
                    raise
                heapq.heappush(self._queue, (least_s, shape, known, tight))
                break
            except OutOfMemory as error:
                self._refused.append(error)
                if self.recompute and not shape.recompute:
                    heapq.heappush(self._queue, (least_s, replace(shape, recompute=True), _Known.WORK, False))
            except (InvalidProgram, Unsupported) as error:
                self._refused.append(error)
            if self.on_progress is not None:
                self.on_progress(str(shape), step_s, min(step_s, self._queue[0][0]) if self._queue else step_s)
        if found is None:
            raise next((e for e in reversed(self._refused) if isinstance(e, OutOfMemory)), self._refused[-1])
        return found, min(floor_s, self._queue[0][0]) if self._queue else floor_s

    def _work_s(self, micro_batches: int) -> float:
        """Roofline time of a micro-batch's ops on one device.  More micro-batches move no fewer bytes."""
        graph = self.graph_of(micro_batches)
        total_s = 0.0
        for op in graph.ops:
            if op.role in (Role.FORWARD, Role.BACKWARD):
                types = {v: graph.values[v] for v in (*op.inputs, *(o for o in op.outputs if o))}
                total_s += op_s(self.cluster, flop(op, types), traffic_bytes(op, types), compute_dtype(op, types))
        return total_s

    def pieces(self, micro_batches: int, recompute: bool) -> tuple[Piece, ...]:
        """The pieces of the graph at that micro-batch size."""
        key = (micro_batches, recompute)
        if key not in self._pieces:
            graph = self.graph_of(micro_batches)
            if recompute:
                graph = prepare(graph, {op.id: 0 for op in graph.ops}, 1, recompute=True).graph
            self._pieces[key] = pieces_of(graph)
        return self._pieces[key]

    def _priced(self, shape: Shape, s_per_byte: float) -> tuple[float, float, float]:
        return first_stage(self.pieces(shape.micro_batches, shape.recompute), shape, self.cluster, self.pins, s_per_byte)

    def _look_at_pieces(self, least_s: float, shape: Shape) -> None:
        step_s, held, least = self._priced(shape, 0.0)
        memory = self.cluster.device.memory_bytes
        if least > memory:
            raise OutOfMemory(
                f"no shape fits: {shape} needs at least {least / 1e9:.3g} GB per device, {self.cluster.name} has {memory / 1e9:.3g} GB; "
                f"take more devices, larger ones, or smaller micro-batches"
            )
        heapq.heappush(self._queue, (max(least_s, step_s), shape, _Known.PIECES, held > memory))
        if held > memory and self.recompute and not shape.recompute:
            heapq.heappush(self._queue, (max(least_s, step_s), replace(shape, recompute=True), _Known.WORK, False))

    def _look_at_memory(self, least_s: float, shape: Shape) -> None:
        memory = self.cluster.device.memory_bytes
        bound_s = least_s
        for factor in _PRICES:
            y = factor * least_s / memory
            bound_s = max(bound_s, self._priced(shape, y)[0] - y * memory)
        heapq.heappush(self._queue, (bound_s, shape, _Known.MEMORY, True))
