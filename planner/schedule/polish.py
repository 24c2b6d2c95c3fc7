"""Local search on a schedule: an act that delays the critical path only by its place in the device's order is moved to a later place.

The critical path leads from the last act of the device with the longest span back to its first act.  Each act on the path began when the one
before it ended: either because it needs that act's result (an edge between stages), or because the device was busy (the order).  A change of
order can shorten the path only in the second case:

    device 0   ... [ W2 ][ F7 ] ...      the input of F7 arrived long before: perform W2 later
                   [ F7 ][ W2 ]
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir.errors import DeadLock
from planner.schedule.actions import Action, PipelineSchedule
from planner.schedule.greedy import MemoryLimit
from planner.schedule.legality import peak_memory
from planner.schedule.timing import PassTimes, act_times, needs, spans_of

__all__ = ["polish"]

_EPS = 1e-9
_STEPS = (1, 2, 4)
"""By how many places an act is moved."""

Intervals = Mapping[Action, tuple[float, float]]
"""Act -> (start, end) in seconds."""


def polish(schedule: PipelineSchedule, times: PassTimes, memory: MemoryLimit, most: int) -> PipelineSchedule:
    """A schedule within the memory limit that no further move improves, or the best after ``most`` moves.

    A move is an improvement if it shortens the longest span, or leaves that equal and shortens the sum of all spans.

    Args:
        most: moves to try; each is timed in full.
    """
    intervals = act_times(schedule, times)
    cost, tried = _cost_s(schedule, intervals), 0
    while True:
        for device, place in _delaying(schedule, times, intervals):
            better = None
            for step in _STEPS:
                candidate = _moved(schedule, device, place, step)
                if candidate is None:
                    continue
                if tried == most:
                    return schedule
                tried += 1
                better = _better(candidate, times, memory, cost)
                if better is not None:
                    schedule, intervals = candidate, better
                    cost = _cost_s(schedule, intervals)
                    break
            if better is not None:
                break
        else:
            return schedule  # no move is an improvement


def _cost_s(schedule: PipelineSchedule, intervals: Intervals) -> tuple[float, float]:
    """(longest span, sum of spans)."""
    spans = spans_of(schedule, intervals)
    return max(spans), sum(spans)


def _better(candidate: PipelineSchedule, times: PassTimes, memory: MemoryLimit, cost: tuple[float, float]) -> Intervals | None:
    """The intervals of a candidate that is live, within the limit and better than ``cost``; None for any other."""
    peaks = peak_memory(candidate, activation=memory.activation, weight_activation=memory.weight_activation)
    if max(peaks) > memory.limit * (1 + _EPS):
        return None
    try:
        intervals = act_times(candidate, times)
    except DeadLock:
        return None
    new = _cost_s(candidate, intervals)
    shorter = new[0] < cost[0] - _EPS or (new[0] <= cost[0] and new[1] < cost[1] - _EPS)
    return intervals if shorter else None


def _moved(schedule: PipelineSchedule, device: int, place: int, step: int) -> PipelineSchedule | None:
    """The schedule with one act ``step`` places later; None if that is past the end, or passes a pass of its kind or of its micro-batch."""
    order = list(schedule.orders[device])
    act = order.pop(place)
    passed = order[place : place + step]
    if len(passed) < step or any(
        other.kind is act.kind or (other.stage, other.micro_batch) == (act.stage, act.micro_batch) for other in passed
    ):
        return None
    order.insert(place + step, act)
    return PipelineSchedule(schedule.name, (*schedule.orders[:device], tuple(order), *schedule.orders[device + 1 :]))


def _delaying(schedule: PipelineSchedule, times: PassTimes, intervals: Intervals) -> list[tuple[int, int]]:
    """(device, place) of acts for whose end the next act of their device, on the critical path, had to wait; from the end back."""
    spans = spans_of(schedule, intervals)
    longest = max(range(len(spans)), key=spans.__getitem__)
    gradient_of = {(a.stage, a.micro_batch): a for a in schedule.actions() if a.kind.sends_gradient}
    place = {act: (device, n) for device, order in enumerate(schedule.orders) for n, act in enumerate(order)}
    delaying: list[tuple[int, int]] = []
    act: Action | None = schedule.orders[longest][-1]
    while act is not None and act != schedule.orders[longest][0]:
        device, n = place[act]
        start_s = intervals[act][0]
        before = schedule.orders[device][n - 1] if n else None
        device_was_busy = before is not None and intervals[before][1] >= start_s - _EPS
        if device_was_busy:
            delaying.append((device, n - 1))
        needed = (
            a
            for a in needs(act, schedule.num_stages, gradient_of)
            if intervals[a][1] + times.comm_s * (place[a][0] != device) >= start_s - _EPS
        )
        act = next(needed, before if device_was_busy else None)
    return delaying
