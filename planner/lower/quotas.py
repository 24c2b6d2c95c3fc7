"""Quotas: how many blocks each Regst gets.

what crosses from forward to backward on stage i of p      min(m, p - i)     1F1B (SEMANTICS 3.8);  m for GPipe
... and is filled by another stream                        one more, so that the next block arrives while the last is in use
between two streams of a device                            min(m, 2)         a double buffer
between tasks of one stream, once-per-step values, state   1

Schedules that put an order on compute streams get the blocks that this order needs instead (planner.lower.passes).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from planner.ir.plan import RegstKind, Task, TaskKind
from planner.schedule import PipelineSchedule, interleaved
from planner.schedule import in_flight as held_by

__all__ = ["Schedule", "in_flight", "quota"]


class Schedule(Enum):
    """How a pipeline orders its passes; the first two follow from quotas, the others from the order of compute streams (planner.lower.passes).

    GIVEN: the user says the order of every device, in torch's CSV (planner.schedule.torch_csv).
    """

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_AUTO = "zb-auto"
    GIVEN = "csv"

    @property
    def has_order(self) -> bool:
        """Compute streams carry an explicit order; otherwise quotas alone make the order."""
        return self not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)

    @property
    def splits_backward(self) -> bool:
        """The backward pass has an input part and a weight part (of a given order each pass may be whole or in parts)."""
        return self is Schedule.GIVEN or self in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_AUTO)


def in_flight(
    schedule: Schedule,
    stage: int,
    num_stages: int,
    micro_batches: int,
    *,
    interleave: int = 1,
    hold: int | None = None,
    order: PipelineSchedule | None = None,
) -> int:
    """Micro-batches that wait on a placement for their backward pass, counting those that wait for its weight part.

    Args:
        interleave: stages per placement; the mean over them, rounded up.   hold: of the automatic schedule (None: as many as stages).
        order: the given one.
    """
    match schedule:
        case Schedule.GPIPE:
            return micro_batches
        case Schedule.ONE_F_ONE_B:
            return min(micro_batches, num_stages - stage)
        case Schedule.INTERLEAVED:
            held = held_by(interleaved(num_stages, micro_batches, interleave))
            return -(-sum(held[stage::num_stages]) // interleave)
        case Schedule.GIVEN:
            held = held_by(order) if order is not None else (micro_batches,) * num_stages * interleave
            return -(-sum(held[stage::num_stages]) // interleave)
        case Schedule.ZB_H1:
            return min(micro_batches, num_stages)
        case Schedule.ZB_H2:
            return min(micro_batches, 2 * num_stages - 1)
        case Schedule.ZB_AUTO:
            return min(micro_batches, hold or num_stages)


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
        blocks_per_step: 1 for what is made once per step.
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
