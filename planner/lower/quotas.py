"""Quotas: how many blocks each Regst gets.

what crosses from forward to backward                      in flight         as many as micro-batches are (planner.schedule.in_flight)
... and is filled by another stream                        one more, so that the next block arrives while the last is in use
between two streams of a device                            min(m, 2)         a double buffer
between tasks of one stream, once-per-step values, state   1

Schedules that put an order on compute streams get the blocks that this order needs instead (planner.lower.orders.pass_order).
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
        blocks_per_step: how many the producer fills in a step; 1 for what is made once per step.
        backward_value: the producer carries a backward value (a gradient on its way), so it waits for no later backward act.
    """
    if kind is not RegstKind.DATA or producer is None or blocks_per_step == 1:
        return 1
    same_stream = all(task.stream == producer.stream for task in consumers)
    into_backward = any(task.kind.is_backward for task in consumers) and not backward_value
    if into_backward:
        waiting = in_flight(schedule, stage, num_stages, micro_batches)
        return min(micro_batches, waiting + (0 if producer.kind is TaskKind.FORWARD else 1))
    return 1 if same_stream else min(micro_batches, 2)
