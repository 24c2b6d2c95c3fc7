"""Plans of actors alone, made by hand: tasks without ops, one tensor per Regst, no states and no gradients."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.cluster import Cluster
from planner.ir.plan import (
    Access,
    Fragment,
    PlacedTensor,
    Placement,
    Plan,
    Port,
    Regst,
    RegstKind,
    Search,
    Stream,
    StreamKind,
    Task,
    TaskKind,
)
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType

__all__ = ["ONE_RANK", "actor_plan", "actor_regst", "actor_task", "compute_streams", "ports"]

ONE_RANK = Placement(id="dev", ranks=(0,), mesh=(1,))


def ports(*regsts: str | None) -> tuple[Port, ...]:
    """A port per Regst; None, for an actor without a neighbour on that side, gives none."""
    return tuple(Port(regst=regst) for regst in regsts if regst is not None)


def actor_task(
    name: str,
    stream: str,
    acts: int,
    consumes: tuple[Port, ...],
    produces: tuple[Port, ...],
    *,
    placement: str = ONE_RANK.id,
    kind: TaskKind = TaskKind.FORWARD,
    moves: tuple[str, str] | None = None,
) -> Task:
    """A task whose fragment, if its kind has one, is empty.

    Args:
        acts: per step.   moves: of a TRANSFER, the Regst that it reads and the one that it fills.
    """
    return Task(
        id=name,
        kind=kind,
        placement=placement,
        stream=stream,
        acts=acts,
        priority=0,
        consumes=consumes,
        produces=produces,
        reads=(Access(name=moves[0], regst=moves[0], index=0),) if moves else (),
        writes=(Access(name=moves[1], regst=moves[1], index=0),) if moves else (),
        body=Fragment(ops=(), flop=0, traffic_bytes=0, workspace_bytes=0) if kind.is_compute else None,
    )


def actor_regst(name: str, producer: str, quota: int, tensor: str, extent: int, *, placement: str = ONE_RANK.id) -> Regst:
    """A Regst whose block is one float32 vector, ``tensor``, of ``extent`` elements."""
    vector = PlacedTensor(name=tensor, shape=(extent,), dtype=DType.FLOAT32, sbp=NdSbp.broadcast(1))
    return Regst(id=name, kind=RegstKind.DATA, placement=placement, producer=producer, quota=quota, tensors=(vector,))


def compute_streams(names: Sequence[str]) -> tuple[Stream, ...]:
    """A compute stream per name on the one rank."""
    return tuple(Stream(id=name, kind=StreamKind.COMPUTE, placement=ONE_RANK.id) for name in names)


def actor_plan(
    name: str,
    cluster: Cluster,
    streams: Sequence[Stream],
    regsts: Sequence[Regst],
    tasks: Sequence[Task],
    micro_batches: int,
    *,
    placements: Sequence[Placement] = (ONE_RANK,),
    cost_model: str,
) -> Plan:
    """A Plan of these parts, with one sample per micro-batch; the last Regst counts as its loss."""
    return Plan(
        model=name,
        options={},
        micro_batches=micro_batches,
        batch_size=micro_batches,
        cluster=cluster,
        placements=tuple(placements),
        streams=tuple(streams),
        regsts=tuple(regsts),
        tasks=tuple(tasks),
        states=(),
        batch_inputs=(),
        loss=Access(name="loss", regst=regsts[-1].id, index=0),
        gradients={},
        search=Search(method="hand", cost_model=cost_model, objective_s=0.0, lower_bound_s=0.0),
    )
