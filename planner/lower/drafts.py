"""The Plan under construction: drafts of tasks, instances of values, and who makes what."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.ir.cluster import Cluster
from planner.ir.graph import GraphInput, InputKind, Op, Role
from planner.ir.plan import Boxing, Fragment, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.instances import Hop, Instance, Mover, Route
from planner.search import Assignment
from planner.stages import Staged, block_of
from planner.stages.blocks import unshard_unit

__all__ = ["Draft", "Drafts"]


@dataclass(slots=True)
class Draft:
    """A task under construction: what it reads and makes (instance -> name inside the task).

    fragment_stage: of a compute task, its stage; ``stage`` is the placement, and both are the same unless stages are interleaved.
    """

    id: str
    kind: TaskKind
    stage: int
    stream: str
    acts: int
    reads: dict[Instance, str]
    makes: dict[Instance, str]
    body: Fragment | Boxing | None = None
    fragment_stage: int = 0


@dataclass(slots=True)
class Drafts:
    """Everything that the passes of lowering share.

    owner: instance -> id of the task that makes it (absent: constants).   stored: instance that replaces a state -> the state's value.
    """

    staged: Staged
    assignment: Assignment
    cluster: Cluster
    mesh: tuple[int, ...]
    micro_batches: int
    mover: Mover = field(init=False)
    producers: dict[str, Op] = field(init=False)
    inputs: dict[str, GraphInput] = field(init=False)
    instances: dict[tuple[str, int, NdSbp, str], Instance] = field(default_factory=dict)
    ops: dict[str, Op] = field(init=False)
    tasks: dict[str, Draft] = field(default_factory=dict)
    owner: dict[Instance, str] = field(default_factory=dict)
    stored: dict[Instance, str] = field(default_factory=dict)
    fragment_ops: dict[str, list[Op]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mover = Mover(self.cluster, self.mesh)
        self.producers = self.staged.graph.producers()
        self.ops = {op.id: op for op in self.staged.graph.ops}
        self.inputs = {i.value: i for i in self.staged.graph.inputs}

    def instance(self, value: str, stage: int, sbp: NdSbp) -> Instance:
        """The instance of this value there, native unless a move has made it."""
        return self.instances.setdefault((value, stage, sbp, ""), Instance(value, stage, sbp))

    def native(self, value: str, stage: int = 0, wanted: NdSbp | None = None) -> Instance:
        """The instance that the value's producer makes; what may be delivered freely is made where it is wanted."""
        op = self.producers.get(value)
        if op is not None:
            sbp = self.assignment.ops[op.id].outputs[op.outputs.index(value)]
            return self.instance(value, self.staged.stage[op.id], sbp if sbp is not None else NdSbp.broadcast(len(self.mesh)))
        if value in self.assignment.states:
            return self.instance(value, self.staged.home(value), self.assignment.states[value])
        assert wanted is not None, f"{value} is delivered where it is wanted"
        return self.instance(value, stage, self.assignment.pinned.get(value, wanted))

    def route(self, value: str, stage: int, wanted: NdSbp) -> tuple[Instance, Route]:
        """The native instance and the way from it to (stage, wanted)."""
        native = self.native(value, stage, wanted)
        shared = self.assignment.delivered.get((value, stage), wanted)
        return native, self.mover.route(self.staged.graph.values[value], native.stage, native.sbp, stage, wanted, shared)

    def follow(self, native: Instance, route: Route, turn: str = "") -> Instance:
        """The last instance of a route, making the ones between."""
        here = native
        for move in route.moves:
            stage, sbp = (move.dst_stage, move.dst) if isinstance(move, Hop) else (here.stage, move.dst)
            here = self.instances.setdefault((native.value, stage, sbp, turn), Instance(native.value, stage, sbp, here, move, turn))
        return here

    def turn(self, op: Op, value: str) -> str:
        """The turn (see Instance) of the copy of a value that an op reads."""
        again = (value, self.staged.stage[op.id]) in self.assignment.again and op.role in (Role.FORWARD, Role.BACKWARD)
        return f"{op.role.value} {unshard_unit(op, self.ops)}" if again else ""

    def units(self) -> dict[str, str]:
        """Op id -> its unit (planner.search.zero), for ops that must not share a fragment with those of another: parameters are freed between.

        On a stage that gathers parameters again that is every op of a numbered block, outside of blocks every op that reads such a parameter,
        and what accumulates their gradients.
        """
        stages = {stage for _, stage in self.assignment.again}
        found: dict[str, str] = {}
        for op in self.staged.graph.ops:
            origin = self.producers.get(op.inputs[0], op) if op.role is Role.ACCUMULATE else op
            if self.staged.stage[op.id] in stages and origin.role in (Role.FORWARD, Role.BACKWARD):
                unit = unshard_unit(origin, self.ops)
                if block_of(unit) or any(self.turn(origin, value) for value in origin.inputs):
                    found[op.id] = unit
        return found

    def wanted(self, op: Op, value: str) -> NdSbp:
        """The layout in which an op needs an operand."""
        return self.assignment.ops[op.id].inputs[op.inputs.index(value)]

    def num_moves(self, op: Op, value: str) -> int:
        """Communications between a value's producer and this reader within a step."""
        if value not in self.producers:
            return 0  # state, batch and constants are there before the step begins
        return len(self.route(value, self.staged.stage[op.id], self.wanted(op, value))[1].moves)

    def is_delivered(self, value: str) -> bool:
        """Batch inputs and constants: any layout at no cost, several at once if need be."""
        return value not in self.producers and value not in self.assignment.states

    def is_batch(self, value: str) -> bool:
        return value in self.inputs and self.inputs[value].kind is InputKind.BATCH

    def per_step(self, value: str) -> bool:
        """Made once per step (parameters, accumulated values, updates) rather than once per micro-batch."""
        op = self.producers.get(value)
        if op is not None:
            return op.role in (Role.ACCUMULATE, Role.UPDATE)
        new = self.staged.graph.updates.get(value)
        return new is not None and self.per_step(new)

    def is_accumulated(self, value: str) -> bool:
        """Its block is filled by all acts of a step."""
        op = self.producers.get(value)
        return op is not None and op.role is Role.ACCUMULATE and self.micro_batches > 1
