"""An automatic zero-bubble schedule: the best of many list schedules under a memory limit, and a bound that no schedule can beat.

    cost >= work + head + tail    of each device i of p                                                                    (1)  -> least_cost_s()

    head   between its first F and its first I pass (p-1-i) stages and back again, and only F may fill that time: at most
           floor(limit / M_B) - 1 of them
    tail   between its last F and its last I the same time passes, and only I and W of what it holds then may fill it
           (head and tail are disjoint only if not all micro-batches fit at once; otherwise the larger counts)

The search is over the habits of planner.schedule.greedy: a grid, every combination tried; the best is then mended by planner.schedule.polish.

Source of the problem and of the objective (longest span of a device): arXiv:2401.10241, section 3; the rules of the search are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf

from planner.ir.errors import Unsupported
from planner.schedule.actions import PipelineSchedule
from planner.schedule.classic import check_counts
from planner.schedule.greedy import Habits, MemoryLimit, list_schedule
from planner.schedule.legality import peak_memory
from planner.schedule.polish import polish
from planner.schedule.timing import PassTimes, spans_s
from planner.schedule.zero_bubble import zb_h1, zb_h2

__all__ = ["FoundSchedule", "least_cost_s", "zb_auto"]

_LATE = (0.0, 0.3, 0.6, 1.0, inf)
_IDLE = (0.0, 0.5, 1.0, 2.0, inf)
"""In T_F of the slowest stage."""

_POLISHED = 4
"""How many of the records of the grid are mended: the best need not lead furthest."""

_TIMED_ACTS = 100_000
"""Work of one local search, in acts: a count rather than a time, so that the same question has the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSchedule:
    """cost_s: longest span of a device.   bound_s: no schedule under the limit costs less.   tried: schedules compared, at most."""

    schedule: PipelineSchedule
    cost_s: float
    bound_s: float
    tried: int


def zb_auto(micro_batches: int, times: PassTimes, memory: MemoryLimit) -> FoundSchedule:
    """The least cost found for these times under this limit; H1 and H2 by hand take part where they fit.

    Args:
        times: one stage per device.

    Raises:
        Unsupported: the limit holds not even one micro-batch, or M_W > M_B.
    """
    p, m = len(times.forward_s), micro_batches
    check_counts(p, m)
    if memory.activation > memory.limit * (1 + 1e-9) or not 0 <= memory.weight_activation <= memory.activation:
        raise Unsupported(
            f"M_B = {memory.activation:g}, M_W = {memory.weight_activation:g}, limit {memory.limit:g}: "
            f"a device holds at least one micro-batch, and the weight part keeps no more than all of it; raise the limit"
        )
    records: list[PipelineSchedule] = []  # each better than the one before
    cost_s, tried, bound_s = inf, 0, least_cost_s(m, times, memory)
    for make in _candidates(m, times, memory):
        tried += 1
        schedule = make(cost_s)
        if schedule is not None and (span_s := max(spans_s(schedule, times))) < cost_s:
            records.append(PipelineSchedule("zb-auto", schedule.orders))
            cost_s = span_s
        if cost_s <= bound_s * (1 + 1e-9):
            break
    if not records:
        raise Unsupported(
            f"no schedule of {m} micro-batches on {p} stages was found under a limit of {memory.limit / memory.activation:.3g} micro-batches; "
            f"raise the limit to {p}, which zb-h1 needs"
        )
    best = records[-1]
    for record in records[-_POLISHED:] if cost_s > bound_s * (1 + 1e-9) else ():
        exchanges = _TIMED_ACTS // (3 * p * m)
        tried += exchanges
        mended = polish(record, times, memory, exchanges)
        if (span_s := max(spans_s(mended, times))) < cost_s:
            best, cost_s = mended, span_s
    return FoundSchedule(schedule=best, cost_s=cost_s, bound_s=bound_s, tried=tried)


def _candidates(m: int, times: PassTimes, memory: MemoryLimit) -> Iterator[Callable[[float], PipelineSchedule | None]]:
    """Each makes a schedule under the limit that costs less than its argument in seconds, or None."""
    for by_hand in (zb_h1(len(times.forward_s), m), zb_h2(len(times.forward_s), m)):
        peaks = peak_memory(by_hand, activation=memory.activation, weight_activation=memory.weight_activation)
        if max(peaks) <= memory.limit * (1 + 1e-9):
            yield partial(_itself, by_hand)
    unit_s = max(times.forward_s)
    for idle, late, alternate, delay_first in product(_IDLE, _LATE, (True, False), (False, True)):
        habits = Habits(delay_first=delay_first, alternate=alternate, late=late, idle_s=idle * unit_s if idle else 0.0)
        yield partial(list_schedule, m, times, memory, habits)


def _itself(schedule: PipelineSchedule, below_s: float) -> PipelineSchedule:
    return schedule


def least_cost_s(micro_batches: int, times: PassTimes, memory: MemoryLimit) -> float:
    """(1): a lower bound of the longest span, in seconds, for a split backward pass under the limit."""
    p, m = len(times.forward_s), micro_batches
    most = min(m, int(memory.limit / memory.activation * (1 + 1e-9)))
    bound_s = 0.0
    for i in range(p):
        forward_s, input_s, weight_s = times.forward_s[i], times.backward_input_s[i], times.backward_weight_s[i]
        away_s = sum(times.forward_s[i + 1 :]) + sum(times.backward_input_s[i + 1 :]) + 2 * (p - 1 - i) * times.comm_s
        head_s = max(0.0, away_s - (most - 1) * forward_s)
        # What may fill the tail: both parts of whole micro-batches, or weight parts alone, whichever fits more seconds into the memory.
        whole = (most - 1) * (input_s + weight_s)
        parts = (m - 1) * weight_s if memory.weight_activation == 0 else memory.limit / memory.weight_activation * weight_s
        tail_s = max(0.0, away_s - whole - parts)
        idle_s = head_s + tail_s if most < m else max(head_s, tail_s)
        bound_s = max(bound_s, m * (forward_s + input_s + weight_s) + idle_s)
    return bound_s
