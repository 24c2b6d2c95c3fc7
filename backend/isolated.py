"""Timing tasks one kind at a time, on all ranks of a run, with the inputs of its last real act.

A run's own durations mix computing with the communication beside it; a prediction must not simply replay them.  Here compute tasks run
while the other stages run theirs (the memory bus is shared, as in training), and communication runs alone.

    slot 0: first compute task of every placement   | barrier |   slot 1: the second ...   | barrier |   each communication task alone
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from backend.body import accumulate
from backend.loop import EventLoop
from backend.rank import RankBody
from backend.record import Options
from planner.ir.plan import Plan, Task, TaskKind

__all__ = ["time_tasks", "timing_slots"]


def timing_slots(plan: Plan) -> Iterator[tuple[Task, ...]]:
    """Tasks to be timed at the same time: at most one per placement, in Plan order; communication by itself."""
    queues: dict[str, list[Task]] = {}
    for task in plan.tasks:
        if not task.kind.is_communication:
            queues.setdefault(task.placement, []).append(task)
    for number in range(max(map(len, queues.values()), default=0)):
        yield tuple(tasks[number] for tasks in queues.values() if number < len(tasks))
    yield from ((task,) for task in plan.tasks if task.kind.is_communication)


def time_tasks(plan: Plan, rank: int, body: RankBody, loop: EventLoop, options: Options) -> dict[str, list[tuple[int, int]]]:
    """(start, end) in ns of every counted round on this rank, by task id.

    A transfer's entry on a receiver is ``id<sender``: when the sender's payload was complete here (start == end).
    """
    found: dict[str, list[tuple[int, int]]] = {}
    slots = list(timing_slots(plan))
    scratch: dict[tuple[str, int], Tensor | None] = {}
    with torch.no_grad():
        for number in range(options.warmup + options.isolated_rounds):
            for slot in slots:
                # Two barriers: the first lets everyone finish, the second starts them closely together.
                dist.barrier()
                dist.barrier()
                for task in slot:
                    # Once uncounted: a process that slept at a barrier is slower than one in the midst of a step.
                    _once(plan, rank, body, loop, task, 2 * number, options.timeout_s, scratch)
                    for key, span in _once(plan, rank, body, loop, task, 2 * number + 1, options.timeout_s, scratch).items():
                        if number >= options.warmup:
                            found.setdefault(key, []).append(span)
    return found


def _once(
    plan: Plan,
    rank: int,
    body: RankBody,
    loop: EventLoop,
    task: Task,
    number: int,
    timeout_s: float,
    scratch: dict[tuple[str, int], Tensor | None],
) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    if rank in plan.ranks_of(task):
        start_ns = time.monotonic_ns()
        announce = _perform(body, task, number, scratch)
        spans[task.id] = start_ns, time.monotonic_ns()
        if announce is not None:
            announce()
    if task.kind is TaskKind.TRANSFER:
        others = {sender for sender in body.senders[task.id] if sender != rank}
        for sender, time_ns in loop.arrivals(task.id, others, timeout_s):
            spans[f"{task.id}<{sender}"] = time_ns, time_ns
        if body.senders[task.id]:
            body.forget(task, number)
    return spans


def _perform(body: RankBody, task: Task, number: int, scratch: dict[tuple[str, int], Tensor | None]) -> Callable[[], None] | None:
    """The act's work without its blocks; sums of micro-batches go to memory that is thrown away."""
    assert body.captured is not None
    if task.kind is TaskKind.SOURCE:
        body.source(task, number % task.acts)
        return None
    values = body.captured[task.id]
    if task.kind is TaskKind.TRANSFER:
        return body.send(task, number, values)
    if task.kind is TaskKind.SAVE:
        for value in values:
            value.clone()
        return None
    if task.kind is TaskKind.FETCH:
        float(values[0])
        return None
    results = body.compute(task, values)
    filling = {port.regst: port.acts_per_block for port in task.produces if port.acts_per_block > 1}
    for access, value in zip(task.writes, results, strict=True):
        if access.regst in filling:
            key = access.regst, access.index
            scratch[key] = accumulate(scratch.get(key), value, filling[access.regst])
    return None
