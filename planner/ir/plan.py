"""The Plan: tasks (actors), Regsts with quotas, placements and streams; everything a performer needs, and no durations.

A Plan is folded (SEMANTICS 3.9): a Task names the placement that performs it, and every rank of the placement performs it on its own part.

    Task --produces--> Regst (quota blocks, each a tuple of tensors) --consumed by--> Tasks

Rates (SEMANTICS 3.6) sit on ports.  A consumed port with ``acts_per_block = m`` keeps one block for m acts (repeat: a parameter is read by
all m micro-batches).  A produced port with ``acts_per_block = m`` fills one block with the mean of m acts (accumulate: gradients).
State (parameters, optimizer state, buffers) is a Regst that starts full: its readers may fire at once, and its producer, the task that
updates it, may write the next version in place as soon as all readers have acknowledged the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.display import Displayed
from planner.ir.graph import OMITTED, ExpertWork, InputKind, KernelWork, Mode, Op
from planner.ir.sbp import NdSbp, coordinates
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id

__all__ = [
    "Access",
    "BatchInput",
    "Boxing",
    "DTypeFlop",
    "Fragment",
    "Output",
    "PlacedTensor",
    "Placement",
    "Plan",
    "Port",
    "Regst",
    "RegstKind",
    "Search",
    "State",
    "Stream",
    "StreamKind",
    "Task",
    "TaskKind",
]


class TaskKind(Enum):
    """STEP_INPUT writes the numbers of a step (learning rates) that whoever performs the Plan gives; its writes are named as the graph's inputs.

    OUTPUT hands a rank's part of a micro-batch's outputs to whoever performs the Plan.
    """

    SOURCE = "source"
    PREPARE = "prepare"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"
    UPDATE = "update"
    BOXING = "boxing"
    TRANSFER = "transfer"
    FETCH = "fetch"
    STEP_INPUT = "step_input"
    SAVE = "save"
    OUTPUT = "output"

    @property
    def is_compute(self) -> bool:
        return self in (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.WEIGHT, TaskKind.UPDATE)

    @property
    def is_backward(self) -> bool:
        """The backward pass, or one of its parts: WEIGHT where it is split, and BACKWARD is the input part then."""
        return self in (TaskKind.BACKWARD, TaskKind.WEIGHT)

    @property
    def is_communication(self) -> bool:
        return self in (TaskKind.BOXING, TaskKind.TRANSFER)

    @property
    def is_loading(self) -> bool:
        """On the way from the data to the first compute task (planner.lower.data_actors.loading)."""
        return self in (TaskKind.SOURCE, TaskKind.PREPARE, TaskKind.COPY)


class StreamKind(Enum):
    """DISK: reading files.  HOST: work of the host's processor.  COPY: between the memories of host and device."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    LINK = "link"
    HOST = "host"
    DISK = "disk"
    COPY = "copy"

    @property
    def is_host(self) -> bool:
        """Beside the device: neither its processor nor its wires are at work."""
        return self in (StreamKind.HOST, StreamKind.DISK)


