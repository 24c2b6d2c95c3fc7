"""The event-driven kernel: simulator.engine's game on arrays, for every Plan.

    loop   actors that became ready join their lane               _join()
           every idle lane that may choose starts one actor       _choose(), _start()
           speeds of acts that feel each other follow      pace_kernel.settle_speeds()
           the clock moves on; all events of that instant happen  _finish(), _ready_arrives(), _ack_arrives()

Inside one instant the order of events does not matter: ends and messages only give blocks back and make actors ready, and lanes choose only
after all of them.  So it need not be SimPy's order, and peaks agree all the same.

At most one message per channel and direction stands on the heap of events.  The later ones of a channel follow from the ends of its
producer's (or consumer's) acts, which are kept anyway, so the heap never grows.

Compiled functions stand in this file and in pace_kernel.py.  numba's cache looks at the file of the function that Python calls and at no other, so a
helper elsewhere could change without being compiled again; that one's text names a field of a record, and with it a type (kernel.edition).
"""

from __future__ import annotations

import numpy as np

from planner.ir.errors import InvalidCluster
from simulator.compiled.arrays import KernelResult, PlanArrays
from simulator.compiled.counters import first_counters
from simulator.compiled.flow_tables import FlowTables
from simulator.compiled.kernel import idx, kernel
from simulator.compiled.pace_kernel import begin_flow, begin_paced, drop_event, end_flow, end_later, schedule, settle_speeds

__all__ = ["play_events"]

COMPLETE, STUCK, ASKS = 0, 1, 2
"""How _play ends."""


def play_events(tables: PlanArrays, steps: int, classes: int, *, full: bool, flows: FlowTables | None = None) -> KernelResult:
    """Play ``steps`` steps.

    Args:
        classes: number of rank classes.
        full: keep ready and start times and count live bytes, not only ends.
        flows: what acts feel of each other; None: every act takes its price.

    Raises:
        InvalidCluster: times beyond a float.
    """
    game, base = first_counters(tables, steps, classes, full, flows)
    while (end := _play(game, full)) == ASKS:
        assert flows is not None
        flows.known.learn(game.component[: game.tally["component_size"][0]].tolist())
        game = game._replace(known=flows.known.arrays)
    complete = end == COMPLETE
    if complete and np.isinf(game.end_s.max(initial=0.0)):
        raise InvalidCluster("this simulation ends after more seconds than a float can hold; lower the prices of the cost model")
    rank_class = game.rank_class
    return KernelResult(complete, base, game.ready_s, game.start_s, game.end_s, rank_class["peak"], rank_class["register_peak"])


@kernel
def _play(g, full):  # type: ignore[no-untyped-def]
    """The game to its end (COMPLETE, STUCK), or to a set of flows whose speeds are to be learned first (ASKS); called again, it goes on there."""
    tally = g.tally[0]
    actors = g.actor.size
    now = tally.now_s
    asked = tally.asks
    tally.asks = 0
    if not asked:
        for a in range(actors):
            actor = g.actor[idx(a)]
            for i in range(actor.in_first, actor.in_last):
                actor.missing += _count_short(i, g)
            for o in range(actor.out_first, actor.out_last):
                actor.missing += _count_stuck(o, g)
            actor.missing += 1
            if actor.total > 0:
                _one_less(a, g)
    while True:
        for n in range(tally.joining):
            _join(g.joining[idx(n)], now, g, full)
        tally.joining = 0
        for n in range(tally.may_choose):
            lane = g.may_choose[idx(n)]
            g.lane[idx(lane)].may_choose = 0
            a = _choose(lane, g)
            if a >= 0:
                _start(a, lane, now, g, full)
        tally.may_choose = 0
        if tally.is_paced and not (tally.events > 0 and g.times[0] == now) and not settle_speeds(now, g):
            tally.asks = 1
            tally.now_s = now
            return ASKS
        if tally.events == 0:
            return COMPLETE if tally.left == 0 else STUCK
        now = g.times[0]
        while tally.events > 0 and g.times[0] == now:
            code = g.codes[0]
            drop_event(g.times, g.codes, tally.events)
            tally.events -= 1
            if code < actors:
                if g.actor[idx(code)].paced == 0 or g.pace[idx(code)].end_s == now:
                    _finish(code, now, g, full)
                else:
                    end_later(code, now, g)
            elif (code - actors) & 1:
                channel = g.channel[idx((code - actors) >> 1)]
                _ack_arrives(channel, g, full)
                sender = g.into[idx(channel.into)]
                if sender.consumed > channel.acked:
                    last = (channel.acked + 1) * sender.acts - 1
                    schedule(g.end_s[idx(g.actor[idx(channel.dst)].at + last)] + channel.ack_s, code, g)
            else:
                channel = g.channel[idx((code - actors) >> 1)]
                _ready_arrives(channel, g)
                source = g.out[idx(channel.out)]
                if source.produced > channel.received:
                    last = (channel.received - channel.full + 1) * source.acts - 1
                    schedule(g.end_s[idx(g.actor[idx(channel.src)].at + last)] + channel.ready_s, code, g)


