"""Quotas: the number of blocks of each Regst.

a forward value that the backward part reads               in flight         one block per micro-batch in flight (planner.schedule.in_flight)
the same, filled by another stream                         in flight + 1     so that a block is filled while the last one is in use
between two streams of a device                            min(m, 2)         a double buffer
between tasks of one stream, once-per-step values, state   1

Under schedules that set the order of compute streams, quotas follow from this order instead (planner.lower.orders.pass_order).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.plan import RegstKind, Task, TaskKind
from planner.schedule import Schedule, in_flight

__all__ = ["quota"]


def quota(
    *,
    kind: RegstKind,
    producer: Task | None,
    consumers: Sequence[Task],
    blocks_per_step: int,
    stage: int,
    num_stages: int,
    micro_batches: int,
    backward_value: bool,
    schedule: Schedule,
) -> int:
    """Blocks of a Regst that lies on ``stage``.

    Args:
        blocks_per_step: blocks that the producer fills in a step; 1 for a value that is made once per step.
        backward_value: the Regst holds a backward value (a gradient), so it is not saved for the backward part.
    """
    if kind is not RegstKind.DATA or producer is None or blocks_per_step == 1:
        return 1
    same_stream = all(task.stream == producer.stream for task in consumers)
    into_backward = any(task.kind.is_backward for task in consumers) and not backward_value
    if into_backward:
        waiting = in_flight(schedule, stage, num_stages, micro_batches)
        return min(micro_batches, waiting + (0 if producer.kind is TaskKind.FORWARD else 1))
    return 1 if same_stream else min(micro_batches, 2)
