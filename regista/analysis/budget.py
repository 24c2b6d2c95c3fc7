"""Where a Plan's seconds and bytes go, from the Plan alone.

seconds   every task at the prices of the Plan's cluster, acts per step times seconds per act, as if nothing overlapped
bytes     every block of every Regst and the largest workspace of every stream; their sum is what planner.ir.actors.verify.device_bytes counts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import simulator
from planner.cost import AnalyticCost
from planner.ir.actors.verify import stream_workspaces
from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.graph import InputKind
from planner.ir.plan import Boxing, PlacedTensor, Plan, Regst, RegstKind, Task, TaskKind
from planner.lower.names import value_of

__all__ = ["Holding", "Spending", "StageWork", "Use", "holdings", "logical_bytes", "memory", "spending", "stage_work"]


class Use(Enum):
    """What bytes on a device are for."""

    PARAMETERS = "parameters"
    WORKING_COPIES = "working copies"
    OPTIMIZER_STATE = "optimizer state"
    BUFFERS = "buffers and constants"
    GRADIENTS = "gradients"
    KEPT = "activations from forward to backward"
    IN_FLIGHT = "buffers in flight"
    WORKSPACE = "workspace"


_USE_OF_STATE: Mapping[InputKind, Use] = {
    InputKind.PARAMETER: Use.PARAMETERS,
    InputKind.OPTIMIZER_STATE: Use.OPTIMIZER_STATE,
    InputKind.BUFFER: Use.BUFFERS,
    InputKind.CONSTANT: Use.BUFFERS,
    InputKind.RANDOM: Use.BUFFERS,
    InputKind.LOSS_SCALE: Use.BUFFERS,
    InputKind.WORKING_COPY: Use.WORKING_COPIES,
}


def memory(plan: Plan) -> Mapping[str, Mapping[Use, int]]:
    """Placement id -> use -> bytes on each of its ranks."""
    gradients = {value_of(name) for name in (_name(plan, access.regst, access.index) for access in plan.gradients.values())}
    forward = {value_of(access.name) for task in plan.tasks if task.kind is TaskKind.FORWARD for access in task.writes}
    kinds = {(state.regst, state.index): state.kind for state in plan.states}
    held = {placement.id: dict.fromkeys(Use, 0) for placement in plan.placements}
    for regst in plan.regsts:
        placement = plan.placement[regst.placement]
        for index, tensor in enumerate(regst.tensors):
            use = _use(plan, regst, tensor, kinds.get((regst.id, index)), gradients, forward)
            held[placement.id][use] += regst.quota * tensor.local_bytes(placement)
    for stream, workspace_bytes in stream_workspaces(plan).items():
        held[plan.stream[stream].placement][Use.WORKSPACE] += workspace_bytes
    return held


def _name(plan: Plan, regst: str, index: int) -> str:
    return plan.regst[regst].tensors[index].name


def _use(plan: Plan, regst: Regst, tensor: PlacedTensor, kind: InputKind | None, gradients: set[str], forward: set[str]) -> Use:
    if regst.kind is RegstKind.STATE:
        return _USE_OF_STATE[kind] if kind is not None else Use.BUFFERS
    value = value_of(tensor.name)
    if value in gradients:
        return Use.GRADIENTS
    into_backward = any(task.kind.is_backward for task, _ in plan.consumers[regst.id])
    return Use.KEPT if into_backward and value in forward else Use.IN_FLIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What one task costs in a step.

    what: forward, backward, update, the collective of a boxing, or transfer.   axis: the mesh axis of a boxing, else None.
    link: the outermost link that it crosses ('-' for none).   size_bytes: of the logical tensors that it moves, once per act.
    """

    task: str
    placement: str
    what: str
    axis: int | None
    link: str
    acts: int
    time_s: float
    size_bytes: int
    moves: tuple[str, ...]


