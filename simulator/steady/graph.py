"""A steady Plan as a timed marked graph, folded by steps.

    node   one act of a step: (task, rank, act k)         an arc src -> dst with t tokens and weight w says, for every step s,
    arc    who waits for whom                                 start(dst, s)  >=  start(src, s - t) + w

(1) data     block j of P is full after act (j+1) a - 1; its reader C starts on it with act j b            tokens 0       -> _blocks()
(2) quota    C gives back its block c with act (c+1) b - 1; P, with q blocks, needs it for its block c + q: act ((c+q) mod n) a of the step
             (c+q) div n later                                                                             tokens (c+q) div n
(3) state    starts full, so (1) is one block ahead of the writer, and (2) with q = 1 meets the writer's own step
(4) stream   an act waits for the one before it; the last act of a step goes before the first of the next  tokens 0, at the closing 1
(5) meeting  the ranks of a collective start and end together: they share one node, as long as the slowest of them

a, b: acts per block of the producer and of the consumer; n: blocks per step; w: the source's duration and the message's latency.

A stream without an order chooses while it runs.  Its order is then that of the simulated steady step (simulator.steady.observed_order).  If an act of
the next step starts there before one of this step, some of its arcs have negative tokens; their sum over a cycle is never negative.

Source: Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and Linearity", ch. 2; SEMANTICS 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from planner.ir.actors.actor import ActorId
from planner.ir.collector import collector_paused
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan, Regst, RegstKind, Task, TaskKind
from planner.ir.protocols import CostModel
from simulator.network.crowded import crowded_links
from simulator.rules.prices import CheckedPrices, contention_left_out
from simulator.steady.arcs import ArcColumns, ArcKind, Ints, Reals, counted, interleaved, ints, plain
from simulator.steady.observed_order import Place, observed_orders

__all__ = ["ArcKind", "Ints", "MarkedGraph", "OrderPolicy", "Reals", "marked_graph"]


class OrderPolicy(Enum):
    """How the marked graph orders the acts on a stream that has no order (a tie-break policy)."""

    SIMULATED = "simulated"
    """The order of the simulated steady step: right for periods."""
    NONE = "none"
    """Only the acts of each task are in order: right for liveness, as such a stream never makes a ready act wait for one that is not."""


MANY_ACTS = 200_000
"""Of all ranks in a step: above it one rank per placement stands for all, whether or not ranks are equal."""
RANKS_LEFT_OUT = (
    "ranks of a placement differ (in prices, or in whom they send to), and one with the longest of their times and all of their messages stands "
    "for all: periods are upper bounds"
)
LINKS_LEFT_OUT = (
    "a contention-free bound: acts of different tasks meet on a link between nodes and share it (regista simulate); here each takes the price "
    "that it has alone"
)
"""With the orders of streams as they are, acts that take longer never shorten a step (SEMANTICS 4.3), so a period without sharing is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarkedGraph:
    """The header of the module defines nodes and arcs.  Nodes are numbered 0 .. n-1, the acts of one actor in a row; arcs 0 .. m-1.

    Shapes: node_* and duration_s [n];  src, dst, tokens, weight_s, kind, regst, block, into [m].

    node_task: place in plan.tasks.   node_rank: the smallest rank of those that meet in the act.   node_act: k, from 0.
    regst: place in plan.regsts, -1 for arcs of streams.   block: c of (2) for arcs back to the producer, else -1.
    into: for quota arcs the producer's first node, else dst.
    first: (task, rank) -> its first node; in a folded graph for the first rank of each placement only.
    folded: one rank per placement stands for all.
    chosen: streams whose order is that of the simulated steady step.
    left_out: what the constant durations do not say (simulator.rules.prices.contention_left_out), and RANKS_LEFT_OUT where it holds.
    """

    plan: Plan
    folded: bool
    chosen: tuple[str, ...]
    left_out: str
    first: Mapping[ActorId, int]
    node_task: Ints
    node_rank: Ints
    node_act: Ints
    duration_s: Reals
    src: Ints
    dst: Ints
    tokens: Ints
    weight_s: Reals
    kind: Ints
    regst: Ints
    block: Ints
    into: Ints

    @property
    def num_nodes(self) -> int:
        return len(self.duration_s)

    @property
    def num_arcs(self) -> int:
        return len(self.src)

    def task_of(self, node: int) -> Task:
        return self.plan.tasks[int(self.node_task[node])]

    def regst_of(self, arc: int) -> Regst | None:
        place = int(self.regst[arc])
        return self.plan.regsts[place] if place >= 0 else None

    def with_quotas(self, quotas: Mapping[str, int]) -> MarkedGraph:
        """The graph of ``plan.with_quotas(quotas)`` with the same stream orders; only the quota arcs (2) differ.

        A stream that chooses while it runs may choose otherwise at other quotas; build the graph anew to see that.

        Raises:
            InvalidPlan: a quota < 1, a Regst that the plan does not have, or state, which has one block by law.
        """
        for name, quota in quotas.items():
            resized = self.plan.regst.get(name)
            if resized is None or quota < 1 or (resized.kind is RegstKind.STATE and quota != 1):
                raise InvalidPlan(f"quota {quota} for regst {name}; it must be a Regst of the plan, quotas are >= 1, that of state is 1")
        plan = self.plan.with_quotas(quotas)
        arcs = self.kind == ArcKind.QUOTA
        dst, tokens = self.dst.copy(), self.tokens.copy()
        blocks_of, per_block, blocks = _rates(plan)
        regst = self.regst[arcs]
        ahead = self.block[arcs] + blocks_of[regst]
        dst[arcs] = self.into[arcs] + (ahead % blocks[regst]) * per_block[regst]
        tokens[arcs] = ahead // blocks[regst]
        return replace(self, plan=plan, dst=dst, tokens=tokens)


