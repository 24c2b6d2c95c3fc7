"""The compiler of the compiled engine: a Plan and its prices become the arrays of arrays.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.ir.collector import collector_paused
from planner.ir.plan import Fragment, Plan, RegstKind, Task, TaskKind
from planner.ir.protocols import CostModel
from simulator.compiled.arrays import CompiledPlan, Ints, PlanArrays, check_bytes
from simulator.compiled.flow_tables import flow_tables
from simulator.compiled.rank_classes import ClassMessage, RankClasses, rank_classes
from simulator.network.act_flows import Contention

__all__ = ["compile_plan"]


class _Rows:
    """Lists of numbers, one list per owner, stored as one list and the place where each owner's part begins."""

    def __init__(self) -> None:
        self.first = [0]
        self.items: list[int] = []

    def close(self, items: Sequence[int]) -> None:
        self.items += items
        self.first.append(len(self.items))


@collector_paused()
def compile_plan(
    plan: Plan, cost: CostModel, *, fold: bool = True, sizes: bool = True, contention: Contention | None = None
) -> CompiledPlan:
    """Arrays of a verified Plan, priced.

    Args:
        cost: asked once per task and rank, and once per pair of ranks that exchange messages.
        fold: one row for all ranks that cannot be told apart (rank_classes.py); False: one per rank.
        sizes: work out how many bytes blocks have; False: quicker, and enough for times().
        contention: what acts feel of each other (simulator.network.act_flows); None: every act takes its price, a bound where links are shared.

    Raises:
        InvalidCluster: a price that is negative or not finite.   Unsupported: blocks of 2^60 bytes and more.
    """
    ranks = rank_classes(plan, cost, fold=fold, contention=contention)
    actors = tuple((task, c) for task in plan.tasks for c in ranks.members[task.placement])
    number = {(task.id, c): i for i, (task, c) in enumerate(actors)}
    block_bytes = {r.id: plan.block_bytes(r) if sizes else 0 for r in plan.regsts}
    channels = _channels(plan, ranks, actors, number, block_bytes)
    lane_of, lanes, order_first, order, free = _lanes(plan, actors, number)
    group_of, groups, duration_s = _groups(ranks, actors, number)
    state_bytes = [0] * ranks.num_classes
    for regst in plan.regsts:
        if regst.kind is RegstKind.STATE:
            for c in ranks.members[regst.placement]:
                state_bytes[c] += block_bytes[regst.id]
    workspace = [task.body.workspace_bytes if isinstance(task.body, Fragment) else 0 for task, _ in actors]
    most_blocks = max((r.quota for r in plan.regsts), default=1)
    check_bytes(sum(state_bytes) + sum(workspace) + sum(block_bytes[regst] for regst, _ in channels.stores) * most_blocks)
    store_bytes = [block_bytes[regst] for regst, _ in channels.stores]
    dense = {p: i for i, p in enumerate(sorted({task.priority for task in plan.tasks}))}
    tables = PlanArrays(
        acts=_ints([task.acts for task, _ in actors]),
        lane=_ints(lane_of),
        priority=_ints([dense[task.priority] for task, _ in actors]),
        duration_s=np.array(duration_s, dtype=np.float64),
        group=_ints(group_of),
        workspace=_ints(workspace),
        rank_class=_ints([c for _, c in actors]),
        in_first=_ints(channels.in_first),
        in_acts=_ints(channels.in_acts),
        in_full=_ints(channels.in_full),
        in_chan_first=_ints(channels.in_chan.first),
        in_chan=_ints(channels.in_chan.items),
        out_first=_ints(channels.out_first),
        out_acts=_ints(channels.out_acts),
        out_quota=_ints(channels.out_quota),
        out_full=_ints(channels.out_full),
        delivery_first=_ints(channels.delivery_first),
        chan_first=_ints(channels.chan_first),
        chan_src=_ints(channels.src),
        chan_dst=_ints(channels.dst),
        chan_in=_ints(channels.into),
        chan_out=_ints(channels.out),
        chan_delivery=_ints(channels.delivery),
        ready_s=np.array(channels.ready_s, dtype=np.float64),
        ack_s=np.array(channels.ack_s, dtype=np.float64),
        delivery_store=_ints(channels.delivery_store),
        store_first=_ints(channels.store_deliveries.first),
        store_delivery=_ints(channels.store_deliveries.items),
        store_class=_ints([c for _, c in channels.stores]),
        store_bytes=_ints(store_bytes),
        group_first=_ints(groups.first),
        group_actor=_ints(groups.items),
        lane_first=_ints(lanes.first),
        lane_actor=_ints(lanes.items),
        order_first=_ints(order_first),
        order=order,
    )
    return CompiledPlan(
        plan=plan,
        cost_id=cost.id,
        ranks=ranks,
        tables=tables,
        actors=actors,
        free=free,
        has_sizes=sizes,
        out_of={regst: tuple(ports) for regst, ports in channels.out_of.items()},
        state_bytes=_ints(state_bytes),
        flows=flow_tables(ranks.flows, contention.slowdown, actors, lane_of, duration_s, ranks.num_classes)
        if contention is not None and ranks.flows is not None
        else None,
        contention=contention,
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


class _Channels:
    """Ports, deliveries and channels, as growing lists."""

    def __init__(self) -> None:
        self.in_first, self.out_first, self.delivery_first, self.chan_first = [0], [0], [0], [0]
        self.in_acts: list[int] = []
        self.in_full: list[int] = []
        self.out_acts: list[int] = []
        self.out_quota: list[int] = []
        self.out_full: list[int] = []
        self.src: list[int] = []
        self.dst: list[int] = []
        self.into: list[int] = []
        self.out: list[int] = []
        self.delivery: list[int] = []
        self.ready_s: list[float] = []
        self.ack_s: list[float] = []
        self.delivery_store: list[int] = []
        self.stores: dict[tuple[str, int], int] = {}
        self.in_chan, self.store_deliveries = _Rows(), _Rows()
        self.out_of: dict[str, list[int]] = {}


def _channels(
    plan: Plan,
    ranks: RankClasses,
    actors: Sequence[tuple[Task, int]],
    number: Mapping[tuple[str, int], int],
    block_bytes: Mapping[str, int],
) -> _Channels:
    lists = _Channels()
    in_port: dict[tuple[int, str], int] = {}
    for actor, (task, _) in enumerate(actors):
        for port in task.consumes:
            regst = plan.regst[port.regst]
            if regst.producer is None:
                continue  # a constant: always readable
            in_port[actor, regst.id] = len(lists.in_acts)
            lists.in_acts.append(port.acts_per_block)
            lists.in_full.append(1 if regst.kind is RegstKind.STATE else 0)
        lists.in_first.append(len(lists.in_acts))
    arriving: list[list[int]] = [[] for _ in lists.in_acts]
    lying: list[list[int]] = []
    heavy = {r.id: r.kind is not RegstKind.STATE and block_bytes[r.id] > 0 for r in plan.regsts}
    messages_from: dict[str, dict[int, list[ClassMessage]]] = {}
    for transfer, messages in ranks.messages.items():
        for hop in messages:
            messages_from.setdefault(transfer, {}).setdefault(hop.src, []).append(hop)
    for actor, (task, c) in enumerate(actors):
        messages_here = messages_from.get(task.id, {}).get(c, []) if task.kind is TaskKind.TRANSFER else [ClassMessage(c, c, 0.0, 0.0)]
        for port in task.produces:
            regst = plan.regst[port.regst]
            out = len(lists.out_acts)
            lists.out_of.setdefault(regst.id, []).append(out)
            lists.out_acts.append(port.acts_per_block)
            lists.out_quota.append(regst.quota)
            lists.out_full.append(1 if regst.kind is RegstKind.STATE else 0)
            for hop in messages_here:
                delivery = len(lists.delivery_store)
                if heavy[regst.id]:
                    store = lists.stores.setdefault((regst.id, hop.dst), len(lists.stores))
                    if store == len(lying):
                        lying.append([])
                    lying[store].append(delivery)
                else:
                    store = -1
                lists.delivery_store.append(store)
                for consumer, _ in plan.consumers[regst.id]:
                    sink = number[consumer.id, hop.dst]
                    into = in_port[sink, regst.id]
                    arriving[into].append(len(lists.src))
                    lists.src.append(actor)
                    lists.dst.append(sink)
                    lists.into.append(into)
                    lists.out.append(out)
                    lists.delivery.append(delivery)
                    lists.ready_s.append(hop.ready_s)
                    lists.ack_s.append(hop.ack_s)
                lists.chan_first.append(len(lists.src))
            lists.delivery_first.append(len(lists.delivery_store))
        lists.out_first.append(len(lists.out_acts))
    for channels in arriving:
        lists.in_chan.close(channels)
    for deliveries in lying:
        lists.store_deliveries.close(deliveries)
    return lists


def _lanes(
    plan: Plan, actors: Sequence[tuple[Task, int]], number: Mapping[tuple[str, int], int]
) -> tuple[list[int], _Rows, list[int], Ints, tuple[str, ...]]:
    """Lane of each actor, actors of each lane, (first, order) of the lanes whose order is fixed, and the streams without an order."""
    lane: dict[tuple[str, int], int] = {}
    lane_of = [lane.setdefault((task.stream, c), len(lane)) for task, c in actors]
    inside: list[list[int]] = [[] for _ in lane]
    for actor, here in enumerate(lane_of):
        inside[here].append(actor)
    lanes, order_first = _Rows(), [0]
    orders: list[Ints] = []
    free: dict[str, None] = {}
    place = {task.id: i for i, task in enumerate(plan.tasks)}
    for (stream, _), here in lane.items():
        lanes.close(inside[here])
        turns = plan.stream[stream].order
        if turns:
            row = np.full(len(plan.tasks), -1, dtype=np.int64)
            for actor in inside[here]:
                row[place[actors[actor][0].id]] = actor
            orders.append(row[np.fromiter(map(place.__getitem__, turns), dtype=np.int64, count=len(turns))])
        elif len(inside[here]) == 1:
            orders.append(_ints(inside[here]))
        else:
            orders.append(_ints([]))
            free[stream] = None
        order_first.append(order_first[-1] + len(orders[-1]))
    return lane_of, lanes, order_first, np.concatenate(orders) if orders else _ints([]), tuple(free)


def _groups(
    ranks: RankClasses, actors: Sequence[tuple[Task, int]], number: Mapping[tuple[str, int], int]
) -> tuple[list[int], _Rows, list[float]]:
    """Collective of each actor (-1: none), actors of each, and the duration of every act: in a collective the slowest rank's."""
    rows = _Rows()
    seen: dict[tuple[str, tuple[int, ...]], int] = {}
    group_of, duration_s = [], []
    for task, c in actors:
        met = ranks.groups[task.id][c] if task.id in ranks.groups else ()
        duration_s.append(max(ranks.price_s[task.id, other] for other in met or (c,)))
        if len(met) < 2:
            group_of.append(-1)
            continue
        if (task.id, met) not in seen:
            seen[task.id, met] = len(seen)
            rows.close([number[task.id, other] for other in met])
        group_of.append(seen[task.id, met])
    return group_of, rows, duration_s
