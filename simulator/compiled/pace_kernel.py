"""Acts whose speed others change, on arrays: simulator.pacing's game, act for act and bit for bit.

    begin_flow(), end_flow()   who is on which link, and on which ranks communication slows computing
    begin_paced()              an act begins that has no speed yet
    settle_speeds()            the instant is over: flows that began or ended since, and those that share links with them, get their speeds

The speeds of a set of flows that share links, directly or over others, are worked out once, in Python, by the function that SimPy's game takes
(flow_tables.KnownSets); steps repeat, so sets are few.  Where a set is met for the first time, the kernel returns and is called again.

Where an act becomes slower its event stays where it is and is put off when its time has come; where it becomes quicker a new one is made, and the old
one is dropped when its time has come, or when the heap is full.
"""

from __future__ import annotations

import numpy as np

from simulator.compiled.kernel import idx, kernel

__all__ = ["begin_flow", "begin_paced", "drop_event", "end_flow", "end_later", "schedule", "settle_speeds"]


@kernel
def schedule(time_s, code, g):  # type: ignore[no-untyped-def]
    if g.tally[0].events == g.times.size:
        drop_old_ends(g)
    push_event(g.times, g.codes, g.tally[0].events, time_s, code)
    g.tally[0].events += 1


@kernel
def begin_paced(a, now, g):  # type: ignore[no-untyped-def]
    pace, tally = g.pace[idx(a)], g.tally[0]
    pace.left_s = g.actor[idx(a)].duration_s
    pace.since_s = now
    pace.speed = 0.0
    pace.event_s = np.inf
    if g.actor[idx(a)].paced == 2:
        g.started[idx(tally.started)] = a
        tally.started += 1


@kernel
def begin_flow(f, g):  # type: ignore[no-untyped-def]
    flow = g.flow[idx(f)]
    flow.active = 1
    for x in range(flow.link_first, flow.link_last):
        link = g.link[idx(g.flow_link[idx(x)])]
        g.on_link[idx(link.first + link.active)] = f
        link.active += 1
    _touch(f, 1, g)


@kernel
def end_flow(f, g):  # type: ignore[no-untyped-def]
    flow = g.flow[idx(f)]
    flow.active = 0
    for x in range(flow.link_first, flow.link_last):
        link = g.link[idx(g.flow_link[idx(x)])]
        link.active -= 1
        y = link.first
        while g.on_link[idx(y)] != f:
            y += 1
        g.on_link[idx(y)] = g.on_link[idx(link.first + link.active)]
    _touch(f, -1, g)


@kernel
def _touch(f, more, g):  # type: ignore[no-untyped-def]
    flow, tally = g.flow[idx(f)], g.tally[0]
    if not flow.touched:
        flow.touched = 1
        g.touched[idx(tally.touched)] = f
        tally.touched += 1
    for x in range(flow.talk_first, flow.talk_last):
        place = g.rank_class[idx(g.talk[idx(x)])]
        place.talks += more
        if not place.retold:
            place.retold = 1
            g.retold[idx(tally.retold)] = g.talk[idx(x)]
            tally.retold += 1


@kernel
def settle_speeds(now, g):  # type: ignore[no-untyped-def]
    """Returns whether all speeds are known; if not, ``component`` holds the flows of the set in question, and nothing is lost by coming again."""
    tally = g.tally[0]
    if tally.touched + tally.started == 0:  # where communication begins or ends on ranks (retold), a flow is touched
        return True
    tally.visits += 1
    for n in range(tally.touched):
        f = g.touched[idx(n)]
        flow = g.flow[idx(f)]
        others = 0  # summed over its links: flows under way on them beside this one
        for x in range(flow.link_first, flow.link_last):
            others += g.link[idx(g.flow_link[idx(x)])].active - flow.active
        if others == 0:
            if flow.active:
                _set_flow(f, flow.alone, now, g)
            continue
        for x in range(flow.link_first, flow.link_last):
            link = g.link[idx(g.flow_link[idx(x)])]
            if link.active > 0 and link.visit != tally.visits and not _settle_set(g.flow_link[idx(x)], now, g):
                return False
    for n in range(tally.touched):
        g.flow[idx(g.touched[idx(n)])].touched = 0
    tally.touched = 0
    for n in range(tally.started):
        a = g.started[idx(n)]
        _set_speed(a, tally.beside if g.rank_class[idx(g.actor[idx(a)].rank_class)].talks > 0 else 1.0, now, g)
    tally.started = 0
    for n in range(tally.retold):
        place = g.rank_class[idx(g.retold[idx(n)])]
        place.retold = 0
        for x in range(place.lane_first, place.lane_last):
            a = g.lane[idx(g.class_lane[idx(x)])].running
            if a >= 0 and g.actor[idx(a)].paced == 2:
                _set_speed(a, tally.beside if place.talks > 0 else 1.0, now, g)
    tally.retold = 0
    return True