@collector_paused()
def marked_graph(
    plan: Plan, cost: CostModel, *, folded: bool | None = None, order_policy: OrderPolicy = OrderPolicy.SIMULATED
) -> MarkedGraph:
    """The timed marked graph of one steady Plan.

    Args:
        plan: a verified Plan.
        cost: seconds per act and message; asked once per task and rank.
        folded: one rank per placement stands for all.  None: if all ranks are equal (CheckedPrices.ranks_are_equal), or the step has more than
            MANY_ACTS.  Where they are not equal that gives the slowest rank's prices to all, so periods are upper bounds; it is then in left_out.
        order_policy: how acts are ordered on a stream that has no order.

    Raises:
        InvalidCluster: a price that is negative or not finite.   DeadLock, Unsupported: see observed_orders; only if a stream has no order.
    """
    prices = CheckedPrices(plan, cost)
    left_out = ""
    if folded is None:
        are_equal = prices.ranks_are_equal()
        folded = are_equal or sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks) > MANY_ACTS
        left_out = RANKS_LEFT_OUT if folded and not are_equal else ""
    return _Builder(plan, prices, folded, left_out).build(cost, order_policy)


def _rates(plan: Plan) -> tuple[Ints, Ints, Ints]:
    """Per Regst: quota, acts per block of the producer, blocks per step."""
    place_of = {regst.id: place for place, regst in enumerate(plan.regsts)}
    per_block, blocks = [1] * len(place_of), [1] * len(place_of)
    for task in plan.tasks:
        for port in task.produces:
            place = place_of[port.regst]
            per_block[place], blocks[place] = port.acts_per_block, task.acts // port.acts_per_block
    return ints([regst.quota for regst in plan.regsts]), ints(per_block), ints(blocks)


