"""The order in which a stream begins its acts in one step of the folded token game, on arrays; planner.ir.actors.liveness.play says what is played.

    acts begin         every idle stream takes the task whose turn it is, or the most urgent of those that can fire
    the clock moves    to the next end; all acts that end at that instant give back and announce blocks

Compiled functions stand in this one file, since numba's cache looks at the file of the function that Python calls and at no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from planner.ir.actors.liveness import play
from planner.ir.plan import Plan, RegstKind, Task

__all__ = ["begun_acts"]

Ints = NDArray[np.int64]


def begun_acts(plan: Plan, act_s: Callable[[Task], float]) -> Mapping[str, tuple[str, ...]]:
    """Stream -> its tasks, in the order in which their acts of one step begin.

    Args:
        act_s: seconds of an act.

    Raises:
        DeadLock: some act can never fire.
    """
    game = _game(plan, act_s)
    begun = _play(game)
    if begun.size < int(game.total.sum()):
        play(plan, 1, act_s)  # says which acts wait for each other
        raise AssertionError("a game on arrays was stuck that the token game completes")
    names = [task.id for task in plan.tasks]
    acts = game.stream_of[begun]
    first = np.searchsorted(np.sort(acts), np.arange(len(plan.streams) + 1))
    by_stream = begun[np.argsort(acts, kind="stable")].tolist()
    return {s.id: tuple(names[a] for a in by_stream[first[n] : first[n + 1]]) for n, s in enumerate(plan.streams)}


class _Game(NamedTuple):
    """A Plan in arrays (a named tuple, because compiled code takes one whole); tasks, streams and Regsts by their place in it.

    act_s, total, urgency, stream_of: of a task; without an order, a stream takes the task that is least by (urgency, act, place).
    out[out_first[a] : out_first[a + 1]]: Regsts that task a fills.
    filled, fills, quota, maker: of a Regst: blocks that are full at the begin, acts per block, blocks, the task that fills it.
    sinks[sink_first[r] : sink_first[r + 1]]: in ports of Regst r.
    in_first[a] .. in_first[a + 1]: in ports of task a.   reads, holds, owner: of an in port: its Regst, acts per block, its task.
    order[order_first[s] : order_first[s + 1]]: tasks of stream s in their order; empty: it has none.
    """

    act_s: NDArray[np.float64]
    total: Ints
    urgency: Ints
    stream_of: Ints
    out_first: Ints
    out: Ints
    fills: Ints
    filled: Ints
    quota: Ints
    maker: Ints
    sink_first: Ints
    sinks: Ints
    in_first: Ints
    reads: Ints
    holds: Ints
    owner: Ints
    order_first: Ints
    order: Ints


class _Blocks(NamedTuple):
    """filled, filling: of a Regst: blocks that were filled, and acts on the next.   given, reading: of an in port: blocks given back, acts on one."""

    filled: Ints
    filling: Ints
    given: Ints
    reading: Ints


def _game(plan: Plan, act_s: Callable[[Task], float]) -> _Game:
    task_at = {task.id: number for number, task in enumerate(plan.tasks)}
    stream_at = {stream.id: number for number, stream in enumerate(plan.streams)}
    made = [regst for regst in plan.regsts if regst.producer is not None]
    regst_at = {regst.id: number for number, regst in enumerate(made)}
    outs = [[(regst_at[p.regst], p.acts_per_block) for p in task.produces] for task in plan.tasks]
    ins = [[(regst_at[p.regst], p.acts_per_block) for p in task.consumes if p.regst in regst_at] for task in plan.tasks]
    fills = np.ones(len(made), dtype=np.int64)
    for regst, acts in (port for ports in outs for port in ports):
        fills[regst] = acts
    readers: list[list[int]] = [[] for _ in made]
    for number, (regst, _) in enumerate(port for ports in ins for port in ports):
        readers[regst].append(number)
    return _Game(
        act_s=np.array([act_s(task) for task in plan.tasks], dtype=np.float64),
        total=_ints([task.acts for task in plan.tasks]),
        urgency=_ints([task.priority for task in plan.tasks]),
        stream_of=_ints([stream_at[task.stream] for task in plan.tasks]),
        out_first=_starts(outs),
        out=_ints([regst for ports in outs for regst, _ in ports]),
        fills=fills,
        filled=_ints([regst.kind is RegstKind.STATE for regst in made]),
        quota=_ints([regst.quota for regst in made]),
        maker=_ints([task_at[regst.producer or ""] for regst in made]),
        sink_first=_starts(readers),
        sinks=_ints([number for numbers in readers for number in numbers]),
        in_first=_starts(ins),
        reads=_ints([regst for ports in ins for regst, _ in ports]),
        holds=_ints([acts for ports in ins for _, acts in ports]),
        owner=_ints([number for number, ports in enumerate(ins) for _ in ports]),
        order_first=_starts([stream.order for stream in plan.streams]),
        order=_ints([task_at[task] for stream in plan.streams for task in stream.order]),
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _starts(parts: Sequence[Sequence[object]]) -> Ints:
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


@numba.njit(cache=True)
def _play(g):  # type: ignore[no-untyped-def]
    """Tasks in the order in which their acts begin; fewer than all acts if the game is stuck."""
    tasks, streams = g.total.size, g.order_first.size - 1
    begun, can_fire = np.zeros(tasks, np.int64), np.zeros(tasks, np.bool_)
    running, position = np.full(streams, -1), np.zeros(streams, np.int64)
    blocks = _Blocks(g.filled.copy(), np.zeros(g.quota.size, np.int64), np.zeros(g.reads.size, np.int64), np.zeros(g.reads.size, np.int64))
    first = np.zeros(streams + 1, np.int64)
    for a in range(tasks):
        first[g.stream_of[a] + 1] += 1
    first = np.cumsum(first)
    waiting, num_waiting = np.zeros(tasks, np.int64), np.zeros(streams, np.int64)
    idle, is_idle, num_idle = np.zeros(streams, np.int64), np.zeros(streams, np.bool_), 0
    fresh, is_fresh, num_fresh = np.arange(tasks), np.ones(tasks, np.bool_), tasks
    log, num_log = np.zeros(g.total.sum(), np.int64), 0
    now = 0.0
    ends = [(now, 0)]  # (end of an act that is under way, its task), a heap
    heappop(ends)
    while True:
        for n in range(num_fresh):
            a = fresh[n]
            is_fresh[a] = False
            s = g.stream_of[a]
            if can_fire[a] or running[s] == a or begun[a] >= g.total[a] or not _has_blocks(a, blocks, g):
                continue
            can_fire[a] = True
            if g.order_first[s] == g.order_first[s + 1]:
                _queue(a, first[s], num_waiting[s], waiting, begun, g.urgency)
                num_waiting[s] += 1
            if running[s] < 0 and not is_idle[s]:
                is_idle[s], idle[num_idle] = True, s
                num_idle += 1
        num_fresh = 0
        for n in range(num_idle):
            s = idle[n]
            is_idle[s] = False
            turns = g.order_first[s + 1] - g.order_first[s]
            if turns > 0:
                a = g.order[g.order_first[s] + position[s] % turns]
                if not can_fire[a]:
                    continue
                position[s] += 1
            elif num_waiting[s] > 0:
                num_waiting[s] -= 1
                a = _most_urgent(first[s], num_waiting[s], waiting, begun, g.urgency)
            else:
                continue
            can_fire[a] = False
            begun[a] += 1
            running[s] = a
            log[num_log] = a
            num_log += 1
            heappush(ends, (now + g.act_s[a], a))
        num_idle = 0
        if len(ends) == 0:
            return log[:num_log]
        now = ends[0][0]
        while len(ends) > 0 and ends[0][0] == now:
            a = heappop(ends)[1]
            s = g.stream_of[a]
            running[s] = -1
            is_idle[s], idle[num_idle] = True, s
            num_idle += 1
            num_fresh = _look_at(a, fresh, is_fresh, num_fresh)
            for o in range(g.out_first[a], g.out_first[a + 1]):
                r = g.out[o]
                blocks.filling[r] += 1
                if blocks.filling[r] == g.fills[r]:
                    blocks.filling[r] = 0
                    blocks.filled[r] += 1
                    for n in range(g.sink_first[r], g.sink_first[r + 1]):
                        num_fresh = _look_at(g.owner[g.sinks[n]], fresh, is_fresh, num_fresh)
            for i in range(g.in_first[a], g.in_first[a + 1]):
                blocks.reading[i] += 1
                if blocks.reading[i] == g.holds[i]:
                    blocks.reading[i] = 0
                    blocks.given[i] += 1
                    num_fresh = _look_at(g.maker[g.reads[i]], fresh, is_fresh, num_fresh)


@numba.njit(cache=True)
def _look_at(a, fresh, is_fresh, num_fresh):  # type: ignore[no-untyped-def]
    """Note that a task may have become able to fire; returns how many are noted."""
    if is_fresh[a]:
        return num_fresh
    is_fresh[a], fresh[num_fresh] = True, a
    return num_fresh + 1


@numba.njit(cache=True)
def _has_blocks(a, blocks, g):  # type: ignore[no-untyped-def]
    """SEMANTICS 3.1: every consumed Regst is readable, and every produced one has a free block."""
    for i in range(g.in_first[a], g.in_first[a + 1]):
        if blocks.reading[i] == 0 and blocks.filled[g.reads[i]] <= blocks.given[i]:
            return False
    for o in range(g.out_first[a], g.out_first[a + 1]):
        r = g.out[o]
        if blocks.filling[r] > 0:
            continue
        for n in range(g.sink_first[r], g.sink_first[r + 1]):
            if blocks.filled[r] - blocks.given[g.sinks[n]] >= g.quota[r]:
                return False
    return True


@numba.njit(cache=True)
def _before(a, b, begun, urgency):  # type: ignore[no-untyped-def]
    """Actor.priority, of acts of one step."""
    if urgency[a] != urgency[b]:
        return urgency[a] < urgency[b]
    if begun[a] != begun[b]:
        return begun[a] < begun[b]
    return a < b


@numba.njit(cache=True)
def _queue(a, first, size, waiting, begun, urgency):  # type: ignore[no-untyped-def]
    """Add a task to the binary heap of ``size`` (before) that begins at ``waiting[first]``."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if not _before(a, waiting[first + up], begun, urgency):
            break
        waiting[first + i] = waiting[first + up]
        i = up
    waiting[first + i] = a


@numba.njit(cache=True)
def _most_urgent(first, last, waiting, begun, urgency):  # type: ignore[no-untyped-def]
    """Take the most urgent task off the heap of ``last + 1`` that begins at ``waiting[first]``."""
    chosen, a, i = waiting[first], waiting[first + last], 0
    while 2 * i + 1 < last:
        down = 2 * i + 1
        if down + 1 < last and _before(waiting[first + down + 1], waiting[first + down], begun, urgency):
            down += 1
        if not _before(waiting[first + down], a, begun, urgency):
            break
        waiting[first + i] = waiting[first + down]
        i = down
    waiting[first + i] = a
    return chosen
