"""A bound on the whole from its pieces: a model's blocks are alike, so their price is the price of one, times their number.

A piece is the forward ops of one block (the modules up to their first number: h.3), with the backward ops, accumulations and updates that
belong to them.  What enters a piece is free in any layout; so the sum over the pieces of their optima is at most the optimum of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from planner.ir.cluster import Cluster
from planner.ir.graph import GraphInput, InputKind, LogicalGraph, Op, Role
from planner.search.formulation import build_model
from planner.search.layout_costs import LayoutCosts
from planner.search.model import SearchModel
from planner.search.pins import Pin, applicable
from planner.search.strategies import StrategySets, op_shape
from planner.solve import NO_LIMIT, Ints, NotFoundInTime, Problem, Solution, TimeLimit, solve_exactly
from planner.solve.limited.memory import least_demand
from planner.stages import Staged, prepare
from planner.stages.blocks import blocks_of

__all__ = ["ModelPiece", "PieceSearch", "PieceCost", "model_pieces"]


@dataclass(frozen=True, slots=True, eq=False)
class ModelPiece:
    """A part of the graph that occurs ``times`` times.

    members: the blocks that are it (h.0, h.1, ...; empty for what is outside of blocks).
    kept: of the values that it makes, those that the backward part of another piece reads.   crossing: those that its forward part reads.
    """

    graph: LogicalGraph
    times: int
    kept: frozenset[str]
    crossing: frozenset[str]
    members: tuple[str, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, optimizer state and buffers, whole."""
        return sum(self.graph.values[value].size_bytes for value in self.graph.updates)

    @property
    def saved_bytes(self) -> int:
        """Bytes of what a micro-batch keeps for the backward part, whole."""
        made = {v for op in self.graph.ops if op.role is Role.FORWARD for v in op.outputs if v is not None}
        read = {v for op in self.graph.ops if op.role is Role.BACKWARD for v in op.inputs}
        return sum(self.graph.values[value].size_bytes for value in (made & read) | self.kept)

    def recomputed(self) -> ModelPiece:
        """The piece with its forward ops made again in the backward part."""
        whole = {op.id: 0 for op in self.graph.ops}
        return replace(self, graph=prepare(self.graph, whole, 1, recompute=True).graph, kept=self.crossing)


@dataclass(frozen=True, slots=True)
class PieceCost:
    """A choice of a piece by itself.

    cost_s: m t + u, with t and u the seconds of a micro-batch and of what is done once per step.   held_bytes: per device, at its fullest.
    bound_s: no choice has a smaller cost_s + price of its bytes.
    """

    cost_s: float
    held_bytes: float
    bound_s: float


class PieceSearch:
    """A piece on the mesh of one stage.

    Args:
        micro_batches: m, how often the micro-batch part counts.   in_flight: micro-batches that wait for their backward pass.
        tools: costs and strategies of the mesh, shared by all pieces.
        time_limit: bounds that it ends hold for every choice all the same; they are lower than the optimum then.
    """

    def __init__(
        self,
        piece: ModelPiece,
        mesh: tuple[int, ...],
        cluster: Cluster,
        pins: Sequence[Pin],
        micro_batches: int,
        in_flight: int,
        tools: tuple[LayoutCosts, StrategySets],
        time_limit: TimeLimit = NO_LIMIT,
    ) -> None:
        staged = Staged(piece.graph, {op.id: 0 for op in piece.graph.ops}, 1)
        here = applicable(pins, piece.graph)
        self._build = partial(build_model, staged, mesh, cluster, here, micro_batches, tools=tools)
        self._count = partial(self._build, limit_bytes=1e30, in_flight=(in_flight,), saved_elsewhere=piece.kept)
        self.times = piece.times
        self.micro_batches = micro_batches
        self._time_limit = time_limit

    @cached_property
    def _model(self) -> SearchModel:
        return self._count()

    @cached_property
    def _unlimited(self) -> SearchModel:
        return self._build()

    @cached_property
    def unlimited_s(self) -> float:
        """No choice has a smaller m t + u; quicker than ``best`` at price 0, since nobody counts bytes."""
        return self._bound_s(self._unlimited.problem)

    def best(self, s_per_byte: float = 0.0) -> PieceCost:
        """The cheapest choice at a price per byte that is held at the end of the forward part; the cheapest that was found in time.

        Raises:
            NotFoundInTime: none was.
        """
        problem = self._model.problem
        solution = self._solve(problem.charged({0: s_per_byte}))
        return self._price(solution.choice, solution.lower_bound)

    @cached_property
    def smallest(self) -> PieceCost:
        """A choice that holds as little as possible.

        Raises:
            NotFoundInTime: the time was up before it was certain that none holds less.
        """
        self._check_time()
        choice = least_demand(self._model.problem, seconds=self._time_limit.remaining_s(), clock=self._time_limit.clock)
        self._check_time()
        return self._price(choice, self._model.problem.objective(choice))

    @cached_property
    def least_micro_s(self) -> float:
        """Seconds of a micro-batch that no choice goes below."""
        counts = self._unlimited.stage_counts
        per_micro_batch = self._unlimited.problem.reweighted(
            [float(count > 1) for count in counts.node_count], [float(count > 1) for count in counts.edge_count]
        )
        return self._bound_s(per_micro_batch) / self.micro_batches

    def _solve(self, problem: Problem) -> Solution:
        self._check_time()
        return solve_exactly(problem, seconds=self._time_limit.remaining_s(), clock=self._time_limit.clock)

    def _bound_s(self, problem: Problem) -> float:
        """What no choice goes below: the optimum, or as much as is proven when the time is up."""
        try:
            return self._solve(problem).lower_bound
        except NotFoundInTime as error:
            return max(error.lower_bound, 0.0)

    def _check_time(self) -> None:
        if self._time_limit.is_up():
            raise NotFoundInTime("the time was up before the layouts of a block of the model were found; give more seconds", 0.0)

    def _price(self, choice: Ints, bound_s: float) -> PieceCost:
        problem = self._model.problem
        return PieceCost(problem.objective(choice), problem.peak(choice), bound_s)


