"""The max-plus kernel: where every lane's order is fixed, times follow from a recurrence, without a queue of events.

(1) ready_a(k) = max( end_a(k-1),  end_s((b + 1 - full) r_s - 1) + ready latency   for every producer s of a block b that act k reads first,
                                   end_c((n + 1 + full - q) r_c - 1) + ack latency  for every consumer c of a block n that act k writes first )
(2) start      = max( ready_a(k), end of the lane's act before )           in a collective: the latest of its members
(3) end        = start + d_a

r_s, r_c: acts per block of the other end; full: 1 for state, else 0; terms with a negative act count as 0 (the tokens at the start).

Each lane is evaluated up to the first act whose terms are not all computed yet, and goes on when that missing term is.  So every act is
evaluated after all that it waits for, and no topological order has to be computed beforehand.

Source: Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and Linearity", ch. 2 (dater equations).
"""

from __future__ import annotations

import numpy as np

from planner.ir.errors import Unsupported
from simulator.compiled.arrays import CompiledPlan, Floats, Ints, KernelResult, PlanArrays, Records
from simulator.compiled.kernel import filled, idx, kernel, record

__all__ = ["play_recurrence"]


_ACTOR = record("at total lane group plain_first plain_last rated_first rated_last begun", "duration_s")
_PLAIN = record("at since lane", "delay_s")  # term of rate 1 on both sides: act k waits for the act at ``at + k``, if k >= since
_RATED = record("at every rate blocks lane", "delay_s")  # looked at in every ``every``-th act
_LANE = record(
    "first turns position left waits_for waiting behind queued", "end_s"
)  # waiting, behind: the list of lanes that wait for this one
_GROUP = record("first last present", "latest_s")


def play_recurrence(compiled: CompiledPlan, steps: int, *, full: bool, act_s: Floats | None = None) -> KernelResult:
    """Evaluate ``steps`` steps.

    Args:
        full: keep ready and start times, not only ends.
        act_s: seconds of every act, act k of actor a at ``base[a] + k`` (KernelResult), the same for all ranks that meet in it; None: the price.

    Returns:
        Times as of the event-driven kernel; peaks are zeros.

    Raises:
        Unsupported: a stream without an order that several tasks share; its order depends on the times themselves.
    """
    if compiled.free:
        raise Unsupported(
            f"{len(compiled.free)} streams of this plan have several tasks and no order, {compiled.free[0]} among them; the max-plus recurrence "
            "needs fixed orders: use the event-driven kernel, or give the streams an order"
        )
    t = compiled.tables
    base = np.concatenate(([0], np.cumsum(steps * t.acts)))
    recorded = base[-1] if full else 0
    lanes = len(t.lane_first) - 1
    plain, plain_first, rated, rated_first = _terms(t, base)
    actors = filled(
        _ACTOR, len(t.acts), at=base[:-1], total=steps * t.acts, lane=t.lane, group=t.group, duration_s=t.duration_s,
        plain_first=plain_first[:-1], plain_last=plain_first[1:], rated_first=rated_first[:-1], rated_last=rated_first[1:],
    )  # fmt: skip
    left = np.bincount(t.lane, weights=steps * t.acts, minlength=lanes).astype(np.int64)
    lane = filled(_LANE, lanes, first=t.order_first[:-1], turns=np.diff(t.order_first), left=left, waits_for=-1, waiting=-1, behind=-1)
    groups = filled(_GROUP, len(t.group_first) - 1, first=t.group_first[:-1], last=t.group_first[1:])
    end_s, ready_s, start_s = np.full(base[-1], -1.0), np.empty(recorded), np.empty(recorded)
    queue = np.arange(lanes)
    own_s = np.empty(0) if act_s is None else act_s
    complete = bool(_evaluate(actors, plain, rated, lane, groups, t.order, t.group_actor, queue, own_s, end_s, ready_s, start_s))
    nothing = np.zeros(compiled.ranks.num_classes, dtype=np.int64)
    return KernelResult(complete, base, ready_s, start_s, end_s, nothing, nothing)


