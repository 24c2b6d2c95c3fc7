"""Data loading as actors: the SOURCE task becomes a chain of tasks that work at the same time, each Regst with its own quota.

                 stream disk           stream prepare                 stream copy
    files  -->  SOURCE  --raw [q]-->  PREPARE  --prepared [q]-->  COPY  --batch [held + q - 1]-->  compute
                reads bytes           decodes, casts, normalises  into the device's memory

In OneFlow, too, loading, preprocessing and copying are actors with registers of their own, so that quotas alone determine how far each runs
ahead [Yuan et al. 2021, section 4.3 and figure 6].  There is no PREPARE if samples need no preparation, and no COPY if host and device share
memory.

(1) blocks of the batch = held + q - 1     held: blocks that compute tasks hold for the backward pass -> _held
(2) rows a rank reads   = rows of its part of the micro-batch, if all tensors made of them have the same rows -> _rows_sbp
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Access, PlacedTensor, Placement, Plan, Port, Regst, RegstKind, Stream, StreamKind, Task, TaskKind
from planner.ir.sbp import B, NdSbp, S, Sbp, Split
from planner.ir.tensor import DType
from planner.lower.names import value_of

__all__ = ["RAW", "RawTensor", "is_raw", "with_loading"]

RAW = "raw:"
"""The prefix of the names of raw tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """A tensor that a reader gives per sample, before it is prepared.

    shape: of one sample; the first dim of a micro-batch is the sample.   inputs: indices in plan.batch_inputs of the inputs made of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    inputs: tuple[int, ...]


def is_raw(name: str) -> bool:
    return name.startswith(RAW)


def with_loading(plan: Plan, raw: Sequence[RawTensor] = (), *, load_quota: int = 2, copy: bool | None = None) -> Plan:
    """The same Plan with a chain of loading actors instead of every SOURCE; its results stay the same.

    Args:
        raw: the tensors that the reader gives per sample (backend.data); empty: SOURCE gives prepared tensors, and there is no PREPARE.
        load_quota: quota of every Regst of the chain, and of equation (1) for the batch that compute tasks read.  1: a block is loaded after
            compute has freed the last one; 2: while compute uses the last one.
        copy: whether there is a COPY actor; None: if the device is not a CPU.

    Raises:
        InvalidPlan: the quota is below 1, the Plan has no SOURCE or has a chain already, or micro-batches do not slice a batch input or take it whole.
        OutOfMemory: the blocks of the chain do not fit.
    """
    sources = [task for task in plan.tasks if task.kind is TaskKind.SOURCE]
    if load_quota < 1:
        raise InvalidPlan(f"load_quota = {load_quota}; a loader needs at least 1 block to write to")
    if not sources:
        raise InvalidPlan(f"plan {plan.model} has no source task, so there is nothing to load")
    if any(task.kind in (TaskKind.PREPARE, TaskKind.COPY) for task in plan.tasks):
        raise InvalidPlan("the plan has a chain of loading actors already; give the plan that it was made from")
    if whole := next((entry.whole_of for entry in plan.batch_inputs if entry.whole_of is not None and raw), None):
        raise InvalidPlan(
            f"every micro-batch counts over the whole of {whole}, so what is loaded has no chain of actors; run this plan with --data as it is, "
            "or plan with one micro-batch"
        )
    copies = plan.cluster.device.kind != "cpu" if copy is None else copy
    loading_plan = plan
    for task in sources:
        loading_plan = _chained(loading_plan, task, tuple(raw), load_quota, copies)
    used = {task.stream for task in loading_plan.tasks}
    loading_plan = replace(loading_plan, streams=tuple(stream for stream in loading_plan.streams if stream.id in used))
    verify(loading_plan)
    return loading_plan


def _chained(plan: Plan, source: Task, raw: tuple[RawTensor, ...], load_quota: int, copies: bool) -> Plan:
    placement = plan.placement[source.placement]
    stem = source.id.removesuffix(".source")
    regsts = {regst.id: regst for regst in plan.regsts}
    for port in source.produces:
        regsts[port.regst] = replace(regsts[port.regst], quota=_held(plan, regsts[port.regst]) + load_quota - 1)
    streams = {stream.id: stream for stream in plan.streams}
    chain = [replace(source, stream=f"{placement.id}.disk")]
    made = {f"{placement.id}.disk": StreamKind.DISK}

    def split(
        before: Task, tensors: tuple[PlacedTensor, ...], names: Sequence[str], what: str, kind: TaskKind, stream: str
    ) -> tuple[Task, Task]:
        """``before`` fills a new Regst of ``tensors``, and a new task reads it and writes what ``before`` wrote."""
        between = Regst(
            id=f"{source.id}.{what}",
            kind=RegstKind.DATA,
            placement=placement.id,
            producer=before.id,
            quota=load_quota,
            tensors=tensors,
        )
        regsts[between.id] = between
        accesses = tuple(Access(name=name, regst=between.id, index=index) for index, name in enumerate(names))
        port = (Port(regst=between.id),)
        after = replace(before, id=f"{stem}.{kind.value}", kind=kind, stream=stream, consumes=port, reads=accesses)
        return replace(before, produces=port, writes=accesses), after

    if raw:
        tensors = _raw_tensors(plan, source, placement, raw)
        chain[-1:] = split(chain[-1], tensors, [t.name for t in tensors], "raw", TaskKind.PREPARE, f"{placement.id}.prepare")
        made[f"{placement.id}.prepare"] = StreamKind.HOST
    if copies:
        writes = chain[-1].writes
        tensors = tuple(plan.regst[a.regst].tensors[a.index] for a in writes)
        chain[-1:] = split(chain[-1], tensors, [a.name for a in writes], "prepared", TaskKind.COPY, f"{placement.id}.copy")
        made[f"{placement.id}.copy"] = StreamKind.COPY
    for port in source.produces:
        regsts[port.regst] = replace(regsts[port.regst], producer=chain[-1].id)
    streams |= {name: Stream(id=name, kind=kind, placement=placement.id) for name, kind in made.items()}
    tasks: list[Task] = []
    for task in plan.tasks:
        tasks += chain if task.id == source.id else [task]
    return replace(plan, streams=tuple(streams[name] for name in sorted(streams)), regsts=tuple(regsts.values()), tasks=tuple(tasks))


def _held(plan: Plan, regst: Regst) -> int:
    """Blocks that compute tasks hold at once: one per micro-batch that waits on the placement for its backward pass.

    If compute streams have an order, the Regst's quota is already the number that the order needs.
    """
    readers = [task for task, _ in plan.consumers[regst.id]]
    if any(plan.stream[task.stream].order for task in readers):
        return regst.quota
    if not any(task.kind.is_backward for task in readers):
        return 1
    waiting = [
        plan.regst[port.regst].quota
        for task in plan.tasks
        if task.kind is TaskKind.FORWARD and task.placement == regst.placement
        for port in task.produces
        if any(reader.kind.is_backward for reader, _ in plan.consumers[port.regst])
    ]
    return max(waiting, default=1)


def _raw_tensors(plan: Plan, source: Task, placement: Placement, raw: Sequence[RawTensor]) -> tuple[PlacedTensor, ...]:
    """The raw tensors that this SOURCE's inputs are made of, as large as one micro-batch."""
    values = {entry.value: number for number, entry in enumerate(plan.batch_inputs)}
    wanted: dict[int, list[PlacedTensor]] = {}
    for access in source.writes:
        value = access.name if access.name in values else value_of(access.name)
        if value not in values:
            raise InvalidPlan(f"source task {source.id} writes {access.name}, but the batch inputs are {sorted(values)}")
        wanted.setdefault(values[value], []).append(plan.regst[access.regst].tensors[access.index])
    tensors: list[PlacedTensor] = []
    for tensor in raw:
        made = [(number, placed) for number in tensor.inputs for placed in wanted.get(number, ())]
        if not made:
            continue
        sizes, layouts = set(), []
        for number, placed in made:
            dim = plan.batch_inputs[number].batch_dim
            if dim is None:
                name = plan.batch_inputs[number].name
                raise InvalidPlan(f"batch input {name} is not sliced by micro-batches, so no sample holds it; feed it from Python")
            sizes.add(placed.shape[dim])
            layouts.append((placed.sbp, dim))
        if len(sizes) != 1:
            raise InvalidPlan(
                f"source task {source.id}: a micro-batch has {sorted(sizes)} samples, depending on the input; one number is needed"
            )
        shape = (sizes.pop(), *tensor.shape)
        tensors.append(PlacedTensor(name=RAW + tensor.name, shape=shape, dtype=tensor.dtype, sbp=_rows_sbp(placement, layouts)))
    missing = sorted(set(wanted) - {number for tensor in raw for number in tensor.inputs})
    if missing:
        names = [plan.batch_inputs[number].name for number in missing]
        raise InvalidPlan(f"the reader has nothing for batch inputs {names}; it makes inputs {sorted({n for t in raw for n in t.inputs})}")
    return tuple(tensors)


def _rows_sbp(placement: Placement, layouts: Sequence[tuple[NdSbp, int]]) -> NdSbp:
    """Equation (2): samples are split along an axis if all layouts split their samples there, up to the first axis where they differ."""
    entries: list[Sbp] = [B] * len(placement.mesh)
    for axis in range(len(placement.mesh)):
        splits = [sbp[axis] == Split(dim) for sbp, dim in layouts]
        if all(splits):
            entries[axis] = S(0)
        elif any(splits):
            break
    return NdSbp(tuple(entries))
