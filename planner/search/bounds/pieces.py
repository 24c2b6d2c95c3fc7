"""A lower bound on the cost of a whole model from its pieces: equal blocks are solved once, and the optimum is multiplied by their number.

A piece consists of the forward ops of one block (the modules up to their first number: h.3) and the backward ops, accumulations and updates
that belong to them.  A value that enters a piece costs nothing in any layout.  So the sum of the pieces' optima is at most the optimum of
the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from planner.ir.cluster import Cluster
from planner.ir.graph import GraphInput, InputKind, LogicalGraph, Op, Role
from planner.search.formulation import MeshTools, build_model
from planner.search.model import SearchModel
from planner.search.pins import Pin, applicable
from planner.search.strategies import op_shape
from planner.solve import Problem, Solution, solve_exactly
from planner.solve.limited.memory import least_demand
from planner.solve.problem import Ints, NotFoundInTime
from planner.solve.reduce.contract import ReducedProblem, reduce_problem
from planner.solve.time_limit import NO_LIMIT, TimeLimit
from planner.stages import Staged, prepare
from planner.stages.blocks import blocks_of

__all__ = ["ModelPiece", "PieceSearch", "PieceCost", "forward_part", "model_pieces", "stage_part", "stages_alike"]

_LEAVES = "leaves."
"""Begins the name of a value that leaves a piece, among its gradients."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelPiece:
    """A part of the graph that occurs ``times`` times.

    members: its occurrences, as blocks of the model (h.0, h.1, ...).
    backward_reads: those of its values that the backward part of another piece reads.
    """

    graph: LogicalGraph
    times: int
    backward_reads: frozenset[str]
    members: tuple[str, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Bytes of the piece's parameters, optimizer state and buffers, before they are split."""
        return sum(self.graph.values[value].size_bytes for value in self.graph.updates)

    @property
    def saved_bytes(self) -> int:
        """Bytes that a micro-batch saves for the backward part, before they are split."""
        made = {v for op in self.graph.ops if op.role is Role.FORWARD for v in op.outputs if v is not None}
        read = {v for op in self.graph.ops if op.role is Role.BACKWARD for v in op.inputs}
        return sum(self.graph.values[value].size_bytes for value in (made & read) | self.backward_reads)


@dataclass(frozen=True, slots=True)
class PieceCost:
    """The cost of one choice of layouts for a piece.

    cost_s: m t + u, where t are the seconds per micro-batch and u those once per step.   held_bytes: the peak per device.
    bound_s: no choice has a smaller cost_s + s_per_byte held_bytes.
    """

    cost_s: float
    held_bytes: float
    bound_s: float


class PieceSearch:
    """A piece on the mesh of one stage.

    Args:
        micro_batches: m, how often the part per micro-batch counts.   in_flight: micro-batches that wait for their backward pass.
        tools: of the mesh, which all pieces share.
        time_limit: of all searches of this piece; a bound that it ends is lower than the optimum, and holds.
    """

    def __init__(
        self,
        piece: ModelPiece,
        mesh: tuple[int, ...],
        cluster: Cluster,
        pins: Sequence[Pin],
        micro_batches: int,
        in_flight: int,
        tools: MeshTools,
        time_limit: TimeLimit = NO_LIMIT,
    ) -> None:
        staged = Staged(piece.graph, {op.id: 0 for op in piece.graph.ops}, 1)
        piece_pins = applicable(pins, piece.graph)
        self._build = partial(build_model, staged, mesh, cluster, piece_pins, micro_batches, tools=tools)
        self._build_with_memory = partial(self._build, limit_bytes=1e30, in_flight=(in_flight,), saved_elsewhere=piece.backward_reads)
        self.times = piece.times
        self.micro_batches = micro_batches
        self._time_limit = time_limit
        self._best: dict[float, PieceCost] = {}

    @cached_property
    def _model(self) -> SearchModel:
        """The model that counts bytes."""
        return self._build_with_memory()

    @cached_property
    def _reduced(self) -> ReducedProblem:
        """The problem that counts bytes, reduced as far as holds whatever a byte costs; of so few nodes dominated strategies are not looked for."""
        return reduce_problem(self._model.problem, dominance=False, crop=False)

    @cached_property
    def _unlimited(self) -> SearchModel:
        """The model without bytes, which is smaller."""
        return self._build()

    @cached_property
    def unlimited_s(self) -> float:
        """A lower bound on m t + u.  It takes less time than best(0.0), because bytes are not counted."""
        return self._bound(self._unlimited.problem)

    def best(self, s_per_byte: float = 0.0) -> PieceCost:
        """The cheapest choice, or the best in time, if every byte that is held at the end of the forward part costs ``s_per_byte``.

        Raises:
            NotFoundInTime: there was no choice in time.
        """
        if s_per_byte not in self._best:
            solution = self._solve(self._reduced.problem.charged({0: s_per_byte}))
            self._best[s_per_byte] = self._cost(self._reduced.expand(solution.choice), solution.lower_bound)
        return self._best[s_per_byte]

    @cached_property
    def smallest(self) -> PieceCost:
        """A choice that holds as few bytes as possible.

        Raises:
            NotFoundInTime: the time was up before this was proven.
        """
        self._check_time()
        choice = least_demand(self._model.problem, seconds=self._time_limit.remaining_s(), clock=self._time_limit.clock)
        self._check_time()
        return self._cost(choice, self._model.problem.objective(choice))

    @cached_property
    def least_bytes(self) -> tuple[float, float]:
        """At the end of the forward part, and of the backward part: a device of no choice holds less than so many bytes."""
        legal = self._model.problem.cost_free()
        return self._bound(legal.charged({0: 1.0})), self._bound(legal.charged({1: 1.0}))

    @cached_property
    def least_micro_s(self) -> float:
        """A lower bound on the seconds of a micro-batch."""
        return self._bound(self._unlimited.weighted(lambda _, count: float(count > 1))) / self.micro_batches

    def _solve(self, problem: Problem) -> Solution:
        self._check_time()
        return solve_exactly(problem, seconds=self._time_limit.remaining_s(), clock=self._time_limit.clock)

    def _bound(self, problem: Problem) -> float:
        """A lower bound on the objective, 0 or more: the optimum, or what is proven when the time is up."""
        try:
            return self._solve(problem).lower_bound
        except NotFoundInTime as error:
            return max(error.lower_bound, 0.0)

    def _check_time(self) -> None:
        if self._time_limit.is_up():
            raise NotFoundInTime("the time was up before the layouts of a block of the model were found; give more seconds", 0.0)

    def _cost(self, choice: Ints, bound_s: float) -> PieceCost:
        problem = self._model.problem
        return PieceCost(problem.objective(choice), problem.peak(choice), bound_s)


def model_pieces(graph: LogicalGraph, *, recompute: bool | Collection[str] = False) -> tuple[ModelPiece, ...]:
    """The distinct pieces of a traced step, in order of their first op.

    They are cut from the graph as a plan of one stage has it, where no view of a saved value is counted beside it.

    Args:
        recompute: the backward part computes what is inside of numbered blocks again, or the results of these ops.
    """
    graph = prepare(graph, {op.id: 0 for op in graph.ops}, 1, recompute=recompute).graph
    block = blocks_of(graph)
    members: dict[str, list[Op]] = {}
    for op in graph.ops:
        members.setdefault(block[op.id], []).append(op)
    groups: dict[tuple[object, ...], list[str]] = {}
    replaced_by = _replaced_by(graph)
    for name, ops in members.items():
        groups.setdefault(_content(graph, ops, replaced_by), []).append(name)
    backward_reads, forward_reads = (_read_elsewhere(graph, block, role) for role in (Role.BACKWARD, Role.FORWARD))
    return tuple(
        ModelPiece(
            graph=_subgraph(graph, members[alike[0]], forward_reads & made),
            times=len(alike),
            backward_reads=backward_reads & made,
            members=tuple(alike),
        )
        for alike in groups.values()
        for made in [frozenset(v for op in members[alike[0]] if op.role is Role.FORWARD for v in op.outputs if v is not None)]
    )


def forward_part(piece: ModelPiece) -> ModelPiece:
    """The forward ops of a piece as a piece of its own, which costs no more than the piece does, and is found in a fraction of its time."""
    ops = [op for op in piece.graph.ops if op.role is Role.FORWARD]
    made = frozenset(v for op in ops for v in op.outputs if v is not None)
    leaving = made & {v for op in piece.graph.ops if op.role is not Role.FORWARD for v in op.inputs}
    leaving |= made & {v for name, v in piece.graph.gradients.items() if name.startswith(_LEAVES)}
    return replace(piece, graph=_subgraph(piece.graph, ops, leaving), backward_reads=leaving)


def stage_part(staged: Staged, stage: int) -> Staged:
    """What lies on one stage, by itself; a value that enters it costs nothing in any layout, and is not held."""
    ops = [op for op in staged.graph.ops if staged.stage[op.id] == stage]
    made = {v for op in ops for v in op.outputs if v is not None}
    leaving = {v for op in staged.graph.ops if op.role is Role.FORWARD and staged.stage[op.id] != stage for v in op.inputs}
    return Staged(_subgraph(staged.graph, ops, made & leaving), {op.id: 0 for op in ops}, 1)


def stages_alike(staged: Staged, stages: Iterable[int]) -> list[list[int]]:
    """These stages, grouped: those in which equal ops are joined in the same way are alike."""
    replaced_by, ops_on = _replaced_by(staged.graph), dict[int, list[Op]]()
    for op in staged.graph.ops:
        ops_on.setdefault(staged.stage[op.id], []).append(op)
    groups: dict[tuple[object, ...], list[int]] = {}
    for stage in stages:
        groups.setdefault(_content(staged.graph, ops_on.get(stage, ()), replaced_by), []).append(stage)
    return list(groups.values())


def _replaced_by(graph: LogicalGraph) -> Mapping[str, Sequence[str]]:
    """New value -> the states that become it."""
    replaced_by: dict[str, list[str]] = {}
    for old, new in graph.updates.items():
        replaced_by.setdefault(new, []).append(old)
    return replaced_by


def _read_elsewhere(graph: LogicalGraph, block: Mapping[str, str], role: Role) -> frozenset[str]:
    """Values that an op of that role reads in another block than the one that makes them."""
    made_in = {value: block[op.id] for op in graph.ops for value in op.outputs if value is not None}
    return frozenset(v for op in graph.ops if op.role is role for v in op.inputs if made_in.get(v, block[op.id]) != block[op.id])


def _content(graph: LogicalGraph, ops: Sequence[Op], replaced_by: Mapping[str, Sequence[str]]) -> tuple[object, ...]:
    """A key that two pieces share exactly if they are equal up to names.   replaced_by: new value -> states that become it."""
    number: dict[str, int] = {}
    lines: list[object] = []
    for op in ops:
        reads = tuple([number.setdefault(v, len(number)) for v in op.inputs])
        makes = tuple([number.setdefault(v, len(number)) if v else -1 for v in op.outputs])
        entering = tuple([i.kind if (i := graph.input_of(v)) is not None else None for v in op.inputs])
        lines.append((op_shape(op, graph.values), op.role, reads, makes, entering))
    updated = tuple(sorted((number[old], number[new]) for new in number for old in replaced_by.get(new, ()) if old in number))
    return (tuple(lines), updated)


def _subgraph(graph: LogicalGraph, ops: Sequence[Op], results: Iterable[str]) -> LogicalGraph:
    """The graph of these ops; ``results`` are named among its gradients, so that no pass removes them as unused."""
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
    # A graph must name a loss.  A piece without one names what is no state: a state would be delivered whole to the user, which costs time.
    free = next((entry.value for entry in inputs if entry.value not in updates), graph.loss)
    if free not in made and free not in read:
        inputs.append(GraphInput(value=free, kind=InputKind.BATCH, name=f"enters.{free}"))
    used = {*read, *made, free}
    return replace(
        graph,
        ops=tuple(ops),
        inputs=tuple(inputs),
        values={v: graph.values[v] for v in graph.values if v in used},
        gradients={name: v for name, v in graph.gradients.items() if v in made} | {f"{_LEAVES}{v}": v for v in results},
        updates=updates,
        outputs=tuple(output for output in graph.outputs if output.value in made),
        loss=graph.loss if graph.loss in made else free,
        mean_loss=graph.mean_loss if graph.mean_loss in made else free,
    )
