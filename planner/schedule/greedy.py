"""List scheduling of a pipeline with a split backward pass, under a memory limit.

Devices choose passes in the order of time.  A device that is free at time t knows when its next F and its next I can begin, provided that the
passes before them on other devices have begun.  Then it chooses by rules, of which planner.schedule.automatic tries many sets:

    before the first I      F, while memory allows it and it does not delay the first I (``delay_first``: even if it does)
    I and F can begin       I; after an I, F if ``alternate``
    only F can begin        F, unless it would delay an I that will arrive by more than ``late`` x T_F
    neither can begin       W, if it fits into the gap, or if the device would have been idle for more than ``idle_s`` in all; otherwise nothing
    memory is full          W
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf

from planner.schedule.actions import Action, Pass, PipelineSchedule
from planner.schedule.timing import PassTimes

__all__ = ["ListRules", "MemoryLimit", "list_schedule"]

_EPS = 1e-9
_F, _I, _W = Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """``limit`` per device, in the unit of ``activation`` (M_B of one micro-batch) and ``weight_activation`` (M_W of it)."""

    limit: float
    activation: float = 1.0
    weight_activation: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRules:
    """The rules by which a device chooses its next pass; see the module's text."""

    delay_first: bool
    alternate: bool
    late: float
    idle_s: float


@dataclass(slots=True)
class _Device:
    """A device during the scheduling.

    done: passes of each kind so far; each kind is performed in the order of the micro-batches.
    forward_at, gradient_at: per micro-batch, the time at which its input arrives, infinite while it is unknown.
    """

    forward_at: list[float]
    gradient_at: list[float]
    done: dict[Pass, int] = field(default_factory=lambda: {_F: 0, _I: 0, _W: 0})
    order: list[tuple[Pass, int]] = field(default_factory=list)
    last: Pass = _F
    held: float = 0.0
    free_s: float = 0.0
    idle_s: float = 0.0

    def next_at(self, kind: Pass) -> float:
        at = self.forward_at if kind is _F else self.gradient_at
        return at[self.done[kind]] if self.done[kind] < len(at) else inf


def list_schedule(
    micro_batches: int, times: PassTimes, memory: MemoryLimit, rules: ListRules, below_s: float = inf
) -> PipelineSchedule | None:
    """The schedule of one set of rules; None if full memory stops it, or if the span of a device reaches ``below_s``."""
    p, m = len(times.forward_s), micro_batches
    passes = zip(times.forward_s, times.backward_input_s, times.backward_weight_s, strict=True)
    idle_below_s = [below_s - m * sum(of_stage) for of_stage in passes]
    devices = [_Device([0.0 if i == 0 else inf] * m, [inf] * m) for i in range(p)]
    change = {_F: memory.activation, _I: memory.weight_activation - memory.activation, _W: -memory.weight_activation}
    queue = [(0.0, number, number) for number in range(p)]
    entries = p
    while queue:
        now, _, i = heapq.heappop(queue)
        device = devices[i]
        if device.free_s > now + _EPS:
            continue  # the device is busy; it has a later entry in the queue
        kind, at_s = _decide(device, i, now, times, memory, rules)
        if kind is None:
            if at_s < inf:
                entries += 1
                heapq.heappush(queue, (max(at_s, now), entries, i))
            continue
        k = device.done[kind]
        end_s = now + times.of(Action(i, kind, k))
        if device.order:
            device.idle_s += now - device.free_s
            if device.idle_s >= idle_below_s[i]:
                return None
        device.order.append((kind, k))
        device.done[kind] += 1
        device.held += change[kind]
        device.free_s = end_s
        device.last = device.last if kind is _W else kind
        wakes = [(end_s, i)]
        if kind is _F and i < p - 1:
            devices[i + 1].forward_at[k] = end_s + times.comm_s
            wakes.append((now, i + 1))
        elif kind is _F:
            device.gradient_at[k] = end_s
        elif kind is _I and i > 0:
            devices[i - 1].gradient_at[k] = end_s + times.comm_s
            wakes.append((now, i - 1))
        for at_s, who in wakes:
            entries += 1
            heapq.heappush(queue, (at_s, entries, who))
    if any(len(device.order) < 3 * m for device in devices):
        return None
    return PipelineSchedule("zb-auto", tuple(tuple(Action(i, kind, k) for kind, k in d.order) for i, d in enumerate(devices)))


def _decide(device: _Device, stage: int, now: float, times: PassTimes, memory: MemoryLimit, rules: ListRules) -> tuple[Pass | None, float]:
    """(the pass to begin, now), or (None, the time at which to decide again)."""
    fits = device.held + memory.activation <= memory.limit * (1 + _EPS)
    forward_at = device.next_at(_F) if fits else inf
    gradient_at = device.next_at(_I)
    has_forward, has_gradient = forward_at <= now + _EPS, gradient_at <= now + _EPS
    forward_s, weight_s = times.forward_s[stage], times.backward_weight_s[stage]
    if has_gradient and not (has_forward and rules.alternate and device.last is _I):
        return _I, now
    if has_forward and device.done[_I] == 0:
        in_time = rules.delay_first or gradient_at == inf or now + forward_s <= gradient_at + _EPS
        return (_F, now) if in_time else (None, gradient_at)
    if has_forward and (has_gradient or now + forward_s <= gradient_at + rules.late * forward_s + _EPS):
        return _F, now
    next_s = gradient_at if has_forward else min(forward_at, gradient_at)
    if device.done[_I] > device.done[_W]:
        full = not fits and device.next_at(_F) <= now + _EPS and gradient_at == inf
        gap_s = next_s - now
        if full or gap_s >= weight_s - _EPS or device.idle_s + gap_s > rules.idle_s + _EPS:
            return _W, now
    return None, next_s
