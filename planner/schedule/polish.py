"""Local search on a schedule: acts on the critical path that wait for nothing but their device's order change places with what stands behind them.

The critical path leads from the last act of the device with the longest span back to its first: each act on it began when the one before ended,
either because it needed it (an edge between stages) or because the device was busy (its order).  Only the second kind can be mended by order:

    device 0   ... [ W2 ][ F7 ] ...      F7 had its input long before: let W2 wait
                   [ F7 ][ W2 ]
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir.errors import DeadLock
from planner.schedule.actions import Action, PipelineSchedule
from planner.schedule.greedy import MemoryLimit
from planner.schedule.legality import peak_memory
from planner.schedule.timing import PassTimes, act_times, needs

__all__ = ["polish"]

_EPS = 1e-9
_STEPS = (1, 2, 4)
"""How far an act moves back in its order."""

Found = Mapping[Action, tuple[float, float]]


def polish(schedule: PipelineSchedule, times: PassTimes, memory: MemoryLimit, most: int) -> PipelineSchedule:
    """The schedule after every exchange that shortens the longest span (or, at equal length, the sum of spans), within the memory limit.

    Args:
        most: exchanges to try; each is timed in full.
    """
    found = act_times(schedule, times)
    cost, tried = _cost_s(schedule, found), 0
    while True:
        for device, place in _waits_for_order(schedule, times, found):
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
                    schedule, found = candidate, better
                    cost = _cost_s(schedule, found)
                    break
            if better is not None:
                break
        else:
            return schedule  # no exchange helps


def _cost_s(schedule: PipelineSchedule, found: Found) -> tuple[float, float]:
    spans = [found[order[-1]][1] - found[order[0]][0] for order in schedule.orders]
    return max(spans), sum(spans)


def _better(candidate: PipelineSchedule, times: PassTimes, memory: MemoryLimit, cost: tuple[float, float]) -> Found | None:
    peaks = peak_memory(candidate, activation=memory.activation, weight_activation=memory.weight_activation)
    if max(peaks) > memory.limit * (1 + _EPS):
        return None
    try:
        found = act_times(candidate, times)
    except DeadLock:
        return None
    new = _cost_s(candidate, found)
    shorter = new[0] < cost[0] - _EPS or (new[0] <= cost[0] and new[1] < cost[1] - _EPS)
    return found if shorter else None


def _moved(schedule: PipelineSchedule, device: int, place: int, step: int) -> PipelineSchedule | None:
    """One act moved back by ``step`` places; None where that would put passes of one kind out of order, or past the end."""
    order = list(schedule.orders[device])
    act = order.pop(place)
    passed = order[place : place + step]
    if len(passed) < step or any(
        other.kind is act.kind or (other.stage, other.micro_batch) == (act.stage, act.micro_batch) for other in passed
    ):
        return None
    order.insert(place + step, act)
    return PipelineSchedule(schedule.name, (*schedule.orders[:device], tuple(order), *schedule.orders[device + 1 :]))


def _waits_for_order(schedule: PipelineSchedule, times: PassTimes, found: Found) -> list[tuple[int, int]]:
    """(device, place) of acts on the critical path that the next act of their device had to wait for; from the end back."""
    spans = [found[order[-1]][1] - found[order[0]][0] for order in schedule.orders]
    longest = max(range(len(spans)), key=spans.__getitem__)
    gradient_of = {(a.stage, a.micro_batch): a for a in schedule.actions() if a.kind.sends_gradient}
    place = {act: (device, n) for device, order in enumerate(schedule.orders) for n, act in enumerate(order)}
    waits: list[tuple[int, int]] = []
    act: Action | None = schedule.orders[longest][-1]
    while act is not None and act != schedule.orders[longest][0]:
        device, n = place[act]
        start_s = found[act][0]
        before = schedule.orders[device][n - 1] if n else None
        queued = before is not None and found[before][1] >= start_s - _EPS
        if queued:
            waits.append((device, n - 1))
        late = (
            a
            for a in needs(act, schedule.num_stages, gradient_of)
            if found[a][1] + times.comm_s * (place[a][0] != device) >= start_s - _EPS
        )
        act = next(late, before if queued else None)
    return waits
