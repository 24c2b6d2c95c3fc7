"""Micro-batches in flight: those whose activations a stage holds, from the begin of F to the end of the act that frees the last of them (B or W).

On stage i of p, with m micro-batches and v stages per device:

    1f1b               min(m, p - i)                       gpipe     m
    zb-h1              min(m, p)                           zb-h2     min(m, 2 p - 1)
    zb-auto            min(m, hold)                        interleaved, csv    counted in the order, mean of the device's v stages
"""

from __future__ import annotations

from planner.schedule.actions import Pass, PipelineSchedule
from planner.schedule.classic import interleaved
from planner.schedule.kinds import Schedule

__all__ = ["in_flight", "peak_in_flight"]


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
        interleave: stages per placement; the result is the mean over them, rounded up.
        hold: micro-batches that a device may hold under the automatic schedule (None: as many as stages).
        order: the order of Schedule.GIVEN.
    """
    match schedule:
        case Schedule.GPIPE:
            return micro_batches
        case Schedule.ONE_F_ONE_B:
            return min(micro_batches, num_stages - stage)
        case Schedule.INTERLEAVED:
            held = peak_in_flight(interleaved(num_stages, micro_batches, interleave))
            return -(-sum(held[stage::num_stages]) // interleave)
        case Schedule.GIVEN:
            held = peak_in_flight(order) if order is not None else (micro_batches,) * num_stages * interleave
            return -(-sum(held[stage::num_stages]) // interleave)
        case Schedule.ZB_H1:
            return min(micro_batches, num_stages)
        case Schedule.ZB_H2:
            return min(micro_batches, 2 * num_stages - 1)
        case Schedule.ZB_AUTO:
            return min(micro_batches, hold or num_stages)


def peak_in_flight(order: PipelineSchedule) -> tuple[int, ...]:
    """Per stage, the largest number of micro-batches in flight at once in an order of passes."""
    now, peak = [0] * order.num_stages, [0] * order.num_stages
    for actions in order.orders:
        for action in actions:
            if action.kind is Pass.FORWARD:
                now[action.stage] += 1
                peak[action.stage] = max(peak[action.stage], now[action.stage])
            elif action.kind is not Pass.BACKWARD_INPUT:
                now[action.stage] -= 1
    return tuple(peak)