def spending(plan: Plan) -> tuple[Spending, ...]:
    """One entry per task that computes or communicates, dearest first."""
    act_s = AnalyticCost(plan.cluster).folded_s(plan)
    costs = []
    for task in plan.tasks:
        if not (task.kind.is_compute or task.kind.is_communication):
            continue
        axis = task.body.axis if isinstance(task.body, Boxing) else None
        costs.append(
            Spending(
                task=task.id,
                placement=task.placement,
                what=task.body.collective.value if isinstance(task.body, Boxing) else task.kind.value,
                axis=axis,
                link=_link(plan, task),
                acts=task.acts,
                time_s=task.acts * act_s(task),
                size_bytes=logical_bytes(plan, task) if task.kind.is_communication else 0,
                moves=_moves(plan, task) if task.kind.is_communication else (),
            )
        )
    return tuple(sorted(costs, key=lambda s: (-s.time_s, s.task)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a stage computes in a step, in seconds: the passes of all micro-batches, and its update."""

    placement: str
    passes_s: float
    once_s: float

    @property
    def compute_s(self) -> float:
        return self.passes_s + self.once_s


def stage_work(spent: Sequence[Spending]) -> tuple[StageWork, ...]:
    """One entry per placement that computes, in the order of their ids; communication is left out."""
    kinds = {kind.value: kind for kind in TaskKind if kind.is_compute}
    passes_s: dict[str, float] = {}
    once_s: dict[str, float] = {}
    for one in spent:
        if one.what not in kinds:
            continue
        for sums in (passes_s, once_s):
            sums.setdefault(one.placement, 0.0)
        (once_s if kinds[one.what] is TaskKind.UPDATE else passes_s)[one.placement] += one.time_s
    return tuple(StageWork(placement=p, passes_s=passes_s[p], once_s=once_s[p]) for p in sorted(passes_s, key=lambda p: (len(p), p)))


def logical_bytes(plan: Plan, task: Task) -> int:
    """Bytes of the whole tensors that an act of a task writes."""
    tensors = [plan.regst[access.regst].tensors[access.index] for access in task.writes]
    return sum(tensor.dtype.size_bytes * prod(tensor.shape) for tensor in tensors)


def _moves(plan: Plan, task: Task) -> tuple[str, ...]:
    pairs = zip(task.reads, task.writes, strict=True)
    tensors = [(plan.regst[r.regst].tensors[r.index], plan.regst[w.regst].tensors[w.index]) for r, w in pairs]
    return tuple(f"{value_of(src.name)} {src.sbp} -> {dst.sbp}" for src, dst in tensors)


def _link(plan: Plan, task: Task) -> str:
    ranks = plan.ranks_of(task)
    if task.kind is TaskKind.TRANSFER:
        there = plan.ranks_holding(task.produces[0].regst)
        return _outermost(plan.cluster, (*ranks, *there))
    if isinstance(task.body, Boxing) and task.body.collective is not Collective.LOCAL:
        return _outermost(plan.cluster, plan.peers(task, ranks[0]))
    return "-"


def _outermost(cluster: Cluster, ranks: tuple[int, ...]) -> str:
    if len(set(ranks)) < 2:
        return "-"
    if cluster.rack is not None and len({cluster.rack_of(rank) for rank in ranks}) > 1:
        return "rack"
    return "nic" if len({cluster.node_of(rank) for rank in ranks}) > 1 else "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A placement: its bytes per rank by use, against what a device has.   live_bytes: of them held at once, at the worst moment of a step."""

    placement: str
    uses: Mapping[Use, int]
    live_bytes: int
    device_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.uses.values())

    @property
    def binds(self) -> Use:
        """The largest use."""
        return max(self.uses, key=lambda use: self.uses[use])


def holdings(plan: Plan, live_bytes: Mapping[int, int] | None = None) -> tuple[Holding, ...]:
    """Every placement, the fullest first.   live_bytes: of the Plan's dry run, per rank; None: it is played."""
    live, limit = simulator.dry_run(plan) if live_bytes is None else live_bytes, plan.cluster.device.memory_bytes
    held = [
        Holding(placement=p, uses=uses, live_bytes=max(live[rank] for rank in plan.placement[p].ranks), device_bytes=limit)
        for p, uses in memory(plan).items()
    ]
    return tuple(sorted(held, key=lambda h: (-h.total_bytes, h.placement)))
