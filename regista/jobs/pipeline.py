"""The Plan of a job: its pipeline, with one rank of every stage as the representative of the tp x cp x dp that do the same.

    gather c --params--> F c --stash--> B c --gradients--> reduce c --> update --state--> gather c        for each chunk c of the stage
                         F c --transfer--> F c+1      B c+1 --transfer--> B c

What the ranks of a stage send each other inside of a pass (tensor and context parallelism, experts) is part of the pass, as Megatron performs
it; what they send once per step is a task of its own on the stage's collective stream.  Passes stand in Megatron's order (1F1B, interleaved).
Register sizes are those of memory/, so that the token game's live bytes are a reading of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective
from planner.ir.graph import InputKind
from planner.ir.plan import (
    Access,
    Boxing,
    Fragment,
    PlacedTensor,
    Placement,
    Plan,
    Port,
    Regst,
    RegstKind,
    Search,
    State,
    Stream,
    StreamKind,
    Task,
    TaskKind,
)
from planner.ir.sbp import B, NdSbp, P
from planner.ir.tensor import DType
from planner.schedule import PipelineSchedule
from planner.schedule.actions import Pass
from planner.schedule.classic import interleaved, one_f_one_b
from regista.jobs.job import Job
from regista.jobs.machines import Machine
from regista.jobs.work import Chunk, chunks_of

__all__ = ["TaskName", "pipeline_plan", "schedule_of", "task_name"]

_ALL_BYTES = 10**15
"""Memory is judged by its owners (memory/), with a message of their names."""
_WHOLE = NdSbp((B,))


@dataclass(frozen=True, slots=True)
class TaskName:
    """kind: what the task does.   number: its chunk; of an update its stage."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.number}"


def task_name(task: Task) -> TaskName:
    kind, _, number = task.id.partition(".")
    return TaskName(kind, int(number))


def schedule_of(job: Job) -> PipelineSchedule:
    """Megatron's order of passes.

    Raises:
        Unsupported: micro-batches that do not divide into the rounds of interleaving.
    """
    at = job.layout
    return interleaved(at.pp, at.micro_batches, at.vp, per_round=at.per_round) if at.vp > 1 else one_f_one_b(at.pp, at.micro_batches)


@dataclass(slots=True)
class _Draft:
    tasks: list[Task] = field(default_factory=list)
    regsts: list[Regst] = field(default_factory=list)

    def regst(self, name: str, kind: RegstKind, place: str, producer: str, quota: int, size_bytes: float) -> str:
        tensor = PlacedTensor(name=name, shape=(max(1, int(size_bytes)),), dtype=DType.INT8, sbp=_WHOLE)
        self.regsts.append(Regst(id=name, kind=kind, placement=place, producer=producer, quota=quota, tensors=(tensor,)))
        return name

    def task(self, name: str, kind: TaskKind, stage: int, stream: str, acts: int, reads: Sequence[Port], makes: Sequence[Port]) -> None:
        moved = kind in (TaskKind.TRANSFER, TaskKind.BOXING)
        body: Fragment | Boxing | None = None
        if kind.is_compute:
            body = Fragment(ops=(), flop=0, traffic_bytes=0, workspace_bytes=0)
        elif kind is TaskKind.BOXING:
            body = Boxing(src=NdSbp((P,)), dst=_WHOLE, axis=0, collective=Collective.ALL_REDUCE)
        self.tasks.append(
            Task(
                id=name,
                kind=kind,
                placement=f"s{stage}",
                stream=f"s{stage}.{stream}",
                acts=acts,
                priority=len(self.tasks),
                consumes=tuple(reads),
                produces=tuple(makes),
                reads=tuple(Access(name=f"in{i}", regst=port.regst, index=0) for i, port in enumerate(reads)) if moved else (),
                writes=tuple(Access(name=f"out{i}", regst=port.regst, index=0) for i, port in enumerate(makes)) if moved else (),
                body=body,
            )
        )


