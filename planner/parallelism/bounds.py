"""Bounds on a shape's step before any layout of the whole is searched; with p stages, m micro-batches on n devices:

    step >= (p T + (m - 1) max(T, whole blocks)) / p, T the roofline time of a stage's ops, m micro-batches     (1)  -> ShapeBounds.roofline_s()
            (what no part of an op takes less of: planner.cost.least_work_s)
    step >= what the largest piece costs without a limit on memory, the others at their roofline          (6)  -> ShapeBounds.largest_piece_s()
    step >= what the forward ops of the largest piece cost, all others at their roofline                  (7)  -> ShapeBounds.forward_part_s()
    step >= what equal shares of the pieces cost without a limit on memory                                (2)  -> EqualShare.unlimited_s
    step >= what they cost within the memory of a device, where (2)'s layouts do not fit                  (3)  -> EqualShare.bound_within()
    step >= sum_i c_i + (m - 1) c_b, c_i what stage i computes at least, without attention, b any stage   (8)  -> ShapeBounds.computed_s()
    bytes of the fullest device >= states and saved activations, split evenly among its stage's devices   (4)  -> ShapeBounds.floor_bytes()
    bytes of the fullest device >= what the layouts that hold least need                                  (5)  -> EqualShare.least_bytes

(2) and (3) are planner.parallelism.share (1) and (2), (5) is (4) and (5) there.  All are about steps priced as 1F1B, with the seconds of acts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from planner.cost import least_work_s
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import is_creation, is_view
from planner.parallelism.memory import CutParts, SearchMemory
from planner.parallelism.shape import Shape
from planner.parallelism.share import EqualShare
from planner.schedule import Schedule, in_flight
from planner.search.bounds.pieces import ModelPiece, PieceSearch, forward_part
from planner.search.context import is_attention
from planner.search.pins import Pin
from planner.solve.problem import NotFoundInTime
from planner.solve.time_limit import NO_LIMIT, TimeLimit
from planner.stages import assign_stages
from planner.stages.assign import cuts_between_blocks
from planner.stages.blocks import block_of, blocks_of
from planner.stages.recompute.asked import BLOCKS, on_one_stage

__all__ = ["ShapeBounds"]

_TIE = 1e-6
_Cut = tuple[int, int, str]
"""Stages, micro-batches (0: any), what is recomputed ("": nothing, or blocks)."""
_Again = tuple[int, str, int]
"""Micro-batches, what is recomputed, and stages where what these cut apart is not recomputed (0: nothing is cut apart)."""


@dataclass(slots=True)
class ShapeBounds:
    """Lower bounds on the step of every shape, from the pieces of the model.

    graph_of: micro-batches -> the graph at that size.   batch_size: samples per step.
    even: the stages are those of the even cut between blocks; if not, or if there are more stages than blocks and modules, the bounds do not know
        where they begin.
    stages_of: the plan's own cut of a graph (op id -> stage), which says what of the recomputed it cuts apart; None: the even one.
    time_limit: once it is up, no further piece is solved; the bounds still hold, but they are lower.
    memory: what other searches have worked out.   known_s_per_byte: shape -> the multiplier of memory that gave (3) on another network.

    Two micro-batch sizes are traced.  Where all numbers of the pieces grow in proportion to the size, those of other sizes are computed from
    the two (planner.search.bounds.scaled); else the graph is traced at that size, too.
    """

    graph_of: Callable[[int], LogicalGraph]
    batch_size: int
    cluster: Cluster
    pins: Sequence[Pin]
    even: bool = True
    time_limit: TimeLimit = NO_LIMIT
    memory: SearchMemory = field(default_factory=SearchMemory)
    stages_of: Callable[[LogicalGraph, Shape], Mapping[str, int]] | None = None
    known_s_per_byte: Mapping[Shape, float] = field(default_factory=dict)
    _pieces: dict[_Again, tuple[ModelPiece, ...]] = field(default_factory=dict)
    _forward_parts: dict[_Again, ModelPiece] = field(default_factory=dict)
    """Of the piece with most work."""
    _shares: dict[Shape, EqualShare] = field(default_factory=dict)
    _cuts: dict[_Cut, Sequence[tuple[tuple[int, ...], float]]] = field(default_factory=dict)
    _first: dict[_Cut, tuple[int, ...]] = field(default_factory=dict)
    """How many of each piece's blocks lie whole on the first one."""
    _leaving: dict[_Cut, tuple[int, ...]] = field(default_factory=dict)
    """Of how many of these blocks another stage reads something, which is kept there and not on the first."""
    _multipliers: dict[tuple[Shape, int, float], float] = field(default_factory=dict)
    _work: dict[_Again, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)
    _between: dict[int, bool] = field(default_factory=dict)
    """Stages -> whether the even cut lies between blocks."""
    _apart: dict[_Again, frozenset[str]] = field(default_factory=dict)
    """What is recomputed of a graph that is cut into stages."""
    _keys: dict[_Again, _Again] = field(default_factory=dict)
    _sizes: set[int] = field(default_factory=set)
    """At which pieces were cut from a traced graph, in micro-batches."""

    def of(self, shape: Shape) -> EqualShare:
        """What the bounds of the shape weigh: the first stage of the plan's own cut, or, where that is not known, the mean of the stages."""
        if shape not in self._shares:
            cut, first = (self._cut(shape), self._first[self._cut_key(shape)]) if self._is_even(shape) and shape.stages > 1 else ((), ())
            flight = _in_flight(shape, 0) if first else 1
            pieces = self.pieces_of(shape)
            left = {n: count for n, count in enumerate(self._leaving[self._cut_key(shape)] if first else ()) if count}
            alone = [replace(pieces[n], backward_reads=frozenset()) for n in left]
            apart = zip(left.items(), self._searches(alone, shape, shape.micro_batches, flight), strict=True)
            leaving = {number: (count, search) for (number, count), search in apart}
            self._shares[shape] = EqualShare(self._models(shape, shape.micro_batches, flight), shape.stages, cut, first, leaving)
        return self._shares[shape]

    def s_per_byte(self, shape: Shape, memory_bytes: float) -> tuple[float, ...]:
        """Per stage, the approximate price of one byte of memory, in seconds times stages; 0 where memory does not bind or the time is up.

        Prices are computed for 1, 2, 4, ... micro-batches in flight; a stage takes that of the next larger number.
        """
        by_flight: dict[int, float] = {}
        per_stage = []
        for stage in range(shape.stages):
            flight = _in_flight(shape, stage)
            flight = min(1 << (flight - 1).bit_length(), shape.micro_batches, shape.stages)
            if flight not in by_flight:
                key = (shape, flight, memory_bytes)
                if key not in self._multipliers:
                    share = EqualShare(self._models(shape, shape.micro_batches + shape.stages - 1, flight), shape.stages)
                    self._multipliers[key] = _s_per_byte(share, memory_bytes)
                by_flight[flight] = self._multipliers[key]
            per_stage.append(by_flight[flight])
        return tuple(per_stage)

    def graph_for_prices(self, micro_batches: int) -> LogicalGraph:
        """The graph at that size, traced or scaled from two that are; of a scaled one only sizes are right, no floating-point factor."""
        graph = self.scaled_graph(micro_batches)
        return self.graph_of(micro_batches) if graph is None else graph

    def scaled_graph(self, micro_batches: int) -> LogicalGraph | None:
        """The graph at that size, scaled from two that are traced; None: it cannot be, or it is one of the two."""
        traced = self._traced
        if len(traced) < 2 or micro_batches in traced or self.batch_size % micro_batches:
            return None
        sizes = self.batch_size // traced[0], self.batch_size // traced[1]
        return self.memory.scaled(self.graph_of(traced[0]), self.graph_of(traced[1]), sizes, self.batch_size // micro_batches)

    def trace_no_more(self) -> None:
        """Refuse what needs the model traced at a size at which it was not, as a process without torch's threads must."""
        graph_of = self.graph_of

        def traced(micro_batches: int) -> LogicalGraph:
            if micro_batches not in self._sizes:
                raise Unsupported(
                    f"the model was not traced for {micro_batches} micro-batches, and this process may not trace it; ask the first one"
                )
            return graph_of(micro_batches)

        self.graph_of = traced

    def forward_part_s(self, shape: Shape) -> float:
        """(7) in seconds; it needs one solution of the forward ops of one piece, a few per cent of (6)'s work where ops are many."""
        part = self._forward_part(shape)
        tools = self.memory.tools(self.cluster, shape.mesh)
        search = PieceSearch(part, shape.mesh, self.cluster, self.pins, shape.micro_batches, 1, tools, self.time_limit)
        rest_s = self._largest(shape)[1] - _work_s(part.graph.ops, part.graph, self.cluster) / prod(shape.mesh)
        return self._with_largest_s(shape, search.unlimited_s + shape.micro_batches * max(rest_s, 0.0))

    def largest_piece_s(self, shape: Shape) -> float:
        """(6) in seconds; it needs one solution of one piece."""
        return self._with_largest_s(shape, self.of(shape).models[self._largest(shape)[0]].unlimited_s)

    def _largest(self, shape: Shape) -> tuple[int, float]:
        """(number of the piece with most work, its roofline time of one micro-batch on the mesh)."""
        work = self._work_of(shape)
        largest = max(range(len(work)), key=lambda piece: prod(work[piece][:2]))
        return largest, work[largest][1] / prod(shape.mesh)

    def _with_largest_s(self, shape: Shape, piece_s: float) -> float:
        """A bound on the step if one occurrence of the largest piece takes ``piece_s`` of it at least, the other pieces their roofline."""
        m, devices = shape.micro_batches, prod(shape.mesh)
        largest, _ = self._largest(shape)
        once_s = [times * work_s / devices for times, work_s, _ in self._work_of(shape)]
        times = self._work_of(shape)[largest][0]
        others_s = m * (sum(once_s) - once_s[largest])
        return ((shape.stages - 1) * sum(once_s) + times * piece_s + others_s) / shape.stages

    def _forward_part(self, shape: Shape) -> ModelPiece:
        key = self._again_key(shape)
        if key not in self._forward_parts:
            self._forward_parts[key] = forward_part(self.pieces_of(shape)[self._largest(shape)[0]])
        return self._forward_parts[key]

    def _models(self, shape: Shape, acts_per_step: int, flight: int) -> list[PieceSearch]:
        return self._searches(self.pieces_of(shape), shape, acts_per_step, flight)

    def _searches(self, pieces: Sequence[ModelPiece], shape: Shape, acts_per_step: int, flight: int) -> list[PieceSearch]:
        tools = self.memory.tools(self.cluster, shape.mesh)
        return [PieceSearch(piece, shape.mesh, self.cluster, self.pins, acts_per_step, flight, tools, self.time_limit) for piece in pieces]

    def roofline_s(self, shape: Shape) -> float:
        """(1) in seconds; with an even cut the fullest stage holds at least its share of each piece's blocks, rounded up to whole ones."""
        work = self._work_of(shape)
        once_s = sum(times * piece_s for times, piece_s, _ in work)
        slow_s = once_s / shape.stages
        if self._is_even(shape):
            slow_s = max(slow_s, *(-(-times // shape.stages) * piece_s for times, piece_s, _ in work))
        return (once_s + (shape.micro_batches - 1) * slow_s) / prod(shape.mesh)

    def computed_s(self, shape: Shape, stages: Sequence[int] = ()) -> float:
        """(8) in seconds.

        Args:
            stages: among which b is; with another cut than the even one nothing is said of them.   Empty: c_b is the mean stage's.
        """
        work_s = [piece_s - attention_s for _, piece_s, attention_s in self._work_of(shape)]
        once_s = sum(times * piece_s for (times, *_), piece_s in zip(self._work_of(shape), work_s, strict=True))
        slow_s = once_s / shape.stages if shape.stages == 1 or not stages else 0.0
        if stages and shape.stages > 1 and self._is_even(shape):
            cut = [blocks for blocks, _ in self._cut(shape)]
            cut[0] = tuple(map(min, cut[0], self._first[self._cut_key(shape)]))  # within memory, whole blocks alone are weighed
            slow_s = min(sum(n * piece_s for n, piece_s in zip(cut[stage], work_s, strict=True)) for stage in stages)
        return (once_s + (shape.micro_batches - 1) * slow_s) / prod(shape.mesh)

    def _work_of(self, shape: Shape) -> tuple[tuple[int, float, float], ...]:
        """Per piece, how often it occurs, the roofline time of a micro-batch on one device, and that of attention in it."""
        key = self._again_key(shape)
        if key not in self._work:
            graphs = [(piece.times, piece.graph) for piece in self.pieces_of(shape)]
            attention = [tuple(op for op in graph.ops if is_attention(op)) for _, graph in graphs]
            self._work[key] = tuple(
                (times, _work_s(graph.ops, graph, self.cluster), _work_s(ops, graph, self.cluster))
                for (times, graph), ops in zip(graphs, attention, strict=True)
            )
        return self._work[key]

    def _cut_key(self, shape: Shape) -> _Cut:
        """What the blocks of each piece on a stage depend on: which blocks are equal follows from what is recomputed, if that is chosen by prices."""
        by_price = shape.recompute not in ("", BLOCKS)
        return (shape.stages, shape.micro_batches, shape.recompute) if by_price else (shape.stages, 0, "")

    def _cut(self, shape: Shape) -> list[tuple[tuple[int, ...], float]]:
        """Per stage of the plan's own cut: blocks of each piece, and the roofline time of what is outside of repeated blocks.

        The time is that of the largest micro-batch traced, scaled down.  It is a lower bound, because smaller micro-batches read the
        parameters whole, too.
        """
        key = self._cut_key(shape)
        if key not in self._cuts:
            cut = shape if key[2] else replace(shape, recompute="")
            pieces, base = self.pieces_of(cut), key[1] or min(m for m, recompute, _ in self._pieces if not recompute)
            graph = self.graph_of(base)
            if key[2]:
                known = self._cut_of(graph, pieces, key, base)
            else:
                known = self.memory.cut(
                    (graph, key, self.cluster.device), lambda: self._cut_of(graph, self._pieces[base, "", 0], key, base)
                )
            self._first[key], self._leaving[key], self._cuts[key] = known
        share = 1 / shape.micro_batches / prod(shape.mesh)
        return [(blocks, step_s * share) for blocks, step_s in self._cuts[key]]

    def _cut_of(self, graph: LogicalGraph, pieces: Sequence[ModelPiece], key: _Cut, base: int) -> CutParts:
        stages = key[0]
        stage, block, consumers = assign_stages(graph, stages), blocks_of(graph), graph.consumers()
        stage_of = {block[op.id]: stage[op.id] for op in reversed(graph.ops) if op.role is Role.FORWARD}
        stages_of: dict[str, set[int]] = {}
        for op in graph.ops:
            stages_of.setdefault(block[op.id], set()).add(stage[op.id])
        repeated = {name for piece in pieces if piece.times > 1 for name in piece.members}
        leaves = {
            block[op.id]
            for op in graph.ops
            if op.role is Role.FORWARD and any(stage[reader.id] for v in op.outputs if v is not None for reader in consumers[v])
        }
        counts = [[sum(stage_of.get(name) == s for name in p.members) if p.times > 1 else 0 for p in pieces] for s in range(stages)]
        rest: list[list[Op]] = [[] for _ in range(stages)]
        for op in graph.ops:
            if block[op.id] not in repeated:
                rest[stage[op.id]].append(op)
        rest_s = [_work_s(ops, graph, self.cluster) for ops in rest]
        return CutParts(
            first=tuple(sum(stages_of.get(name) == {0} for name in p.members) for p in pieces),
            leaving=tuple(sum(stages_of.get(name) == {0} and name in leaves for name in p.members) for p in pieces),
            stages=[(tuple(n), seconds * base) for n, seconds in zip(counts, rest_s, strict=True)],
        )

    def floor_bytes(self, shape: Shape) -> float:
        """(4): of the mean stage with one micro-batch in flight, whatever the cut; of the first stage, where the plan's own cut is known.

        What lies on several stages, or outside of numbered blocks, is weighed in the mean alone.
        """
        pieces, devices = self.pieces_of(shape), prod(shape.mesh)
        mean = sum(p.times * (p.state_bytes + p.saved_bytes) for p in pieces) / (shape.stages * devices)
        if shape.stages == 1 or not self._is_even(shape):
            return mean
        self._cut(shape)
        flight = _in_flight(shape, 0)
        first = (
            sum(n * (p.state_bytes + flight * p.saved_bytes) for n, p in zip(self._first[self._cut_key(shape)], pieces, strict=True))
            / devices
        )
        return max(mean, first - flight * self._leaving_bytes(shape) / devices)

    def _leaving_bytes(self, shape: Shape) -> float:
        """What blocks that lie whole on the first stage make in a micro-batch for the backward part of others, where another stage reads it.

        It is kept where it is read.  These are the bytes before they are split: no device of the first stage would hold more of it.
        """
        pieces = self.pieces_of(shape)
        return float(
            sum(
                count * sum(piece.graph.values[v].size_bytes for v in piece.backward_reads)
                for count, piece in zip(self._leaving[self._cut_key(shape)], pieces, strict=True)
            )
        )

    def _is_even(self, shape: Shape) -> bool:
        """Whether the plan's cut is the even one between blocks; with more stages than that has room for, it lies inside of blocks."""
        if self.even and shape.stages not in self._between:
            graph = self.graph_of(self._traced[0] if self._traced else shape.micro_batches)
            self._between[shape.stages] = cuts_between_blocks(graph, shape.stages)
        return self.even and self._between[shape.stages]

    @property
    def num_ops(self) -> int:
        """Ops of the model, as counted in the first shape that was bounded; 0: none was yet."""
        return sum(piece.times * len(piece.graph.ops) for piece in next(iter(self._pieces.values()), ()))

    def pieces_of(self, shape: Shape) -> tuple[ModelPiece, ...]:
        """The distinct pieces of the model in a shape; where two sizes are traced, those of others are scaled, and only their sizes are right."""
        key = self._again_key(shape)
        if key not in self._pieces:
            pieces = self._scaled(shape)
            if not pieces:
                graph = self.graph_of(shape.micro_batches)
                pieces = self.memory.pieces(graph, recompute=self._apart[key] if key[2] else self._again(graph, shape))
                self._sizes.add(shape.micro_batches)
            self._pieces[key] = pieces
        return self._pieces[key]

    def _again_key(self, shape: Shape) -> _Again:
        """On what the pieces of a shape depend: its stages, too, where these cut apart what would be recomputed."""
        whole = (shape.micro_batches, shape.recompute, 0)
        if not shape.recompute or shape.stages == 1 or (shape.recompute == BLOCKS and self._is_even(shape)):
            return whole
        asked = (shape.micro_batches, shape.recompute, shape.stages)
        if asked not in self._keys:
            graph = self.graph_of(shape.micro_batches)
            self._sizes.add(shape.micro_batches)
            again = apart = self._again(graph, shape)
            outside = (op.id in again and not (block_of(op.module) or is_view(op) or is_creation(op)) for op in graph.ops)
            if not self._is_even(shape) or any(outside):  # else it lies in blocks, which are on one stage each
                stage = assign_stages(graph, shape.stages) if self.stages_of is None else self.stages_of(graph, shape)
                apart = on_one_stage(graph, stage, again)
            self._keys[asked] = whole if apart == again else asked
            self._apart[asked] = apart
        return self._keys[asked]

    def _again(self, graph: LogicalGraph, shape: Shape) -> frozenset[str]:
        return self.memory.again(graph, shape.recompute, self.cluster).ops

    @property
    def _traced(self) -> list[int]:
        """The first two sizes at which the model was traced, in micro-batches."""
        return [m for m, recomputed, _ in self._pieces if not recomputed][:2]

    def _scaled(self, shape: Shape) -> tuple[ModelPiece, ...] | None:
        traced, micro_batches = self._traced, shape.micro_batches
        if len(traced) < 2 or micro_batches in traced or self.batch_size % micro_batches:
            return None
        if shape.recompute not in ("", BLOCKS) or self._again_key(shape)[2]:  # what is recomputed depends on prices or on the cut
            return None
        sizes = self.batch_size // traced[0], self.batch_size // traced[1]
        first, second = (self.pieces_of(replace(shape, micro_batches=m)) for m in traced)
        return self.memory.scaled_pieces(first, second, sizes, self.batch_size // micro_batches)


def _in_flight(shape: Shape, stage: int) -> int:
    """Micro-batches whose activations a stage holds; shapes are compared as if all were 1F1B."""
    return in_flight(Schedule.ONE_F_ONE_B, stage, shape.stages, shape.micro_batches)


def _s_per_byte(share: EqualShare, memory_bytes: float) -> float:
    try:
        if share.cheapest.held_bytes <= memory_bytes:
            return 0.0
        fits = share.smallest.held_bytes <= memory_bytes
        y = share.bound_within(memory_bytes)[1] if fits else 0.0
    except NotFoundInTime:
        return 0.0
    return max(y, _TIE * share.cheapest.cost_s / memory_bytes)


def _work_s(ops: Iterable[Op], graph: LogicalGraph, cluster: Cluster) -> float:
    """Device-seconds of these ops of a micro-batch at least, however they are cut: their roofline."""
    total_s = 0.0
    for op in ops:
        if op.role in (Role.FORWARD, Role.BACKWARD):
            types = {v: graph.values[v] for v in (*op.inputs, *(o for o in op.outputs if o))}
            total_s += least_work_s(cluster, op, types)
    return total_s
