"""Traces under the names of PyTorch's profiler (Kineto), one file per rank, for Holistic Trace Analysis and its like.

    what it is                     cat                    name                               where
    a step                         user_annotation        ProfilerStep#<step>                host thread
    an act of forward, backward,   kernel                 <task kind>: <task>                its stream
      update, or local boxing
    an act of a collective         kernel                 ncclDevKernel_AllReduce: <task>    its stream
    an act of a transfer           kernel                 ncclDevKernel_SendRecv: <task>     its stream
    the launch of a kernel         cuda_runtime           cudaLaunchKernel                   host thread
    an act of a host stream        cpu_op                 <task kind>: <task>                host thread of that stream

A Plan has no host that launches kernels.  The launches (of no duration, at the begin of their step on this rank) are there because readers
find a kernel's step by them.  So inside a step all idle time of a stream is a wait for other kernels, none for the host (simulator.analysis.idle says
for which); the gap from a stream's last kernel of a step to the next step's launches is what such readers call a wait for the host.

Source: the parser of HolisticTraceAnalysis 0.5 (common/trace_parser.py, common/trace.py, utils/utils.py): streams are numbers above 0,
a kernel meets its launch by ``correlation``, a launch its step by time, communication kernels are named nccl...Kernel..., and the rank stands
in ``distributedInfo`` as ``"rank": 0`` with a space.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from planner.ir.collective import Collective
from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import Access, Boxing, Plan, Task, TaskKind
from planner.ir.text import save_text
from planner.ir.traces.trace import Act, Trace
from planner.ir.units import US

__all__ = ["kineto_trace", "save_kineto"]

Event = dict[str, object]

KERNELS: Mapping[Collective, tuple[str, str]] = {
    Collective.ALL_REDUCE: ("ncclDevKernel_AllReduce", "allreduce"),
    Collective.ALL_GATHER: ("ncclDevKernel_AllGather", "_allgather_base"),
    Collective.REDUCE_SCATTER: ("ncclDevKernel_ReduceScatter", "_reduce_scatter_base"),
    Collective.ALL_TO_ALL: ("ncclDevKernel_SendRecv", "all_to_all"),
    Collective.SHIFT: ("ncclDevKernel_SendRecv", "send_recv"),
}
"""Collective -> the kernel's name in NCCL, and the collective's in torch.distributed."""

FIRST_STREAM = 7
"""The number of CUDA's default stream in Kineto's traces; our streams count from here."""


def kineto_trace(plan: Plan, trace: Trace, rank: int) -> Mapping[str, object]:
    """What one rank did, as one profile.

    Returns:
        the JSON object; ts and dur in microseconds from the first act of all ranks.

    Raises:
        Mismatch: the trace is of another plan, or the plan has no such rank.
    """
    if trace.plan_id != plan.plan_id:
        raise Mismatch(f"the {trace.source.value} trace is of plan {trace.plan_id}, not of {plan.plan_id} ({plan.model})")
    if not 0 <= rank < plan.num_ranks:
        raise Mismatch(f"rank {rank} is asked for; the plan has ranks 0 .. {plan.num_ranks - 1}")
    device = plan.cluster.device
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": device.kind, "totalGlobalMem": device.memory_bytes}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": plan.num_ranks},
        "displayTimeUnit": "ms",
        "traceName": f"{plan.model} ({trace.source.value}) rank {rank}",
        "traceEvents": list(_events(plan, trace, rank)),
    }


def save_kineto(plan: Plan, trace: Trace, folder: str | Path) -> tuple[Path, ...]:
    """Write ``rank<r>.json`` for every rank into a folder, which is made if it is not there.

    Raises:
        Mismatch: the trace is of another plan.   InvalidFile: the folder cannot be made or written.
    """
    where = Path(folder)
    try:
        where.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"cannot make the folder {folder}: {error.strerror}; one file per rank is written into it") from error
    written = []
    for rank in range(plan.num_ranks):
        path = where / f"rank{rank}.json"
        # Spaces after colons: readers look for '"rank": 0' in the text itself.
        save_text(path, json.dumps(kineto_trace(plan, trace, rank), allow_nan=False) + "\n")
        written.append(path)
    return tuple(written)


def _events(plan: Plan, trace: Trace, rank: int) -> Iterator[Event]:
    zero_s = min((act.start_s for act in trace.acts), default=0.0)
    acts = [act for act in trace.acts if act.rank == rank]
    begins_s = _step_begins_s(plan, trace, acts)
    host, numbers = 10_000 + rank, {stream.id: FIRST_STREAM + n for n, stream in enumerate(plan.streams)}
    yield {"ph": "M", "name": "process_name", "pid": host, "tid": 0, "args": {"name": f"host of rank {rank}"}}
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"device of rank {rank}"}}
    for stream in plan.streams:
        if rank in plan.placement[stream.placement].ranks:
            pid = host if stream.kind.is_host else rank
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": numbers[stream.id], "args": {"name": stream.id}}

    def event(cat: str, name: str, thread: tuple[int, int], begin_s: float, end_s: float, **args: object) -> Event:
        where: Event = {"ph": "X", "cat": cat, "name": name, "pid": thread[0], "tid": thread[1]}
        return where | {"ts": (begin_s - zero_s) / US, "dur": (end_s - begin_s) / US, "args": args}

    for step, (begin_s, end_s) in enumerate(zip(begins_s, begins_s[1:], strict=False)):
        yield event("user_annotation", f"ProfilerStep#{step}", (host, 1), begin_s, end_s)
    for number, act in enumerate(sorted(acts, key=lambda act: (act.start_s, act.end_s, act.task)), start=1):
        task = plan.task[act.task]
        step, micro_batch = divmod(act.number, task.acts)
        thread = numbers[task.stream]
        own: Event = {"External id": number, "step": step, "micro_batch": micro_batch}
        if plan.stream[task.stream].kind.is_host:
            yield event("cpu_op", f"{task.kind.value}: {task.id}", (host, thread), act.start_s, act.end_s, **own)
            continue
        own |= {"correlation": number}
        yield event("cuda_runtime", "cudaLaunchKernel", (host, 1), begins_s[step], begins_s[step], **own)
        more = {"stream": thread, "device": rank, **_communication(plan, task, rank)}
        yield event("kernel", _kernel(task), (rank, thread), act.start_s, act.end_s, **own, **more)


def _step_begins_s(plan: Plan, trace: Trace, acts: list[Act]) -> list[float]:
    """When this rank's first act of each step, or of a later one, starts; and the trace's end."""
    last_s = max((act.end_s for act in trace.acts), default=0.0)
    firsts: dict[int, float] = defaultdict(lambda: last_s)
    for act in acts:
        step = act.number // plan.task[act.task].acts
        firsts[step] = min(firsts[step], act.start_s)
    begins = [last_s]
    for step in reversed(range(trace.steps)):
        begins.append(min(begins[-1], firsts[step]))
    return begins[::-1]


def _kernel(task: Task) -> str:
    if isinstance(task.body, Boxing) and task.body.collective in KERNELS:
        return f"{KERNELS[task.body.collective][0]}: {task.id}"
    if task.kind is TaskKind.TRANSFER:
        return f"ncclDevKernel_SendRecv: {task.id}"
    return f"{task.kind.value}: {task.id}"


def _communication(plan: Plan, task: Task, rank: int) -> Event:
    """Kineto's arguments of a collective or a send."""

    def numel(accesses: tuple[Access, ...]) -> int:
        tensors = [(plan.regst[a.regst].tensors[a.index], plan.placement[plan.regst[a.regst].placement]) for a in accesses]
        return sum(prod(t.local_type(p, rank if rank in p.ranks else p.ranks[0]).shape) for t, p in tensors)

    def dtypes(accesses: tuple[Access, ...]) -> str:
        return ",".join(dict.fromkeys(plan.regst[a.regst].tensors[a.index].dtype.value for a in accesses))

    if task.kind is TaskKind.TRANSFER:
        return {
            "Collective name": "send",
            "In msg nelems": numel(task.reads),
            "Out msg nelems": numel(task.writes),
            "dtype": dtypes(task.reads),
        }
    if isinstance(task.body, Boxing) and task.body.collective in KERNELS:
        group = plan.peers(task, rank)
        return {
            "Collective name": KERNELS[task.body.collective][1],
            "In msg nelems": numel(task.reads),
            "Out msg nelems": numel(task.writes),
            "dtype": dtypes(task.reads),
            "Group size": len(group),
            "Process Group Ranks": str(list(group)),
        }
    return {}