class _Builder:
    """Builds one graph: Python loops over actors and pairs of actors, array operations over acts."""

    def __init__(self, plan: Plan, prices: CheckedPrices, folded: bool, left_out: str) -> None:
        self.plan, self.prices, self.folded, self.left_out = plan, prices, folded, left_out
        self.first: dict[ActorId, int] = {}
        self.starts: dict[str, list[int]] = {}
        """Task -> first node on each of its ranks."""
        self.nodes: list[tuple[int, int, int, float]] = []
        """Place of the task, rank, acts, duration."""

    def build(self, cost: CostModel, order_policy: OrderPolicy) -> MarkedGraph:
        self._add_nodes()
        rings, without_order = self._rings(order_policy)
        orders = observed_orders(self.plan, cost, without_order, folded=self.folded) if without_order else {}
        arcs = [self._regsts(), rings, *(self._chain(chain) for chain in orders.values())]
        return self._freeze(
            tuple(without_order), self._left_out(cost), ArcColumns(*(np.concatenate(column) for column in zip(*arcs, strict=True)))
        )

    def _left_out(self, cost: CostModel) -> str:
        """Ranks that differ; and of contention: computing beside communication, and acts that meet on a link."""
        links = LINKS_LEFT_OUT if crowded_links(self.plan, cost) else ""
        return "; ".join(text for text in (self.left_out, contention_left_out(cost), links) if text)

    def ranks(self, task: Task) -> tuple[int, ...]:
        ranks = self.plan.ranks_of(task)
        return ranks[:1] if self.folded else ranks

    def _add_nodes(self) -> None:
        """(5): one row of nodes for the ranks that meet."""
        size = 0
        for place, task in enumerate(self.plan.tasks):
            starts = self.starts[task.id] = []
            for rank in self.ranks(task):
                group = self.plan.ranks_of(task) if self.folded else self.plan.peers(task, rank)
                here = self.first.get((task.id, group[0]))
                if here is None:
                    here = self.first[task.id, group[0]] = size
                    self.nodes.append((place, group[0], task.acts, self.prices.meeting_s(task, group)))
                    size += task.acts
                self.first[task.id, rank] = here
                starts.append(here)

    def _regsts(self) -> ArcColumns:
        """(1), (2) and (3): for each pair of a producer and a consumer of a Regst, the arcs forward, one per block, and then those back."""
        plan, starts = self.plan, self.starts
        producer_nodes: list[int] = []
        consumer_nodes: list[int] = []
        exchanges: list[tuple[int, int, int]] = []  # place of the Regst, pairs of actors, the consumer's acts per block
        routed: list[tuple[int, list[float], list[float]]] = []  # first pair of actors, latencies of ready and of ack
        for place, regst in enumerate(plan.regsts):
            if regst.producer is None:
                continue
            producer = plan.task[regst.producer]
            for consumer, port in plan.consumers[regst.id]:
                if producer.kind is TaskKind.TRANSFER:
                    here, far, ready_s, ack_s = self._routed(producer, consumer)
                    routed.append((len(producer_nodes), ready_s, ack_s))
                else:
                    here, far = starts[producer.id], starts[consumer.id]
                producer_nodes += here
                consumer_nodes += far
                exchanges.append((place, len(here), port.acts_per_block))
        there_s, back_s = np.zeros(len(producer_nodes)), np.zeros(len(producer_nodes))
        for pair, ready_s, ack_s in routed:
            there_s[pair : pair + len(ready_s)], back_s[pair : pair + len(ack_s)] = ready_s, ack_s
        places, pairs, reads = ints([x for exchange in exchanges for x in exchange]).reshape(-1, 3).T
        quota, per_block, blocks = _rates(plan)
        full_first = np.array([regst.kind is RegstKind.STATE for regst in plan.regsts], dtype=np.int64)
        of = np.repeat(places, pairs)
        link, number = counted(blocks[of])
        at, src, dst, read = of[link], ints(producer_nodes)[link], ints(consumer_nodes)[link], np.repeat(reads, pairs)[link]
        wrote, n, state = per_block[at], blocks[at], full_first[at]
        due = number + state
        # A block of state that C gives back is the one that P's act of the same number overwrites: quota 1, one block ahead.
        ahead = number + np.where(state == 1, 0, quota[at])
        start = dst + (due % n) * read
        refill = src + (ahead % n) * wrote
        there_kind = np.where(state == 1, ArcKind.STATE, ArcKind.DATA)
        back_kind = np.where(state == 1, ArcKind.STATE, ArcKind.QUOTA)
        ready = ArcColumns(src + (number + 1) * wrote - 1, start, due // n, there_s[link], there_kind, at, np.full(len(n), -1), start)
        into = np.where(state == 1, refill, src)
        free = ArcColumns(dst + (number + 1) * read - 1, refill, ahead // n, back_s[link], back_kind, at, number, into)
        return interleaved(ready, free, n)

    def _routed(self, producer: Task, consumer: Task) -> tuple[list[int], list[int], list[float], list[float]]:
        """Of a TRANSFER: producers' first nodes, consumers' first nodes, latencies of ready and of ack, per pair of actors with messages."""
        pairs = [(src, dst) for src, targets in self.prices.routes(producer).items() for dst in targets]
        there_s = [self.prices.message_s(src, dst) for src, dst in pairs]
        back_s = [self.prices.message_s(dst, src) for src, dst in pairs]
        if self.folded:
            return self.starts[producer.id], self.starts[consumer.id], [max(there_s)], [max(back_s)]
        return [self.first[producer.id, src] for src, _ in pairs], [self.first[consumer.id, dst] for _, dst in pairs], there_s, back_s

    def _rings(self, order_policy: OrderPolicy) -> tuple[ArcColumns, Sequence[str]]:
        """(4) of streams that have an order, one ring of arcs per stream and rank; and the streams whose order a simulation must show."""
        members: dict[str, list[Task]] = {}
        for task in self.plan.tasks:
            members.setdefault(task.stream, []).append(task)
        without_order: list[str] = []
        starts: list[int] = []
        sizes: list[int] = []
        kinds: list[int] = []
        ordered_rings: list[tuple[int, list[int]]] = []  # number of the ring, its nodes
        for stream, tasks in members.items():
            order = self.plan.stream[stream].order
            if order:
                for nodes in self._ordered(order, tasks):
                    ordered_rings.append((len(starts), nodes))
                    starts.append(0)
                    sizes.append(len(nodes))
                    kinds.append(ArcKind.STREAM)
                continue
            if len(tasks) > 1 and order_policy is OrderPolicy.SIMULATED:
                without_order.append(stream)
                continue
            for at in range(len(self.starts[tasks[0].id])):
                for task in tasks:
                    starts.append(self.starts[task.id][at])
                    sizes.append(task.acts)
                    kinds.append(ArcKind.TASK)
        size = ints(sizes)
        ring, place_in_ring = counted(size)
        src = ints(starts)[ring] + place_in_ring
        begin = np.cumsum(size) - size
        for number, nodes in ordered_rings:
            src[begin[number] : begin[number] + len(nodes)] = nodes
        closing = place_in_ring == size[ring] - 1
        dst = np.roll(src, -1)
        dst[closing] = src[begin[ring[closing]]]
        return plain(src, dst, closing.astype(np.int64), ints(kinds)[ring]), without_order

    def _ordered(self, order: tuple[str, ...], tasks: Sequence[Task]) -> list[list[int]]:
        """The nodes of one step of a stream, per rank."""
        done = dict.fromkeys((task.id for task in tasks), 0)
        acts = []
        for task in order:
            acts.append(done[task])
            done[task] += 1
        return [[self.starts[task][at] + act for task, act in zip(order, acts, strict=True)] for at in range(len(self.starts[tasks[0].id]))]

    def _chain(self, chain: Sequence[Place]) -> ArcColumns:
        """(4) as observed: which act follows which, and in which step."""
        nodes = ints([self.first[actor] + act for actor, act, _ in chain])
        step = ints([step for *_, step in chain])
        tokens = step - np.roll(step, 1) + (np.arange(len(nodes)) == 0)
        return plain(np.roll(nodes, 1), nodes, tokens, np.full(len(nodes), ArcKind.CHOICE))

    def _freeze(self, chosen: tuple[str, ...], left_out: str, arcs: ArcColumns) -> MarkedGraph:
        places, ranks, acts, times_s = zip(*self.nodes, strict=True)
        row, act = counted(ints(acts))
        duration_s = np.array(times_s, dtype=np.float64)[row]
        return MarkedGraph(
            plan=self.plan,
            folded=self.folded,
            chosen=chosen,
            left_out=left_out,
            first=self.first,
            node_task=ints(places)[row],
            node_rank=ints(ranks)[row],
            node_act=act,
            duration_s=duration_s,
            src=arcs.src,
            dst=arcs.dst,
            tokens=arcs.tokens,
            weight_s=duration_s[arcs.src] + arcs.latency_s,
            kind=arcs.kind,
            regst=arcs.regst,
            block=arcs.block,
            into=arcs.into,
        )
