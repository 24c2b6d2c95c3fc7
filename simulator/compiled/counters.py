"""The mutable records of the event-driven kernel: the counters of planner.ir.actors.actor and planner.ir.actors.ledger for a whole game, as records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.compiled.arrays import Floats, Ints, PlanArrays, Records
from simulator.compiled.flow_tables import FlowTables, SetArrays, no_flows
from simulator.compiled.kernel import edition, filled, record

__all__ = ["Counters", "first_counters"]

# One record per thing, what never changes beside what is counted: a few arrays are quick to hand to functions, and neighbours in memory.
# missing: what keeps an actor from becoming a candidate of its lane: ports, and that it is one already, or runs.   short: channels of an in
# port without a block to read.   stuck: channels of an out port that hold all of its blocks.   In the middle of a block (phase > 0) a port keeps
# nobody.
_ACTOR = record(
    "at acts total lane priority group workspace rank_class in_first in_last out_first out_last begun missing can_fire flow paced",
    "duration_s",
)
_IN = record("owner acts chan_first chan_last consumed phase short")
_OUT = record("owner acts quota delivery_first delivery_last chan_first chan_last produced phase stuck")
_DELIVERY = record("store chan_first chan_last held freed")
_CHANNEL = record("src dst into out delivery full received acked", "ready_s ack_s")
_LANE = record("first order_first turns position running waiting may_choose")
_GROUP = record("first last present")
_STORE = record("first last rank_class size_bytes level")
_CLASS = record("live work peak register_peak talks lane_first lane_last retold")
# What others change, by the kernels of pace_kernel.py.  _PACE: an act under way, its end as foreseen now, its next event; the others: who is on
# which link.
_PACE = record("", "left_s since_s speed end_s event_s")
_FLOW = record("link_first link_last talk_first talk_last actor_first actor_last active component key touched", "alone")
_LINK = record("first active visit")
_TALLY = record(
    f"events joining may_choose left is_paced asks touched started retold visits components component_size {edition('pace_kernel.py')}",
    "now_s beside",
)


class Counters(NamedTuple):
    """Used for one game."""

    actor: Records
    into: Records
    out: Records
    delivery: Records
    channel: Records
    lane: Records
    group: Records
    store: Records
    rank_class: Records
    tally: Records  # one
    joining: Ints  # actors that become candidates before lanes choose
    may_choose: Ints  # lanes that may choose when the instant has settled
    waiting: Ints  # per lane a heap of the actors that can fire
    order: Ints
    in_chan: Ints
    store_delivery: Ints
    group_actor: Ints
    times: Floats  # heap of events
    codes: Ints  # of an event: actor, or A + 2 channel (ready), or A + 2 channel + 1 (ack)
    end_s: Floats
    ready_s: Floats
    start_s: Floats
    pace: Records
    flow: Records
    link: Records
    flow_link: Ints
    flow_actor: Ints  # per flow the actors of its acts
    on_link: Ints  # per link the flows that are under way
    talk: Ints  # per flow the rank classes whose computing it slows
    class_lane: Ints  # per rank class its lanes that feel it
    touched: Ints  # flows that began or ended since speeds were worked out
    started: Ints  # computing acts that have no speed yet
    retold: Ints  # rank classes on which communication began or ended
    link_queue: Ints
    component: Ints  # flows under way that share links, directly or over others
    known: SetArrays


def first_counters(t: PlanArrays, steps: int, classes: int, full: bool, flows: FlowTables | None) -> tuple[Counters, Ints]:
    """The counters before the first act, and where each actor's acts begin in the arrays of times.  Arguments as of play_events."""
    base = np.concatenate(([0], np.cumsum(steps * t.acts)))
    recorded = base[-1] if full else 0
    actors, ins, outs, channels, deliveries = len(t.acts), len(t.in_acts), len(t.out_acts), len(t.chan_src), len(t.delivery_store)
    lanes, groups, stores = len(t.lane_first) - 1, len(t.group_first) - 1, len(t.store_class)
    f = flows if flows is not None else no_flows(actors, classes)
    num_flows, links = len(f.alone), len(f.user_first) - 1
    rows = np.flatnonzero(f.flow >= 0)
    of_flow = rows[np.argsort(f.flow[rows], kind="stable")]
    flow_actor = np.concatenate(([0], np.cumsum(np.bincount(f.flow[rows], minlength=num_flows))))
    most_events = lanes + 2 * channels + (lanes + 16 if f.paced.any() else 0)
    game = Counters(
        actor=filled(
            _ACTOR, actors, at=base[:-1], acts=t.acts, total=steps * t.acts, lane=t.lane, priority=t.priority, group=t.group,
            workspace=t.workspace, rank_class=t.rank_class, in_first=t.in_first[:-1], in_last=t.in_first[1:],
            out_first=t.out_first[:-1], out_last=t.out_first[1:], duration_s=t.duration_s,
            flow=f.flow, paced=f.paced,
        ),
        into=filled(
            _IN, ins, owner=np.repeat(np.arange(actors), np.diff(t.in_first)), acts=t.in_acts,
            chan_first=t.in_chan_first[:-1], chan_last=t.in_chan_first[1:],
        ),
        out=filled(
            _OUT, outs, owner=np.repeat(np.arange(actors), np.diff(t.out_first)), acts=t.out_acts, quota=t.out_quota,
            delivery_first=t.delivery_first[:-1], delivery_last=t.delivery_first[1:], produced=t.out_full,
            chan_first=t.chan_first[t.delivery_first[:-1]], chan_last=t.chan_first[t.delivery_first[1:]],
        ),
        delivery=filled(_DELIVERY, deliveries, store=t.delivery_store, chan_first=t.chan_first[:-1], chan_last=t.chan_first[1:]),
        channel=filled(
            _CHANNEL, channels, src=t.chan_src, dst=t.chan_dst, into=t.chan_in, out=t.chan_out, delivery=t.chan_delivery,
            full=t.in_full[t.chan_in], received=t.in_full[t.chan_in], ready_s=t.ready_s, ack_s=t.ack_s,
        ),
        lane=filled(_LANE, lanes, first=t.lane_first[:-1], order_first=t.order_first[:-1], turns=np.diff(t.order_first), running=-1),
        group=filled(_GROUP, groups, first=t.group_first[:-1], last=t.group_first[1:]),
        store=filled(
            _STORE, stores, first=t.store_first[:-1], last=t.store_first[1:], rank_class=t.store_class, size_bytes=t.store_bytes
        ),
        rank_class=filled(_CLASS, classes, lane_first=f.lane_first[:-1], lane_last=f.lane_first[1:]),
        tally=filled(_TALLY, 1, left=base[-1], is_paced=flows is not None, beside=1 / f.slowdown),
        joining=np.zeros(actors, dtype=np.int64),
        may_choose=np.zeros(lanes, dtype=np.int64),
        waiting=np.zeros(actors, dtype=np.int64),
        order=t.order,
        in_chan=t.in_chan,
        store_delivery=t.store_delivery,
        group_actor=t.group_actor,
        times=np.empty(most_events),
        codes=np.empty(most_events, dtype=np.int64),
        end_s=np.empty(base[-1]),
        ready_s=np.empty(recorded),
        start_s=np.empty(recorded),
        pace=filled(_PACE, actors),
        flow=filled(
            _FLOW, num_flows, link_first=f.link_first[:-1], link_last=f.link_first[1:], talk_first=f.talk_first[:-1],
            talk_last=f.talk_first[1:], actor_first=flow_actor[:-1], actor_last=flow_actor[1:], key=f.key, alone=f.alone,
        ),
        link=filled(_LINK, links, first=f.user_first[:-1]),
        flow_link=f.link,
        flow_actor=of_flow,
        on_link=np.zeros(f.user_first[-1], dtype=np.int64),
        talk=f.talk,
        class_lane=f.lane,
        touched=np.zeros(num_flows, dtype=np.int64),
        started=np.zeros(lanes, dtype=np.int64),
        retold=np.zeros(classes, dtype=np.int64),
        link_queue=np.zeros(links, dtype=np.int64),
        component=np.zeros(num_flows, dtype=np.int64),
        known=f.known.arrays,
    )  # fmt: skip
    return game, base