def pipeline_plan(
    job: Job, machine: Machine, *, stash_bytes: Callable[[Chunk], float], message_bytes: float, state_bytes: Callable[[int], float]
) -> Plan:
    """The Plan of a checked job.

    Args:
        stash_bytes: what a chunk keeps per micro-batch for its backward pass.   message_bytes: between stages.   state_bytes: of a stage.

    Raises:
        Unsupported: as schedule_of.
    """
    at, draft = job.layout, _Draft()
    m, chunks, schedule = at.micro_batches, chunks_of(job), schedule_of(job)
    held = _held(schedule)
    last = len(chunks) - 1
    for chunk in chunks:
        c, here = chunk.number, f"s{chunk.stage}"
        draft.regst(f"params.{c}", RegstKind.DATA, here, f"gather.{c}", 1, 1)
        draft.task(
            f"gather.{c}", TaskKind.BOXING, chunk.stage, "collective", 1, [Port(regst=f"state.{chunk.stage}")], [Port(regst=f"params.{c}")]
        )
        reads, makes = [Port(regst=f"params.{c}", acts_per_block=m)], [Port(regst=f"stash.{c}")]
        draft.regst(f"stash.{c}", RegstKind.DATA, here, f"forward.{c}", held[c], stash_bytes(chunk))
        if c > 0:
            reads.append(Port(regst=f"received.{c}"))
        if c < last:
            draft.regst(f"out.{c}", RegstKind.DATA, here, f"forward.{c}", min(2, m), message_bytes)
            makes.append(Port(regst=f"out.{c}"))
            there = chunks[c + 1].stage
            draft.regst(f"received.{c + 1}", RegstKind.DATA, f"s{there}", f"send.{c}", min(m, held[c + 1] + 1), message_bytes)
            draft.task(f"send.{c}", TaskKind.TRANSFER, chunk.stage, "link", m, [Port(regst=f"out.{c}")], [Port(regst=f"received.{c + 1}")])
        draft.task(f"forward.{c}", TaskKind.FORWARD, chunk.stage, "compute", m, reads, makes)
        reads = [Port(regst=f"params.{c}", acts_per_block=m), Port(regst=f"stash.{c}")]
        makes = [Port(regst=f"gradients.{c}", acts_per_block=m)]
        draft.regst(f"gradients.{c}", RegstKind.DATA, here, f"backward.{c}", 1, 1)
        if c < last:
            reads.append(Port(regst=f"returned.{c}"))
        if c > 0:
            draft.regst(f"returning.{c}", RegstKind.DATA, here, f"backward.{c}", min(2, m), message_bytes)
            makes.append(Port(regst=f"returning.{c}"))
            there = chunks[c - 1].stage
            draft.regst(f"returned.{c - 1}", RegstKind.DATA, f"s{there}", f"return.{c}", min(m, held[c - 1] + 1), message_bytes)
            draft.task(
                f"return.{c}", TaskKind.TRANSFER, chunk.stage, "link", m, [Port(regst=f"returning.{c}")], [Port(regst=f"returned.{c - 1}")]
            )
        draft.task(f"backward.{c}", TaskKind.BACKWARD, chunk.stage, "compute", m, reads, makes)
        draft.regst(f"reduced.{c}", RegstKind.DATA, here, f"reduce.{c}", 1, 1)
        draft.task(
            f"reduce.{c}", TaskKind.BOXING, chunk.stage, "collective", 1, [Port(regst=f"gradients.{c}")], [Port(regst=f"reduced.{c}")]
        )
    for stage in range(at.pp):
        own = [chunk.number for chunk in chunks if chunk.stage == stage]
        draft.regst(f"state.{stage}", RegstKind.STATE, f"s{stage}", f"update.{stage}", 1, state_bytes(stage))
        draft.task(
            f"update.{stage}",
            TaskKind.UPDATE,
            stage,
            "compute",
            1,
            [Port(regst=f"reduced.{c}") for c in own],
            [Port(regst=f"state.{stage}")],
        )
    return _with_orders(_plan(job, machine, draft, last), schedule)


def _held(schedule: PipelineSchedule) -> Mapping[int, int]:
    """Chunk -> micro-batches that it holds at once under the schedule."""
    most: dict[int, int] = {}
    for order in schedule.orders:
        now: dict[int, int] = {}
        for action in order:
            now[action.stage] = now.get(action.stage, 0) + (1 if action.kind is Pass.FORWARD else -1)
            most[action.stage] = max(most.get(action.stage, 1), now[action.stage])
    return most


def _plan(job: Job, machine: Machine, draft: _Draft, last: int) -> Plan:
    at = job.layout
    link = LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=machine.nic_bytes_per_s)
    cluster = Cluster(
        name=f"{machine.name}: one rank per stage",
        source=machine.source,
        num_nodes=at.pp,
        devices_per_node=1,
        device=DeviceSpec(
            kind=machine.name,
            memory_bytes=_ALL_BYTES,
            rate_flop_per_s=max(machine.peak_flop_per_s.values()),
            memory_bandwidth_bytes_per_s=machine.memory_bytes_per_s,
        ),
        node=link,
        nic=link,
    )
    kinds = {"compute": StreamKind.COMPUTE, "collective": StreamKind.COLLECTIVE, "link": StreamKind.LINK}
    used = {task.stream for task in draft.tasks}
    return Plan(
        model=job.model.name,
        options={"covers": f"one rank of each of {at.pp} stages, for {at.devices} devices", "job": job.name},
        micro_batches=at.micro_batches,
        batch_size=at.global_batch,
        cluster=cluster,
        placements=tuple(Placement(id=f"s{i}", ranks=(i,), mesh=(1,)) for i in range(at.pp)),
        streams=tuple(
            Stream(id=f"s{i}.{name}", kind=kind, placement=f"s{i}")
            for i in range(at.pp)
            for name, kind in kinds.items()
            if f"s{i}.{name}" in used
        ),
        regsts=tuple(draft.regsts),
        tasks=tuple(draft.tasks),
        states=tuple(State(name=f"stage{i}", kind=InputKind.PARAMETER, regst=f"state.{i}", index=0) for i in range(at.pp)),
        batch_inputs=(),
        loss=Access(name="loss", regst=f"stash.{last}", index=0),
        gradients={},
        search=Search(method="given", cost_model="jobs", objective_s=0.0, lower_bound_s=0.0),
    )


def _with_orders(plan: Plan, schedule: PipelineSchedule) -> Plan:
    """The compute streams in the schedule's order, the update last; gradients are reduced in the order in which the backward passes end."""
    orders: dict[str, tuple[str, ...]] = {}
    for stage, order in enumerate(schedule.orders):
        names = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward"}
        orders[f"s{stage}.compute"] = (*(f"{names[a.kind]}.{a.stage}" for a in order), f"update.{stage}")
        own = sorted({a.stage for a in order})
        orders[f"s{stage}.collective"] = (*(f"gather.{c}" for c in own), *(f"reduce.{c}" for c in reversed(own)))
    return replace(plan, streams=tuple(replace(s, order=orders.get(s.id, ())) for s in plan.streams))
