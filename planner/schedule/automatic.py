"""An automatic zero-bubble schedule: the best of many list schedules under a memory limit, and a lower bound on the cost of every schedule.

    cost >= work + head + tail    for each device i of p                                                                   (1)  -> least_cost_s()

    head   idle time between the device's first F and its first I.  In between, the micro-batch travels through the p-1-i later stages and
           back.  Only F can fill this time, at most floor(limit / M_B) - 1 of them.
    tail   idle time between the device's last F and its last I, which are as far apart.  Only I and W of the micro-batches that the device
           holds then can fill this time.
           Head and tail are disjoint only if the limit is less than all micro-batches; otherwise the larger of the two counts.

The search performs list scheduling (planner.schedule.greedy) with every combination of a grid of rules, and then improves the best schedules by
local search (planner.schedule.polish).

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
from planner.schedule.greedy import ListRules, MemoryLimit, list_schedule
from planner.schedule.legality import peak_memory
from planner.schedule.polish import polish
from planner.schedule.timing import PassTimes, spans_s
from planner.schedule.zero_bubble import zb_h1, zb_h2

__all__ = ["AutomaticSchedule", "least_cost_s", "zb_auto"]

_LATE = (0.0, 0.3, 0.6, 1.0, inf)
_IDLE = (0.0, 0.5, 1.0, 2.0, inf)
"""The grids of two rules; _IDLE in units of T_F of the slowest stage."""

_POLISHED = 4
"""So many of the last records of the grid are improved: the best of them need not lead to the best result."""

_TIMED_ACTS = 100_000
"""Work of one local search, in acts timed.  It is a count and not a time, so that equal inputs have equal results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomaticSchedule:
    """cost_s: longest span of a device.   bound_s: no schedule under the limit costs less.   tried: schedules compared, at most."""

    schedule: PipelineSchedule
    cost_s: float
    bound_s: float
    tried: int


def zb_auto(micro_batches: int, times: PassTimes, memory: MemoryLimit) -> AutomaticSchedule:
    """The best schedule of the search for these times under this limit; ZB-H1 and ZB-H2 are among its candidates if they fit.

    Args:
        times: one stage per device.

    Raises:
        Unsupported: the limit is less than one micro-batch, M_W > M_B, or no schedule of the search is within the limit.
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
        polished = polish(record, times, memory, exchanges)
        if (span_s := max(spans_s(polished, times))) < cost_s:
            best, cost_s = polished, span_s
    return AutomaticSchedule(schedule=best, cost_s=cost_s, bound_s=bound_s, tried=tried)


def _candidates(m: int, times: PassTimes, memory: MemoryLimit) -> Iterator[Callable[[float], PipelineSchedule | None]]:
    """Functions from a cost in seconds to a schedule under the limit; they may return None if the schedule costs as much or more."""
    for handcrafted in (zb_h1(len(times.forward_s), m), zb_h2(len(times.forward_s), m)):
        peaks = peak_memory(handcrafted, activation=memory.activation, weight_activation=memory.weight_activation)
        if max(peaks) <= memory.limit * (1 + 1e-9):
            yield partial(_always, handcrafted)
    unit_s = max(times.forward_s)
    for idle, late, alternate, delay_first in product(_IDLE, _LATE, (True, False), (False, True)):
        rules = ListRules(delay_first=delay_first, alternate=alternate, late=late, idle_s=idle * unit_s if idle else 0.0)
        yield partial(list_schedule, m, times, memory, rules)


def _always(schedule: PipelineSchedule, below_s: float) -> PipelineSchedule:
    return schedule


def least_cost_s(micro_batches: int, times: PassTimes, memory: MemoryLimit) -> float:
    """(1): a lower bound on the longest span, in seconds, for a split backward pass under the limit."""
    p, m = len(times.forward_s), micro_batches
    most = min(m, int(memory.limit / memory.activation * (1 + 1e-9)))  # micro-batches that fit at once
    bound_s = 0.0
    for i in range(p):
        forward_s, input_s, weight_s = times.forward_s[i], times.backward_input_s[i], times.backward_weight_s[i]
        away_s = sum(times.forward_s[i + 1 :]) + sum(times.backward_input_s[i + 1 :]) + 2 * (p - 1 - i) * times.comm_s
        head_s = max(0.0, away_s - (most - 1) * forward_s)
        # The tail can hold I and W of whole micro-batches, and W of others, as far as the memory allows.
        whole = (most - 1) * (input_s + weight_s)
        parts = (m - 1) * weight_s if memory.weight_activation == 0 else memory.limit / memory.weight_activation * weight_s
        tail_s = max(0.0, away_s - whole - parts)
        idle_s = head_s + tail_s if most < m else max(head_s, tail_s)
        bound_s = max(bound_s, m * (forward_s + input_s + weight_s) + idle_s)
    return bound_s