def model_pieces(graph: LogicalGraph) -> tuple[ModelPiece, ...]:
    """Pieces in order of their first op; equal ones once."""
    block = blocks_of(graph)
    members: dict[str, list[Op]] = {}
    for op in graph.ops:
        members.setdefault(block[op.id], []).append(op)
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, ops in members.items():
        groups.setdefault(_content(graph, ops), []).append(name)
    kept, crossing = (_read_elsewhere(graph, block, role) for role in (Role.BACKWARD, Role.FORWARD))
    return tuple(
        ModelPiece(_subgraph(graph, members[alike[0]], crossing & made), len(alike), kept & made, crossing & made, tuple(alike))
        for alike in groups.values()
        for made in [frozenset(v for op in members[alike[0]] if op.role is Role.FORWARD for v in op.outputs if v is not None)]
    )


def _read_elsewhere(graph: LogicalGraph, block: Mapping[str, str], role: Role) -> frozenset[str]:
    """Values that some op of that role reads in another block than they are made in."""
    made_in = {value: block[op.id] for op in graph.ops for value in op.outputs if value is not None}
    return frozenset(v for op in graph.ops if op.role is role for v in op.inputs if made_in.get(v, block[op.id]) != block[op.id])


def _content(graph: LogicalGraph, ops: Sequence[Op]) -> tuple[object, ...]:
    """What makes two pieces alike: everything but the names."""
    number: dict[str, int] = {}
    lines: list[object] = []
    for op in ops:
        reads = tuple(number.setdefault(v, len(number)) for v in op.inputs)
        makes = tuple(number.setdefault(v, len(number)) if v else -1 for v in op.outputs)
        entering = tuple(i.kind if (i := graph.input_of(v)) is not None else None for v in op.inputs)
        lines.append((op_shape(op, graph.values), op.role, reads, makes, entering))
    updated = tuple(sorted((number[old], number[new]) for old, new in graph.updates.items() if old in number and new in number))
    return (tuple(lines), updated)


def _subgraph(graph: LogicalGraph, ops: Sequence[Op], crossing: Iterable[str]) -> LogicalGraph:
    """The ops with what they read; ``crossing`` is named as a result, so that no pass finds it useless."""
    made = {v for op in ops for v in op.outputs if v}
    read = dict.fromkeys(v for op in ops for v in op.inputs)
    updates = {old: new for old, new in graph.updates.items() if new in made and old in read}
    inputs = []
    for value in (*read, *(old for old in updates if old not in read)):
        if value in made:
            continue
        entry = graph.input_of(value)
        if entry is None or (entry.kind.is_state and value not in updates):
            entry = GraphInput(value=value, kind=InputKind.BATCH, name=f"enters.{value}")
        inputs.append(entry)
    used = {*read, *made}
    return replace(
        graph,
        ops=tuple(ops),
        inputs=tuple(inputs),
        values={v: graph.values[v] for v in graph.values if v in used},
        gradients={name: v for name, v in graph.gradients.items() if v in made} | {f"leaves.{v}": v for v in crossing},
        updates=updates,
        # A piece without the loss has to name something.
        loss=graph.loss if graph.loss in made else inputs[0].value,
        mean_loss=graph.mean_loss if graph.mean_loss in made else inputs[0].value,
    )
