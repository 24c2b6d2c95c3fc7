"""The shape of a plan: how many pipeline stages, which mesh inside them, how many micro-batches, whether to recompute.

Best first: every shape stands in a queue with a bound that no plan of it can beat, and the one with the least bound is looked at more closely,
until the least of the queue is no better than the best plan worked out in full.  The bounds, from quick to close, with p stages, m micro-batches
on n devices:

    step >= (p T + (m - 1) max(T, whole blocks)) / p, T the roofline time of a stage's ops, m micro-batches     (1)
    step >= what equal shares of the pieces cost, memory aside                                            (2)  planner.parallelism.share (1)
    step >= what they cost within the memory of the first stage, where (2)'s layouts do not fit           (3)  planner.parallelism.share (2)

A shape whose bound is within ``gap`` of the best step is not worked out; the bound over all shapes says what that may cost.
The same queue, taken further until it is no better than the second best step, gives the runner-up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf, prod
from time import perf_counter

from planner.cost import compute_dtype, meshes, op_s
from planner.ir.cluster import Cluster
from planner.ir.errors import InvalidProgram, OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import flop, traffic_bytes
from planner.parallelism.share import Share
from planner.schedule import Schedule, in_flight
from planner.search import LayoutCosts, ModelPiece, PieceSearch, Pin, StrategySets, model_pieces, scaled_pieces
from planner.stages import assign_stages
from planner.stages.blocks import blocks_of, num_blocks

__all__ = ["RunnerUp", "Shape", "ShapeSearch", "ShapeWatch", "Shares", "most_stages", "shapes"]

ShapeWatch = Callable[[str, float, float], None]
"""(shape, best step so far in seconds, bound in seconds)"""

_MOST_AXES = 2
_MOST_PER_STAGE = 64
_TIE = 1e-6


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

    Raises:
        Unsupported: a batch without samples.
    """
    if batch_size < 1:
        raise Unsupported(f"a batch of {batch_size} samples cannot be cut into micro-batches; give at least 1 sample")
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
            slices = [m for m in range(p, min(batch_size, _MOST_PER_STAGE * p) + 1) if batch_size % m == 0]
            slices = [m for m in slices if m % p == 0 and (m // p).bit_count() == 1] or slices[:1] or [1]
        found += [Shape(p, m, one, recompute) for one in inner for m in slices]
    return tuple(sorted(found))


def most_stages(graph: LogicalGraph) -> int:
    """As many stages as the forward pass has numbered blocks (h.0, h.1, ...), at least 1."""
    return max(1, num_blocks(graph))


@dataclass(slots=True)
class Shares:
    """The pieces of a model at every shape.  graph_of: micro-batches -> the graph at that size.  batch_size: samples per step.

    even: stages are the plan's own even cut, between blocks; else nothing is known of where they begin.

    Two sizes are traced; the pieces of the others follow from them where all numbers are proportional to the size (planner.search.bounds.scaled).
    """

    graph_of: Callable[[int], LogicalGraph]
    batch_size: int
    cluster: Cluster
    pins: Sequence[Pin]
    even: bool = True
    _pieces: dict[tuple[int, bool], tuple[ModelPiece, ...]] = field(default_factory=dict)
    _tools: dict[tuple[int, ...], tuple[LayoutCosts, StrategySets]] = field(default_factory=dict)
    _known: dict[Shape, Share] = field(default_factory=dict)
    _cuts: dict[int, list[tuple[tuple[int, ...], float]]] = field(default_factory=dict)
    _work: dict[tuple[int, bool], tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def of(self, shape: Shape) -> Share:
        """The equal share of a device of the shape's first stage."""
        if shape not in self._known:
            flight = _in_flight(shape, 0)
            cut = self._cut(shape) if self.even and shape.stages > 1 else ()
            self._known[shape] = Share(self._models(shape, shape.micro_batches, flight), shape.stages, cut)
        return self._known[shape]

    def prices(self, shape: Shape, memory_bytes: float) -> tuple[float, ...]:
        """Per stage, about what a byte is worth to the search, in seconds times stages; 0 where memory does not bind.

        Worked out for 1, 2, 4, ... micro-batches in flight; a stage takes the next larger number.
        """
        known: dict[int, float] = {}
        found = []
        for stage in range(shape.stages):
            flight = _in_flight(shape, stage)
            flight = min(1 << (flight - 1).bit_length(), shape.micro_batches, shape.stages)
            if flight not in known:
                share = Share(self._models(shape, shape.micro_batches + shape.stages - 1, flight), shape.stages)
                if share.free.held_bytes > memory_bytes:
                    fits = share.smallest.held_bytes <= memory_bytes
                    y = share.within(memory_bytes)[1] if fits else 0.0
                    known[flight] = max(y, _TIE * share.free.cost_s / memory_bytes)
                else:
                    known[flight] = 0.0
            found.append(known[flight])
        return tuple(found)

    def _models(self, shape: Shape, turns: int, flight: int) -> list[PieceSearch]:
        tools = self._tools.setdefault(shape.mesh, (LayoutCosts(self.cluster, shape.mesh), StrategySets(shape.mesh)))
        pieces = self._pieces_of(shape.micro_batches, shape.recompute)
        return [PieceSearch(piece, shape.mesh, self.cluster, self.pins, turns, flight, tools) for piece in pieces]

    def roofline_s(self, shape: Shape) -> float:
        """(1), with the largest piece's number of whole blocks on the fullest stage: seconds that no plan of the shape goes below."""
        key = (shape.micro_batches, shape.recompute)
        if key not in self._work:
            self._work[key] = tuple((piece.times, _work_s(piece.graph, self.cluster)) for piece in self._pieces_of(*key))
        work = self._work[key]
        once_s = sum(times * piece_s for times, piece_s in work)
        slow_s = once_s / shape.stages
        if self.even:
            slow_s = max(slow_s, *(-(-times // shape.stages) * piece_s for times, piece_s in work))
        return (once_s + (shape.micro_batches - 1) * slow_s) / prod(shape.mesh)

    def _cut(self, shape: Shape) -> list[tuple[tuple[int, ...], float]]:
        """Per stage of the plan's own cut: blocks of each piece, and the roofline time of what is outside of repeated blocks.

        That time is of the largest micro-batch that was traced, in proportion: parameters are read whole by smaller ones as well.
        """
        if shape.stages not in self._cuts:
            self._pieces_of(shape.micro_batches, False)
            base = min(m for m, recompute in self._pieces if not recompute)
            pieces = self._pieces[base, False]
            graph = self.graph_of(base)
            stage, block = assign_stages(graph, shape.stages), blocks_of(graph)
            home = {block[op.id]: stage[op.id] for op in reversed(graph.ops) if op.role is Role.FORWARD}
            repeated = {name for piece in pieces if piece.times > 1 for name in piece.members}
            counts = [[sum(home.get(name) == s for name in p.members) if p.times > 1 else 0 for p in pieces] for s in range(shape.stages)]
            rest: list[list[Op]] = [[] for _ in range(shape.stages)]
            for op in graph.ops:
                if block[op.id] not in repeated:
                    rest[stage[op.id]].append(op)
            rest_s = [_work_s(replace(graph, ops=tuple(ops)), self.cluster) for ops in rest]
            self._cuts[shape.stages] = [(tuple(n), seconds * base) for n, seconds in zip(counts, rest_s, strict=True)]
        share = 1 / shape.micro_batches / prod(shape.mesh)
        return [(blocks, step_s * share) for blocks, step_s in self._cuts[shape.stages]]

    def floor_bytes(self, shape: Shape) -> float:
        """Bytes that a device of the first stage holds at least: states and what waits for the backward part, split among all devices."""
        flight = _in_flight(shape, 0)
        pieces = self._pieces_of(shape.micro_batches, shape.recompute)
        return sum(p.times * (p.state_bytes + flight * p.saved_bytes) for p in pieces) / (shape.stages * prod(shape.mesh))

    def _pieces_of(self, micro_batches: int, recompute: bool) -> tuple[ModelPiece, ...]:
        key = (micro_batches, recompute)
        if key not in self._pieces:
            if recompute:
                self._pieces[key] = tuple(piece.recomputed() for piece in self._pieces_of(micro_batches, False))
            else:
                self._pieces[key] = self._scaled(micro_batches) or model_pieces(self.graph_of(micro_batches))
        return self._pieces[key]

    def _scaled(self, micro_batches: int) -> tuple[ModelPiece, ...] | None:
        traced = [m for m, recompute in self._pieces if not recompute][:2]
        if len(traced) < 2 or self.batch_size % micro_batches:
            return None
        first, second = traced
        sizes = self.batch_size // first, self.batch_size // second
        return scaled_pieces(self._pieces[first, False], self._pieces[second, False], sizes, self.batch_size // micro_batches)


def _in_flight(shape: Shape, stage: int) -> int:
    """Micro-batches whose activations a stage holds; shapes are compared as if all were 1F1B."""
    return in_flight(Schedule.ONE_F_ONE_B, stage, shape.stages, shape.micro_batches)


def _work_s(graph: LogicalGraph, cluster: Cluster) -> float:
    """Roofline time of a micro-batch's ops on one device."""
    total_s = 0.0
    for op in graph.ops:
        if op.role in (Role.FORWARD, Role.BACKWARD):
            types = {v: graph.values[v] for v in (*op.inputs, *(o for o in op.outputs if o))}
            total_s += op_s(cluster, flop(op, types), traffic_bytes(op, types), compute_dtype(op, types))
    return total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The best of the shapes other than the best one.

    shape, step_s: the best that was worked out in full, and its step in seconds; None: none was.
    least_s: seconds that no plan of any other shape goes below (kind ``theory``); infinite: no other shape can be planned.
    """

    shape: Shape | None
    step_s: float | None
    least_s: float


@dataclass(slots=True)
class ShapeSearch:
    """Best-first search over shapes.

    work_out: (shape, whether memory binds) -> its step in seconds, solved in full, and the bound of that;
        raises OutOfMemory where it does not fit.
    recompute: where a shape does not fit, try it with recomputation too.
    gap: a shape that can be better by no more than this share of the best step is left alone.
    """

    shares: Shares
    work_out: Callable[[Shape, bool], tuple[float, float]]
    recompute: bool = False
    gap: float = 0.0
    on_progress: ShapeWatch | None = None
    _queue: list[tuple[float, Shape, _Known, bool]] = field(default_factory=list)
    _entered: set[Shape] = field(default_factory=set)
    _refused: list[Exception] = field(default_factory=list)
    _worked: dict[Shape, tuple[float, float]] = field(default_factory=dict)
    """Shape -> (its step, its bound), in the order in which they were worked out."""

    def best(self, candidates: Sequence[Shape], seconds: float = inf) -> tuple[Shape, float]:
        """(the best shape, lower bound over all shapes in seconds); after ``seconds``, or when interrupted, the best so far.

        Raises:
            OutOfMemory: no shape fits.   Unsupported, InvalidProgram: no shape can be planned.
            KeyboardInterrupt: before any shape was worked out.
        """
        self._begin(candidates, seconds)
        best = self._ranked()[0]
        return best, self._bound_s(best)

    def two_best(self, candidates: Sequence[Shape], seconds: float = inf) -> tuple[Shape, float, RunnerUp]:
        """As ``best``, and the best shape but one: shapes are worked out until it, too, is within ``gap`` of all that are left.

        ``seconds`` is for both.   Raises: as ``best``.
        """
        began = perf_counter()
        if self._begin(candidates, seconds):
            self._work_until(2, seconds - (perf_counter() - began))
        best, *others = self._ranked()
        bounds = [self._worked[shape][1] for shape in others] + [least_s for least_s, *_ in self._queue[:1]]
        if not others:
            return best, self._bound_s(best), RunnerUp(shape=None, step_s=None, least_s=min(bounds, default=inf))
        step_s = self._worked[others[0]][0]
        return best, self._bound_s(best), RunnerUp(shape=others[0], step_s=step_s, least_s=min(step_s, *bounds))

    def _begin(self, candidates: Sequence[Shape], seconds: float) -> bool:
        """Find the best of the candidates, or raise; False: interrupted."""
        for shape in candidates:
            self._enter(self.shares.roofline_s(shape), shape)
        is_whole = self._work_until(1, seconds)
        if not self._worked:
            raise next((e for e in reversed(self._refused) if isinstance(e, OutOfMemory)), self._refused[-1])
        return is_whole

    def _ranked(self) -> list[Shape]:
        """What was worked out, the best first; of equals the one worked out first."""
        return sorted(self._worked, key=lambda shape: self._worked[shape][0])

    def _limit_s(self, place: int) -> float:
        """The step of the shape in that place, 1 the best."""
        steps = sorted(step_s for step_s, _ in self._worked.values())
        return steps[place - 1] if len(steps) >= place else inf

    def _bound_s(self, best: Shape) -> float:
        """What no plan of any shape goes below."""
        bounds = [bound_s for _, bound_s in self._worked.values()] + [least_s for least_s, *_ in self._queue[:1]]
        return min(self._worked[best][0], *bounds)

    def _work_until(self, place: int, seconds: float) -> bool:
        """Look at shapes until none in the queue can be better than the one in that place, by more than ``gap``; False: interrupted."""
        began = perf_counter()
        while self._queue and self._queue[0][0] < self._limit_s(place) * (1 - self.gap):
            if self._worked and perf_counter() - began > seconds:
                break
            least_s, shape, known, tight = heapq.heappop(self._queue)
            try:
                if known is _Known.WORK:
                    self._look_at_pieces(least_s, shape)
                elif known is _Known.PIECES:
                    self._look_at_memory(least_s, shape)
                else:
                    value, proven = self.work_out(shape, tight)
                    self._worked[shape] = value, max(proven, least_s)
            except KeyboardInterrupt:
                if not self._worked:
                    raise
                heapq.heappush(self._queue, (least_s, shape, known, tight))
                return False
            except OutOfMemory as error:
                self._refuse(least_s, shape, error)
            except (InvalidProgram, Unsupported) as error:
                self._refused.append(error)
            if self.on_progress is not None:
                step_s = self._limit_s(1)
                self.on_progress(str(shape), step_s, min(step_s, self._queue[0][0]) if self._queue else step_s)
        return True

    def _enter(self, least_s: float, shape: Shape) -> None:
        """Queue a shape, once, unless what it holds at the very least is too much."""
        if shape in self._entered:
            return
        self._entered.add(shape)
        memory, floor = self.shares.cluster.device.memory_bytes, self.shares.floor_bytes(shape)
        if floor > memory:
            self._refuse(least_s, shape, self._too_large(shape, floor))
        else:
            heapq.heappush(self._queue, (least_s, shape, _Known.WORK, False))

    def _refuse(self, least_s: float, shape: Shape, error: OutOfMemory) -> None:
        self._refused.append(error)
        self._again(least_s, shape)

    def _too_large(self, shape: Shape, least: float) -> OutOfMemory:
        memory = self.shares.cluster.device.memory_bytes
        return OutOfMemory(
            f"no shape fits: {shape} needs at least {least / 1e9:.3g} GB per device, {self.shares.cluster.name} has {memory / 1e9:.3g} GB; "
            f"take more devices, larger ones, or smaller micro-batches"
        )

    def _again(self, least_s: float, shape: Shape) -> None:
        """The same shape with recomputation, which does more work and holds less."""
        if self.recompute and not shape.recompute:
            again = replace(shape, recompute=True)
            self._enter(max(least_s, self.shares.roofline_s(again)), again)

    def _look_at_pieces(self, least_s: float, shape: Shape) -> None:
        bound_s = max(least_s, self.shares.of(shape).roomy_s)
        heapq.heappush(self._queue, (bound_s, shape, _Known.PIECES, False))

    def _look_at_memory(self, least_s: float, shape: Shape) -> None:
        share, memory = self.shares.of(shape), self.shares.cluster.device.memory_bytes
        if share.free.held_bytes <= memory:
            heapq.heappush(self._queue, (least_s, shape, _Known.MEMORY, False))
            return
        if share.smallest.held_bytes > memory:
            raise self._too_large(shape, share.smallest.held_bytes)
        heapq.heappush(self._queue, (max(least_s, share.within(memory)[0]), shape, _Known.MEMORY, True))
        self._again(least_s, shape)