@kernel
def _count_short(i, g):  # type: ignore[no-untyped-def]
    """Whether the next block of an in port is missing (not InPort.readable); keeps count of the channels that owe it."""
    port = g.into[idx(i)]
    short = 0
    for x in range(port.chan_first, port.chan_last):
        short += g.channel[idx(g.in_chan[idx(x)])].received <= port.consumed
    port.short = short
    return short > 0


@kernel
def _count_stuck(o, g):  # type: ignore[no-untyped-def]
    """Whether an out port has no free block (not OutPort.free); keeps count of the channels that hold them all."""
    port = g.out[idx(o)]
    stuck = 0
    for c in range(port.chan_first, port.chan_last):
        stuck += port.produced - g.channel[idx(c)].acked >= port.quota
    port.stuck = stuck
    return stuck > 0


@kernel
def _one_less(a, g):  # type: ignore[no-untyped-def]
    """Count one obstacle less for an actor; without any it becomes a candidate of its lane, once all events of this instant have happened."""
    actor = g.actor[idx(a)]
    actor.missing -= 1
    if actor.missing == 0:
        g.joining[idx(g.tally[0].joining)] = a
        g.tally[0].joining += 1


@kernel
def _let_choose(number, g):  # type: ignore[no-untyped-def]
    lane = g.lane[idx(number)]
    if lane.running < 0 and not lane.may_choose:
        lane.may_choose = 1
        g.may_choose[idx(g.tally[0].may_choose)] = number
        g.tally[0].may_choose += 1


@kernel
def _join(a, now, g, full):  # type: ignore[no-untyped-def]
    """An actor that can fire from now on becomes a candidate of its lane; that keeps it from becoming one again until its act has ended."""
    actor = g.actor[idx(a)]
    actor.missing = 1
    actor.can_fire = 1
    if full:
        g.ready_s[idx(actor.at + actor.begun)] = now
    lane = g.lane[idx(actor.lane)]
    if lane.turns == 0:
        _queue_actor(a, lane.first, lane.waiting, g.waiting, g.actor)
        lane.waiting += 1
    _let_choose(actor.lane, g)


@kernel
def _choose(number, g):  # type: ignore[no-untyped-def]
    """StreamGate.choose: whose turn it is, or the most urgent; -1: nobody can fire."""
    lane = g.lane[idx(number)]
    if lane.turns > 0:
        a = g.order[idx(lane.order_first + lane.position)]
        if not g.actor[idx(a)].can_fire:
            return -1
        lane.position += 1
        if lane.position == lane.turns:
            lane.position = 0
        return a
    if lane.waiting == 0:
        return -1
    lane.waiting -= 1
    return _next_actor(lane.first, lane.waiting, g.waiting, g.actor)


@kernel
def _start(a, lane, now, g, full):  # type: ignore[no-untyped-def]
    actor = g.actor[idx(a)]
    g.lane[idx(lane)].running = a
    actor.can_fire = 0
    actor.begun += 1
    if full:
        for o in range(actor.out_first, actor.out_last):
            if g.out[idx(o)].phase == 0:
                for n in range(g.out[idx(o)].delivery_first, g.out[idx(o)].delivery_last):
                    _hold(n, 1, g)
        _work(actor.rank_class, actor.workspace, g)
    if actor.group < 0:
        _run(a, now, g, full)
    else:
        group = g.group[idx(actor.group)]
        group.present += 1
        if group.present < group.last - group.first:
            return
        group.present = 0
        for i in range(group.first, group.last):
            _run(g.group_actor[idx(i)], now, g, full)
    if actor.flow >= 0:
        begin_flow(actor.flow, g)


@kernel
def _run(a, now, g, full):  # type: ignore[no-untyped-def]
    actor = g.actor[idx(a)]
    if full:
        g.start_s[idx(actor.at + actor.begun - 1)] = now
    if actor.paced == 0:
        schedule(now + actor.duration_s, a, g)
    else:
        begin_paced(a, now, g)


@kernel
def _finish(a, now, g, full):  # type: ignore[no-untyped-def]
    """Actor.end.  A port is counted anew where a block of it ends, so an actor may tell itself of its blocks before that or after."""
    actor = g.actor[idx(a)]
    g.end_s[idx(actor.at + actor.begun - 1)] = now
    g.lane[idx(actor.lane)].running = -1
    g.tally[0].left -= 1
    if actor.paced:
        g.pace[idx(a)].end_s = g.pace[idx(a)].event_s = -1.0
    if actor.flow >= 0 and a == g.flow_actor[idx(g.flow[idx(actor.flow)].actor_first)]:
        end_flow(actor.flow, g)
    if full:
        _work(actor.rank_class, -actor.workspace, g)
    for o in range(actor.out_first, actor.out_last):
        out = g.out[idx(o)]
        out.phase += 1
        if out.phase == out.acts:
            out.phase = 0
            out.produced += 1
            actor.missing += _count_stuck(o, g)
            _send_ready(out, now, g, full)
    for i in range(actor.in_first, actor.in_last):
        into = g.into[idx(i)]
        into.phase += 1
        if into.phase == into.acts:
            into.phase = 0
            into.consumed += 1
            actor.missing += _count_short(i, g)
            _send_acks(into, now, g, full)
    if actor.begun < actor.total:
        _one_less(a, g)
    _let_choose(actor.lane, g)