class RegstKind(Enum):
    DATA = "data"
    STATE = "state"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The ranks that perform a task together, row-major on a mesh."""

    id: str
    ranks: tuple[int, ...]
    mesh: tuple[int, ...]

    def coordinate(self, rank: int) -> tuple[int, ...]:
        return list(coordinates(self.mesh))[self.ranks.index(rank)]

    def rank_at(self, coordinate: tuple[int, ...]) -> int:
        return dict(zip(coordinates(self.mesh), self.ranks, strict=True))[coordinate]

    def lines(self, axis: int) -> tuple[tuple[int, ...], ...]:
        """The ranks in groups that differ on ``axis`` only, each in axis order."""
        lines: dict[tuple[int, ...], list[int]] = {}
        for coordinate, rank in zip(coordinates(self.mesh), self.ranks, strict=True):
            lines.setdefault((*coordinate[:axis], *coordinate[axis + 1 :]), []).append(rank)
        return tuple(map(tuple, lines.values()))

    def axis_ranks(self, axis: int, rank: int) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` on ``axis`` only, in axis order (itself included)."""
        here = self.coordinate(rank)
        return tuple(self.rank_at((*here[:axis], i, *here[axis + 1 :])) for i in range(self.mesh[axis]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTensor:
    """A logical tensor as it lies on a placement.  ``name`` is the value's id, ``value@sbp`` for a boxed copy."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    sbp: NdSbp

    def local_type(self, placement: Placement, rank: int) -> TensorType:
        return TensorType(self.sbp.local_shape(self.shape, placement.mesh, placement.coordinate(rank)), self.dtype)

    def local_bytes(self, placement: Placement) -> int:
        """Bytes of the largest part."""
        return TensorType(self.sbp.local_shape(self.shape, placement.mesh), self.dtype).size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Regst:
    """``quota`` blocks of the same tensors.  The consumers stand in the tasks' ports.

    producer is None for constants: always readable, never written.
    """

    id: str
    kind: RegstKind
    placement: str
    producer: str | None
    quota: int
    tensors: tuple[PlacedTensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    regst: str
    acts_per_block: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """``name``, a value inside the task, is tensor number ``index`` of ``regst``."""

    name: str
    regst: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DTypeFlop:
    """flop that are computed in one dtype."""

    dtype: DType
    flop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A contiguous piece of one rank's graph, with literals already local, and its price in work.

    flop: all of it.   flop_by_dtype: how much of that is computed in which floating dtype (a device may have a rate for each); the rest is
    work on integers, or in a dtype that nobody told.   kernels: what it launches, where the cluster's device has a kernel table.
    """

    ops: tuple[Op, ...]
    flop: int
    traffic_bytes: int
    workspace_bytes: int
    flop_by_dtype: tuple[DTypeFlop, ...] = ()
    kernels: tuple[KernelWork, ...] = field(default=(), metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxing:
    """One step of boxing along one mesh axis; all tensors of the task take the same step."""

    src: NdSbp
    dst: NdSbp
    axis: int
    collective: Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An actor.  ``acts`` per step; ``priority``: among tasks that could start on a stream the smallest (step, priority, act) goes first."""

    id: str
    kind: TaskKind
    placement: str
    stream: str
    acts: int
    priority: int
    consumes: tuple[Port, ...]
    produces: tuple[Port, ...]
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    body: Fragment | Boxing | None = None

    @property
    def meeting_axis(self) -> int | None:
        """The mesh axis along which ranks meet in every act (SEMANTICS 3.10); None: each rank acts by itself."""
        if isinstance(self.body, Boxing) and self.body.collective is not Collective.LOCAL:
            return self.body.axis
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A queue of a device that performs one act at a time (every rank of the placement has its own).

    ``order``: task ids in the order of one step, repeated as often as they act; empty: by priority among the ready.
    Collectives of one communicator always have an order (SEMANTICS 3.10).
    """

    id: str
    kind: StreamKind
    placement: str
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A parameter, buffer, optimizer state or constant: where the logical tensor ``name`` lives.

    ``copy_of``: of a working copy, the name of the parameter: it is never given nor saved, but is the parameter, cast.
    """

    name: str
    kind: InputKind
    regst: str
    index: int
    copy_of: str | None = field(default=None, metadata=OMITTED)

    @property
    def given_as(self) -> str:
        """The name under which its value is given before the first step."""
        return self.copy_of or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """A batch argument: ``value`` is its name inside SOURCE tasks, ``batch_dim`` the dim that micro-batches slice.

    ``whole_of``: no argument, but the one of that name once more, of the whole batch in every micro-batch.
    """

    name: str
    value: str
    batch_dim: int | None
    whole_of: str | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What leaves the step of every micro-batch: tensor number ``index`` of ``regst``.   name, batch_dim: as planner.ir.graph.GraphOutput."""

    name: str
    regst: str
    index: int
    batch_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What the search claims: objective and lower bound in seconds per step, of the cost model named."""

    method: str
    cost_model: str
    objective_s: float
    lower_bound_s: float


@dataclass(frozen=True, kw_only=True)
class Plan(Displayed):
    """See the module's text.  ``gradients``: parameter name -> access of its mean gradient at a step's end.   ``experts``: if routing was given."""

    model: str
    options: Mapping[str, str]
    micro_batches: int
    batch_size: int
    cluster: Cluster
    placements: tuple[Placement, ...]
    streams: tuple[Stream, ...]
    regsts: tuple[Regst, ...]
    tasks: tuple[Task, ...]
    states: tuple[State, ...]
    batch_inputs: tuple[BatchInput, ...]
    loss: Access
    gradients: Mapping[str, Access]
    search: Search
    outputs: tuple[Output, ...] = field(default=(), metadata=OMITTED)
    experts: tuple[ExpertWork, ...] = field(default=(), metadata=OMITTED)

    @cached_property
    def plan_id(self) -> str:
        return content_id(self)

    @property
    def mode(self) -> Mode:
        """The kind of step that it was made of."""
        return Mode.EVAL if self.options.get("mode") == Mode.EVAL.value else Mode.TRAIN

    @property
    def has_loss(self) -> bool:
        """Whether its steps have a loss; otherwise its option ``loss`` says ``none`` (an evaluation of a module that returns outputs alone)."""
        return "loss" not in self.options

    @cached_property
    def task(self) -> Mapping[str, Task]:
        return {task.id: task for task in self.tasks}

    @cached_property
    def regst(self) -> Mapping[str, Regst]:
        return {regst.id: regst for regst in self.regsts}

    @cached_property
    def placement(self) -> Mapping[str, Placement]:
        return {placement.id: placement for placement in self.placements}

    @cached_property
    def stream(self) -> Mapping[str, Stream]:
        return {stream.id: stream for stream in self.streams}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Task, Port], ...]]:
        """Regst id -> (consumer, its port), in task order."""
        consumers: dict[str, list[tuple[Task, Port]]] = {regst.id: [] for regst in self.regsts}
        for task in self.tasks:
            for port in task.consumes:
                consumers[port.regst].append((task, port))
        return {regst: tuple(pairs) for regst, pairs in consumers.items()}

    @cached_property
    def num_ranks(self) -> int:
        return len({rank for placement in self.placements for rank in placement.ranks})

    def ranks_of(self, task: Task) -> tuple[int, ...]:
        return self.placement[task.placement].ranks

    def peers(self, task: Task, rank: int) -> tuple[int, ...]:
        """The ranks that start every act of ``task`` together with ``rank`` (SEMANTICS 3.10), in axis order; ``rank`` alone if none must meet."""
        axis = task.meeting_axis
        return (rank,) if axis is None else self._line_of[task.placement, axis][rank]

    @cached_property
    def _line_of(self) -> Mapping[tuple[str, int], Mapping[int, tuple[int, ...]]]:
        """(placement, axis) -> rank -> the ranks of its line along that axis."""
        return {
            (placement.id, axis): {rank: line for line in placement.lines(axis) for rank in line}
            for placement in self.placements
            for axis in range(len(placement.mesh))
        }

    def ranks_holding(self, regst: str) -> tuple[int, ...]:
        """Where the blocks of a Regst lie; those of a TRANSFER's lie on the receivers."""
        return self.placement[self.regst[regst].placement].ranks

    def block_bytes(self, regst: Regst) -> int:
        """Bytes of one block on the fullest rank."""
        return sum(tensor.local_bytes(self.placement[regst.placement]) for tensor in regst.tensors)

    def with_quotas(self, quotas: Mapping[str, int]) -> Plan:
        """The same Plan with other quotas, and so with another id."""
        return replace(self, regsts=tuple(replace(r, quota=quotas.get(r.id, r.quota)) for r in self.regsts))
