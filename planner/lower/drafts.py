"""A Plan under construction: drafts of its tasks, instances of values, and the task that makes each instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.ir.cluster import Cluster
from planner.ir.graph import GraphInput, InputKind, Op, Role
from planner.ir.plan import Boxing, Fragment, Plan, Stream, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.instances import Arrival, Instance, UnshardScope, arrival
from planner.lower.rings import is_step
from planner.search import Assignment
from planner.search.routes import Move, StageTransfer
from planner.stages import Staged, block_of
from planner.stages.blocks import unshard_unit

__all__ = ["Before", "Draft", "Drafts"]


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """A Plan that was lowered before from the same graph in stages with the same recipe, and its decisions."""

    plan: Plan
    assignment: Assignment


@dataclass(slots=True)
class Draft:
    """A task under construction.  reads, makes: instance -> its name inside the task.

    stage: the number of the placement.   fragment_stage: the stage of a compute task; it differs from ``stage`` only if stages are interleaved.
    """

    id: str
    kind: TaskKind
    stage: int
    stream: Stream
    acts: int
    reads: dict[Instance, str]
    makes: dict[Instance, str]
    body: Fragment | Boxing | None = None
    fragment_stage: int = 0


@dataclass(slots=True)
class Drafts:
    """The state that the passes of lowering share.

    before: what was lowered before, on the same kind of device; fragments that come out alike are taken from it.
    owner: instance -> id of the task that makes it (absent: constants).   stored: instance that replaces a state -> the state's value.
    fragment_ops: task -> the ops of its fragment, in order.
    """

    staged: Staged
    assignment: Assignment
    cluster: Cluster
    mesh: tuple[int, ...]
    micro_batches: int
    before: Before | None = None
    producers: Mapping[str, Op] = field(init=False)
    inputs: dict[str, GraphInput] = field(init=False)
    instances: dict[tuple[str, int, NdSbp, UnshardScope | None], Instance] = field(default_factory=dict)
    ops: dict[str, Op] = field(init=False)
    tasks: dict[str, Draft] = field(default_factory=dict)
    owner: dict[Instance, str] = field(default_factory=dict)
    stored: dict[Instance, str] = field(default_factory=dict)
    fragment_ops: dict[str, list[Op]] = field(default_factory=dict)
    _natives: dict[str, Instance] = field(default_factory=dict)
    """Of what ops make, and of states."""
    _num_moves: dict[tuple[str, str], int] = field(default_factory=dict)
    _moves: dict[tuple[Move, ...], int] = field(default_factory=dict)
    """Route -> its communications."""

    def __post_init__(self) -> None:
        self.producers = self.staged.graph.producers()
        self.ops = {op.id: op for op in self.staged.graph.ops}
        self.inputs = {i.value: i for i in self.staged.graph.inputs}

    def instance(self, value: str, stage: int, sbp: NdSbp) -> Instance:
        """The instance of a value on a stage in a layout; it is native unless a move makes it."""
        key = (value, stage, sbp, None)
        made = self.instances.get(key)
        if made is None:
            made = self.instances[key] = Instance(value, stage, sbp)
        return made

    def native(self, value: str, stage: int = 0, wanted: NdSbp | None = None) -> Instance:
        """The instance that the value's producer makes; a batch input or constant is made on the stage and in the layout wanted."""
        known = self._natives.get(value)
        if known is not None:
            return known
        op = self.producers.get(value)
        if op is not None:
            sbp = self.assignment.ops[op.id].outputs[op.outputs.index(value)]
            made = self.instance(value, self.staged.stage[op.id], sbp if sbp is not None else NdSbp.broadcast(len(self.mesh)))
            return self._natives.setdefault(value, made)
        if value in self.assignment.states:
            stored = self.instance(value, self.staged.state_stage(value), self.assignment.states[value])
            return self._natives.setdefault(value, stored)
        assert wanted is not None, f"{value} is made in the layout wanted, which is not given"
        return self.instance(value, stage, self.assignment.pinned.get(value, wanted))

    def arrival(self, value: str, stage: int, wanted: NdSbp) -> tuple[Instance, Arrival]:
        """The native instance, and the moves from it to a reader on ``stage`` that needs the value in the layout ``wanted``."""
        native = self.native(value, stage, wanted)
        return native, arrival(self.assignment.routes.get((value, stage, wanted), ()))

    def follow(self, native: Instance, moves: Sequence[Move], scope: UnshardScope | None = None) -> Instance:
        """The instance after some moves; makes the instances after each move."""
        here = native
        for move in moves:
            stage = move.dst_stage if isinstance(move, StageTransfer) else here.stage
            key = (native.value, stage, move.dst, scope)
            made = self.instances.get(key)
            if made is None:
                made = self.instances[key] = Instance(native.value, stage, move.dst, here, move, scope)
            here = made
        return here

    def scope(self, op: Op, value: str) -> UnshardScope | None:
        """The scope of the copy of a value that an op reads; None if the copy serves all readers."""
        if op.role not in (Role.FORWARD, Role.BACKWARD) or (value, self.staged.stage[op.id]) not in self.assignment.regathered:
            return None
        return UnshardScope(op.role, unshard_unit(op, self.ops))

    def units(self) -> dict[str, str]:
        """Op id -> its unit (planner.stages.blocks), for ops that may not share a fragment with ops of another unit.

        Parameters are resharded between units, and each step of a ring is one.  On a
        stage that unshards parameters per unit, these are all ops of numbered blocks, ops outside of
        blocks that read such a parameter, and the accumulations of their gradients.
        """
        stages = {stage for _, stage in self.assignment.regathered}
        unit_of: dict[str, str] = {}
        for op in self.staged.graph.ops:
            origin = self.producers.get(op.inputs[0], op) if op.role is Role.ACCUMULATE else op
            if self.staged.stage[op.id] in stages and origin.role in (Role.FORWARD, Role.BACKWARD):
                unit = unshard_unit(origin, self.ops)
                if block_of(unit) or any(self.scope(origin, value) for value in origin.inputs):
                    unit_of[op.id] = unit
            if is_step(op):
                unit_of[op.id] = op.id
        return unit_of

    def wanted(self, op: Op, value: str) -> NdSbp:
        """The layout in which an op needs an operand."""
        return self.assignment.ops[op.id].inputs[op.inputs.index(value)]

    def num_moves(self, op: Op, value: str) -> int:
        """Communications between a value's producer and this reader within a step."""
        if value not in self.producers:
            return 0  # state, batch inputs and constants exist before the step begins
        known = self._num_moves.get((op.id, value))
        if known is None:
            known = self._num_moves[op.id, value] = self._counted_moves(op, value)
        return known

    def _counted_moves(self, op: Op, value: str) -> int:
        self.native(value)  # instances are numbered as they are asked about
        route = self.assignment.routes.get((value, self.staged.stage[op.id], self.wanted(op, value)), ())
        if not route:
            return 0
        if route not in self._moves:
            self._moves[route] = len(arrival(route).moves)
        return self._moves[route]

    def is_delivered(self, value: str) -> bool:
        """Whether the value is a batch input or a constant, which is available in any layout at no cost."""
        return value not in self.producers and value not in self.assignment.states

    def is_fed(self, value: str) -> bool:
        """A batch input or a step input: a task makes it in every layout that is wanted."""
        return value in self.inputs and self.inputs[value].kind in (InputKind.BATCH, InputKind.STEP_INPUT)

    def per_step(self, value: str) -> bool:
        """Whether the value is made once per step (parameters, accumulated values, updates), not once per micro-batch."""
        op = self.producers.get(value)
        if op is not None:
            return op.role in (Role.ACCUMULATE, Role.UPDATE)
        if value in self.inputs and self.inputs[value].kind is InputKind.STEP_INPUT:
            return True
        new = self.staged.graph.updates.get(value)
        return new is not None and self.per_step(new)

    def is_accumulated(self, value: str) -> bool:
        """Whether all acts of a step fill one block of the value."""
        op = self.producers.get(value)
        return op is not None and op.role is Role.ACCUMULATE and self.micro_batches > 1