@kernel
def _send_ready(out, now, g, full):  # type: ignore[no-untyped-def]
    if full:
        for n in range(out.delivery_first, out.delivery_last):
            if g.delivery[idx(n)].chan_first == g.delivery[idx(n)].chan_last:
                _hold(n, -1, g)  # nobody reads it
    for c in range(out.chan_first, out.chan_last):
        channel = g.channel[idx(c)]
        if now + channel.ready_s == now:
            _ready_arrives(channel, g)
        elif out.produced == channel.received + 1:
            schedule(now + channel.ready_s, g.actor.size + 2 * c, g)


@kernel
def _send_acks(into, now, g, full):  # type: ignore[no-untyped-def]
    for x in range(into.chan_first, into.chan_last):
        c = g.in_chan[idx(x)]
        channel = g.channel[idx(c)]
        if now + channel.ack_s == now:
            _ack_arrives(channel, g, full)
        elif into.consumed == channel.acked + 1:
            schedule(now + channel.ack_s, g.actor.size + 2 * c + 1, g)


@kernel
def _ready_arrives(channel, g):  # type: ignore[no-untyped-def]
    into = g.into[idx(channel.into)]
    channel.received += 1
    if into.phase == 0 and channel.received == into.consumed + 1:
        into.short -= 1
        if into.short == 0:
            _one_less(into.owner, g)


@kernel
def _ack_arrives(channel, g, full):  # type: ignore[no-untyped-def]
    out = g.out[idx(channel.out)]
    channel.acked += 1
    if out.phase == 0 and out.produced - channel.acked == out.quota - 1:
        out.stuck -= 1
        if out.stuck == 0:
            _one_less(out.owner, g)
    if full:
        delivery = g.delivery[idx(channel.delivery)]
        freed = channel.acked
        for c in range(delivery.chan_first, delivery.chan_last):
            freed = min(freed, g.channel[idx(c)].acked)
        if freed > delivery.freed:
            _hold(channel.delivery, delivery.freed - freed, g)
            delivery.freed = freed


@kernel
def _hold(n, blocks, g):  # type: ignore[no-untyped-def]
    """planner.ir.actors.ledger: a block that several senders fill lives while any of them holds it."""
    delivery = g.delivery[idx(n)]
    if delivery.store < 0:
        return
    delivery.held += blocks
    store = g.store[idx(delivery.store)]
    level = 0
    for i in range(store.first, store.last):
        level = max(level, g.delivery[idx(g.store_delivery[idx(i)])].held)
    if level != store.level:
        place = g.rank_class[idx(store.rank_class)]
        place.live += (level - store.level) * store.size_bytes
        store.level = level
        place.register_peak = max(place.register_peak, place.live)
        place.peak = max(place.peak, place.live + place.work)


@kernel
def _work(rank_class, size_bytes, g):  # type: ignore[no-untyped-def]
    place = g.rank_class[idx(rank_class)]
    place.work += size_bytes
    place.peak = max(place.peak, place.live + place.work)


# --- a binary heap: the actors that could start on a lane, by urgency ----------------------------------------------------


@kernel
def _before(a, b, actors):  # type: ignore[no-untyped-def]
    """Actor.priority: (step, priority, act, place in the Plan)."""
    one, two = actors[idx(a)], actors[idx(b)]
    step_one, step_two = one.begun // one.acts, two.begun // two.acts
    if step_one != step_two:
        return step_one < step_two
    if one.priority != two.priority:
        return one.priority < two.priority
    if one.begun != two.begun:
        return one.begun < two.begun
    return a < b


@kernel
def _queue_actor(actor, first, size, waiting, actors):  # type: ignore[no-untyped-def]
    """Add an actor to the heap of ``size`` (before) that starts at ``waiting[first]``."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if not _before(actor, waiting[idx(first + up)], actors):
            break
        waiting[idx(first + i)] = waiting[idx(first + up)]
        i = up
    waiting[idx(first + i)] = actor


@kernel
def _next_actor(first, last, waiting, actors):  # type: ignore[no-untyped-def]
    """Take the most urgent actor off the heap of ``last + 1`` that starts at ``waiting[first]``."""
    chosen, actor, i = waiting[idx(first)], waiting[idx(first + last)], 0
    while True:
        down = 2 * i + 1
        if down >= last:
            break
        if down + 1 < last and _before(waiting[idx(first + down + 1)], waiting[idx(first + down)], actors):
            down += 1
        if not _before(waiting[idx(first + down)], actor, actors):
            break
        waiting[idx(first + i)] = waiting[idx(first + down)]
        i = down
    waiting[idx(first + i)] = actor
    return chosen