def _terms(t: PlanArrays, base: Ints) -> tuple[Records, Ints, Records, Ints]:
    """The terms of (1), two per channel: data forward and blocks back.  Plain ones and rated ones, each with the first of every actor."""
    in_acts, out_acts = t.in_acts[t.chan_in], t.out_acts[t.chan_out]
    full, quota = t.in_full[t.chan_in], t.out_quota[t.chan_out]
    actor = np.concatenate((t.chan_dst, t.chan_src))
    src = np.concatenate((t.chan_src, t.chan_dst))
    every = np.concatenate((in_acts, out_acts))
    rate = np.concatenate((out_acts, in_acts))
    blocks = np.concatenate((1 - full, 1 + full - quota))
    delay_s = np.concatenate((t.ready_s, t.ack_s))
    is_plain = (every == 1) & (rate == 1)

    def rows(which: Ints) -> tuple[Ints, Ints]:
        first = np.concatenate(([0], np.cumsum(np.bincount(actor[which], minlength=len(t.acts)))))
        return which[np.argsort(actor[which], kind="stable")], first

    one, plain_first = rows(np.flatnonzero(is_plain))
    plain = filled(
        _PLAIN, len(one), at=base[src[one]] + blocks[one] - 1, since=1 - blocks[one], lane=t.lane[src[one]], delay_s=delay_s[one]
    )
    two, rated_first = rows(np.flatnonzero(~is_plain))
    rated = filled(
        _RATED, len(two), at=base[src[two]], every=every[two], rate=rate[two], blocks=blocks[two], lane=t.lane[src[two]],
        delay_s=delay_s[two],
    )  # fmt: skip
    return plain, plain_first, rated, rated_first


@kernel
def _evaluate(actors, plain, rated, lanes, groups, order, group_actor, queue, own_s, end_s, ready_s, start_s):  # type: ignore[no-untyped-def]
    full = ready_s.size > 0
    for n in range(lanes.size):
        lanes[idx(n)].queued = 1
    head, size = 0, lanes.size
    while size > 0:
        number = queue[idx(head)]
        head = head + 1 if head + 1 < lanes.size else 0
        size -= 1
        lane = lanes[idx(number)]
        lane.queued = 0
        while lane.left > 0:
            a = order[idx(lane.first + lane.position)]
            actor = actors[idx(a)]
            k = actor.begun
            if k == actor.total:
                break  # the order and the acts contradict each other
            mine = actor.at + k
            time_s = end_s[idx(mine - 1)] if k > 0 else 0.0
            blocked, by = -1, -1
            for x in range(actor.plain_first, actor.plain_last):
                term = plain[idx(x)]
                if k >= term.since:
                    value = end_s[idx(term.at + k)]
                    if value < 0.0:
                        blocked, by = term.at + k, term.lane
                        break
                    time_s = max(time_s, value + term.delay_s)
            if blocked < 0:
                for x in range(actor.rated_first, actor.rated_last):
                    term = rated[idx(x)]
                    if k % term.every != 0:
                        continue
                    i = (k // term.every + term.blocks) * term.rate - 1
                    if i >= 0:
                        value = end_s[idx(term.at + i)]
                        if value < 0.0:
                            blocked, by = term.at + i, term.lane
                            break
                        time_s = max(time_s, value + term.delay_s)
            if blocked >= 0:
                lane.waits_for = blocked
                lane.behind = lanes[idx(by)].waiting
                lanes[idx(by)].waiting = number
                break
            if full:
                ready_s[idx(mine)] = time_s
            time_s = max(time_s, lane.end_s)
            if actor.group < 0:
                _perform(mine, time_s, actor, lane, own_s, end_s, start_s)
                continue
            group = groups[idx(actor.group)]
            group.present += 1
            group.latest_s = max(group.latest_s, time_s)
            if group.present < group.last - group.first:
                break
            group.present = 0
            for x in range(group.first, group.last):
                member = actors[idx(group_actor[idx(x)])]
                _perform(member.at + member.begun, group.latest_s, member, lanes[idx(member.lane)], own_s, end_s, start_s)
                if member.lane != number:
                    size = _enqueue(member.lane, lanes, queue, head, size)
        # Who waited for an act that is known by now?
        before, other = -1, lane.waiting
        while other >= 0:
            after = lanes[idx(other)].behind
            if end_s[idx(lanes[idx(other)].waits_for)] >= 0.0:
                if before < 0:
                    lane.waiting = after
                else:
                    lanes[idx(before)].behind = after
                size = _enqueue(other, lanes, queue, head, size)
            else:
                before = other
            other = after
    left = 0
    for n in range(lanes.size):
        left += lanes[idx(n)].left
    return left == 0


@kernel
def _perform(at, time_s, actor, lane, own_s, end_s, start_s):  # type: ignore[no-untyped-def]
    """(3), and the lane's turn passes on."""
    if start_s.size > 0:
        start_s[idx(at)] = time_s
    end_s[idx(at)] = time_s + (own_s[idx(at)] if own_s.size > 0 else actor.duration_s)
    lane.end_s = end_s[idx(at)]
    actor.begun += 1
    lane.left -= 1
    lane.position += 1
    if lane.position == lane.turns:
        lane.position = 0


@kernel
def _enqueue(number, lanes, queue, head, size):  # type: ignore[no-untyped-def]
    """A lane may go on; returns the size of the ring."""
    if lanes[idx(number)].queued:
        return size
    lanes[idx(number)].queued = 1
    tail = head + size
    queue[idx(tail if tail < lanes.size else tail - lanes.size)] = number
    return size + 1