@kernel
def _settle_set(start, now, g):  # type: ignore[no-untyped-def]
    """Speeds of the flows under way that share a link with one on link ``start``, directly or over others."""
    tally = g.tally[0]
    tally.components += 1
    g.link[idx(start)].visit = tally.visits
    g.link_queue[0] = start
    head, tail, size, key = 0, 1, 0, 0
    while head < tail:
        link = g.link[idx(g.link_queue[idx(head)])]
        head += 1
        for y in range(link.first, link.first + link.active):
            flow = g.flow[idx(g.on_link[idx(y)])]
            if flow.component == tally.components:
                continue
            flow.component = tally.components
            g.component[idx(size)] = g.on_link[idx(y)]
            size += 1
            key ^= flow.key
            for x in range(flow.link_first, flow.link_last):
                other = g.link[idx(g.flow_link[idx(x)])]
                if other.visit != tally.visits:
                    other.visit = tally.visits
                    g.link_queue[idx(tail)] = g.flow_link[idx(x)]
                    tail += 1
    if size == 1:
        _set_flow(g.component[0], g.flow[idx(g.component[0])].alone, now, g)
        return True
    first = _known(key, size, g)
    if first < 0:
        tally.component_size = size
        return False
    for n in range(first, first + size):
        _set_flow(g.known.flow[idx(n)], g.known.speed[idx(n)], now, g)
    return True


@kernel
def _known(key, size, g):  # type: ignore[no-untyped-def]
    """Where the flows of the set that has just been walked stand with their speeds; -1: nowhere."""
    mask = g.known.key.size - 1
    slot = key & mask
    while g.known.size[idx(slot)] > 0:
        if g.known.key[idx(slot)] == key and g.known.size[idx(slot)] == size:
            first = g.known.first[idx(slot)]
            same = True
            for n in range(first, first + size):
                same = same and g.flow[idx(g.known.flow[idx(n)])].component == g.tally[0].components
            if same:
                return first
        slot = (slot + 1) & mask
    return -1


@kernel
def _set_flow(f, speed, now, g):  # type: ignore[no-untyped-def]
    for x in range(g.flow[idx(f)].actor_first, g.flow[idx(f)].actor_last):
        _set_speed(g.flow_actor[idx(x)], speed, now, g)


@kernel
def _set_speed(a, speed, now, g):  # type: ignore[no-untyped-def]
    pace = g.pace[idx(a)]
    if speed == pace.speed:
        return
    pace.left_s = max(pace.left_s - (now - pace.since_s) * pace.speed, 0.0)
    pace.since_s = now
    pace.speed = speed
    pace.end_s = now + pace.left_s / speed
    if pace.end_s < pace.event_s:
        pace.event_s = pace.end_s
        schedule(pace.end_s, a, g)


@kernel
def end_later(a, now, g):  # type: ignore[no-untyped-def]
    """The event of an act that has become slower since has come: again at the act's end; or it is one from before the act became quicker."""
    pace = g.pace[idx(a)]
    if pace.event_s == now and pace.end_s > now:
        pace.event_s = pace.end_s
        schedule(pace.end_s, a, g)


# --- the heap of events by time ------------------------------------------------------------------------------------------


@kernel
def drop_old_ends(g):  # type: ignore[no-untyped-def]
    """The heap is full: leave out ends that no longer hold."""
    tally = g.tally[0]
    events, tally.events = tally.events, 0
    for n in range(events):
        time_s, code = g.times[idx(n)], g.codes[idx(n)]
        if code >= g.actor.size or g.actor[idx(code)].paced == 0 or g.pace[idx(code)].event_s == time_s:
            push_event(g.times, g.codes, tally.events, time_s, code)
            tally.events += 1


@kernel
def push_event(times, codes, size, time_s, code):  # type: ignore[no-untyped-def]
    """Add an event to a heap of ``size`` (before)."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[idx(up)] <= time_s:
            break
        times[idx(i)], codes[idx(i)] = times[idx(up)], codes[idx(up)]
        i = up
    times[idx(i)], codes[idx(i)] = time_s, code


@kernel
def drop_event(times, codes, size):  # type: ignore[no-untyped-def]
    """Take the earliest event off a heap of ``size`` (before)."""
    last, time_s, code = size - 1, times[idx(size - 1)], codes[idx(size - 1)]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= last:
            break
        if down + 1 < last and times[idx(down + 1)] < times[idx(down)]:
            down += 1
        if times[idx(down)] >= time_s:
            break
        times[idx(i)], codes[idx(i)] = times[idx(down)], codes[idx(down)]
        i = down
    times[idx(i)], codes[idx(i)] = time_s, code
