"""Ranks that cannot be told apart: one of each class is simulated, the others are copies (SEMANTICS 3.9).

Two ranks are of one class when they stand in the same placements, every task costs the same on both, they meet ranks of the same classes in
every collective, and send to and receive from ranks of the same classes with the same latencies.  Their actors then see equal messages at
equal times, by induction over the instants of the game, so they act at equal times and hold equal bytes.  The classes are the coarsest
such partition: start with what a rank is by itself, and split a class while its members communicate with ranks of different classes.

Where acts share links (simulator.network.act_flows), flows and links have classes too, split along with the ranks: flows of a class are of one
task, meet and slow ranks of the same classes, and have equally many links of each class with each share; links of a class have equally many flows of
each class with each share; ranks of a class act in and are slowed by flows of the same classes.  flow_tables.py says why speeds are equal then.

    stage 0: ranks 0 1 2 3 --S(0) to S(0)--> stage 1: ranks 4 5 6 7        rank 2 slower
             a a b a                                  c c d c              four classes; without the slow rank two

Source: colour refinement (the coarsest equitable partition), Paige & Tarjan 1987, "Three partition refinement algorithms"; sets instead of
multisets suffice, as actors take the latest of what they wait for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from planner.ir.actors.routes import routes
from planner.ir.plan import Plan, Task, TaskKind
from planner.ir.protocols import CostModel
from simulator.network.act_flows import ActFlow, Contention, Together
from simulator.rules.prices import checked_s, equality_of

__all__ = ["ClassMessage", "FlowClasses", "RankClasses", "rank_classes"]


@dataclass(frozen=True, slots=True)
class ClassMessage:
    """A class of ranks sends to a class of ranks: seconds of the ready message, and of the ack that comes back."""

    src: int
    dst: int
    ready_s: float
    ack_s: float


@dataclass(frozen=True, slots=True)
class FlowClasses:
    """Classes of equal flows and of equal links, both numbered.

    of: (task, rank class) -> flow.   links: flow -> its link classes.   talking: flow -> rank classes whose computing it slows.
    users: link class -> (flow, share, how many such flows are on each link of the class).
    """

    of: Mapping[tuple[str, int], int]
    links: tuple[tuple[int, ...], ...]
    talking: tuple[tuple[int, ...], ...]
    users: tuple[tuple[tuple[int, float, int], ...], ...]


@dataclass(frozen=True, slots=True)
class RankClasses:
    """The classes, and the prices and messages between them that the arrays need.

    of: class of each rank.   members: placement -> class -> positions in the placement, classes in order of their first rank.
    price_s: (task, class) -> seconds of one act, without peers.   messages: TRANSFER -> who sends to whom.
    groups: BOXING that is not local -> class -> classes that meet, itself included.   flows: None: acts do not feel each other.
    """

    of: tuple[int, ...]
    members: Mapping[str, Mapping[int, tuple[int, ...]]]
    price_s: Mapping[tuple[str, int], float]
    messages: Mapping[str, tuple[ClassMessage, ...]]
    groups: Mapping[str, Mapping[int, tuple[int, ...]]]
    flows: FlowClasses | None

    @property
    def num_classes(self) -> int:
        return max(self.of) + 1


_Pairs = tuple[tuple[int, int, float, float], ...]
"""(sender, receiver, seconds of the ready message, seconds of the ack)"""
_Lines = tuple[tuple[int, ...], ...]
"""Groups of ranks that meet."""
_Pattern = TypeVar("_Pattern")


@dataclass(frozen=True, slots=True)
class _Patterns(Generic[_Pattern]):
    """Which ranks communicate with which in each task.  Tasks with the same pattern share one entry.   number: task -> number of its pattern."""

    patterns: tuple[_Pattern, ...]
    number: Mapping[str, int]


def rank_classes(plan: Plan, cost: CostModel, *, fold: bool, contention: Contention | None = None) -> RankClasses:
    """Price every task on every rank and every message between ranks, and fold equal ranks.

    Args:
        fold: False: every rank is a class of its own.
        contention: what acts feel of each other; None: nothing.

    Raises:
        InvalidCluster: a price that is negative or not finite.
    """
    is_equal = equality_of(cost)
    prices = {task.id: _prices(plan, cost, task, is_equal(plan, task)) for task in plan.tasks}
    pairs = _all_pairs(plan, cost)
    lines = _all_lines(plan)
    marks = tuple(_marks(plan, prices) if fold else range(plan.num_ranks))
    of, flows = _refined(marks, pairs.patterns, lines.patterns, [*contention.flows.items()] if contention is not None else [])
    members: dict[str, dict[int, list[int]]] = {}
    for placement in plan.placements:
        positions_of = members[placement.id] = {}
        for position, rank in enumerate(placement.ranks):
            positions_of.setdefault(of[rank], []).append(position)
    folded = {name: {c: tuple(positions) for c, positions in positions_of.items()} for name, positions_of in members.items()}
    price_s = {(task.id, c): prices[task.id][positions[0]] for task in plan.tasks for c, positions in folded[task.placement].items()}
    messages = [tuple(sorted({ClassMessage(of[s], of[d], a, b) for s, d, a, b in p}, key=_message_key)) for p in pairs.patterns]
    groups = [_met(g, of) for g in lines.patterns]
    return RankClasses(
        of=of,
        members=folded,
        price_s=price_s,
        messages={t: messages[n] for t, n in pairs.number.items()},
        groups={t: groups[n] for t, n in lines.number.items()},
        flows=flows if contention is not None else None,
    )


def _prices(plan: Plan, cost: CostModel, task: Task, is_equal: bool) -> list[float]:
    """Seconds of an act on each rank of the placement.   is_equal: on all of them."""
    ranks = plan.ranks_of(task)
    if is_equal:
        prices_s = [float(cost.act_s(plan, task, ranks[0]))] * len(ranks)
    else:
        prices_s = [float(cost.act_s(plan, task, rank)) for rank in ranks]
    if not (min(prices_s) >= 0 and max(prices_s) < math.inf and not math.isnan(sum(prices_s))):
        for rank, price_s in zip(ranks, prices_s, strict=True):
            checked_s(price_s, f"an act of {task.id} on rank {rank}")
    return prices_s


def _met(lines: Sequence[Sequence[int]], of: Sequence[int]) -> dict[int, tuple[int, ...]]:
    members_of = {}
    for line in lines:
        together = tuple(sorted({of[rank] for rank in line}))
        members_of.update(dict.fromkeys(together, together))
    return members_of


def _message_key(hop: ClassMessage) -> tuple[int, int, float, float]:
    return hop.src, hop.dst, hop.ready_s, hop.ack_s


def _all_pairs(plan: Plan, cost: CostModel) -> _Patterns[_Pairs]:
    """The patterns of the TRANSFERs; equal ones between the same placements are computed once."""
    by_position: dict[Hashable, tuple[tuple[int, int], ...]] = {}
    place_of_pattern: dict[Hashable, int] = {}
    patterns: list[_Pairs] = []
    latency_s: dict[tuple[int, int], float] = {}

    def message_s(src: int, dst: int) -> float:
        if src == dst:
            return 0.0
        if (src, dst) not in latency_s:
            latency_s[src, dst] = checked_s(cost.message_s(src, dst), f"a message from rank {src} to rank {dst}")
        return latency_s[src, dst]

    number: dict[str, int] = {}
    for task in plan.tasks:
        if task.kind is not TaskKind.TRANSFER:
            continue
        there = _target(plan, task)
        key = _pattern(plan, task, there)
        src, dst = plan.placement[task.placement], plan.placement[there]
        heard = any(plan.consumers[port.regst] for port in task.produces)  # where nobody reads, no message travels
        if key not in by_position:
            place_of = {rank: position for position, rank in enumerate(dst.ranks)}
            table = routes(plan, task)
            by_position[key] = tuple((i, place_of[target]) for i, rank in enumerate(src.ranks) for target in table[rank])
        ends = by_position[key], src.id, dst.id, heard
        if ends not in place_of_pattern:
            place_of_pattern[ends] = len(patterns)
            joined = [(src.ranks[i], dst.ranks[j]) for i, j in by_position[key]]
            patterns.append(tuple((s, d, message_s(s, d), message_s(d, s)) if heard else (s, d, 0.0, 0.0) for s, d in joined))
        number[task.id] = place_of_pattern[ends]
    return _Patterns(tuple(patterns), number)


def _target(plan: Plan, task: Task) -> str:
    """The placement that a TRANSFER writes to; a verified Plan has exactly one."""
    return plan.regst[task.writes[0].regst].placement


def _pattern(plan: Plan, task: Task, there: str) -> Hashable:
    """Everything that routes() depends on except the numbers of the ranks."""
    moves = []
    for read, write in zip(task.reads, task.writes, strict=True):
        src = plan.regst[read.regst].tensors[read.index]
        dst = plan.regst[write.regst].tensors[write.index]
        moves.append((src.shape, src.sbp, dst.shape, dst.sbp))
    return plan.placement[task.placement].mesh, plan.placement[there].mesh, tuple(moves)


def _all_lines(plan: Plan) -> _Patterns[_Lines]:
    """The patterns of the collectives: tasks of one placement along one axis share one."""
    place_of_axis: dict[tuple[str, int], int] = {}
    number: dict[str, int] = {}
    for task in plan.tasks:
        if (axis := task.meeting_axis) is not None:
            number[task.id] = place_of_axis.setdefault((task.placement, axis), len(place_of_axis))
    return _Patterns(tuple(plan.placement[placement].lines(axis) for placement, axis in place_of_axis), number)


def _marks(plan: Plan, prices: Mapping[str, Sequence[float]]) -> list[Hashable]:
    """What each rank is by itself: its placements, and the prices in which ranks of a task differ."""
    marks: list[list[Hashable]] = [[] for _ in range(plan.num_ranks)]
    for placement in plan.placements:
        for rank in placement.ranks:
            marks[rank].append(placement.id)
    for task in plan.tasks:
        if len(set(prices[task.id])) > 1:
            for rank, price_s in zip(plan.placement[task.placement].ranks, prices[task.id], strict=True):
                marks[rank].append((task.id, price_s))
    return [tuple(mark) for mark in marks]


def _refined(
    marks: Sequence[Hashable], pairs: Sequence[_Pairs], lines: Sequence[_Lines], flows: Sequence[tuple[Together, ActFlow]]
) -> tuple[tuple[int, ...], FlowClasses]:
    """The coarsest classes of ranks, and of flows and links, that are no coarser than the marks."""
    of = _numbered(marks)
    flow_of = _numbered([task for (task, _), _ in flows])
    users: dict[str, list[tuple[int, float]]] = {}
    for f, (_, flow) in enumerate(flows):
        for link, share in flow.shares.items():
            users.setdefault(link, []).append((f, share))
    link_of = dict.fromkeys(users, 0)
    while True:
        around: list[set[Hashable]] = [set() for _ in marks]
        for number, joined in enumerate(pairs):
            for src, dst, ready_s, ack_s in joined:
                around[src].add((0, number, of[dst], ready_s, ack_s))
                around[dst].add((1, number, of[src], ready_s, ack_s))
        for number, group in enumerate(lines):
            for line in group:
                met = frozenset(of[rank] for rank in line)
                for rank in line:
                    around[rank].add((2, number, met))
        for f, ((_, ranks), flow) in enumerate(flows):
            for rank in ranks:
                around[rank].add((3, flow_of[f]))
            for rank in flow.talking:
                around[rank].add((4, flow_of[f]))
        finer = _numbered([(old, frozenset(seen)) for old, seen in zip(of, around, strict=True)])
        finer_flows = _numbered(
            [
                (
                    flow_of[f],
                    frozenset(of[rank] for rank in ranks),
                    frozenset(of[rank] for rank in flow.talking),
                    frozenset(Counter((link_of[link], share) for link, share in flow.shares.items()).items()),
                )
                for f, ((_, ranks), flow) in enumerate(flows)
            ]
        )
        on_links = {link: frozenset(Counter((flow_of[f], share) for f, share in here).items()) for link, here in users.items()}
        finer_links = dict(zip(users, _numbered([(link_of[link], on_links[link]) for link in users]), strict=True))
        same = all(
            max(new, default=0) == max(old, default=0)
            for new, old in ((finer, of), (finer_flows, flow_of), (finer_links.values(), link_of.values()))
        )
        if same:
            return of, _flow_classes(of, flows, flow_of, on_links)
        of, flow_of, link_of = finer, finer_flows, finer_links


def _flow_classes(
    of: Sequence[int],
    flows: Sequence[tuple[Together, ActFlow]],
    flow_of: Sequence[int],
    on_links: Mapping[str, frozenset[tuple[tuple[int, float], int]]],
) -> FlowClasses:
    """The classes by one member of each; of links that the same flows are on with the same shares (a nic out and in), one says it all."""
    first = {flow_of[f]: flow for f, flow in reversed(list(enumerate(flows)))}
    user_rows = {link: tuple(sorted((f, share, copies) for (f, share), copies in here)) for link, here in on_links.items()}
    number = {row: place for place, row in enumerate(dict.fromkeys(user_rows.values()))}
    return FlowClasses(
        of={(task, of[rank]): flow_of[f] for f, ((task, ranks), _) in enumerate(flows) for rank in ranks},
        links=tuple(tuple(sorted({number[user_rows[link]] for link in first[f][1].shares})) for f in range(len(first))),
        talking=tuple(tuple(sorted({of[rank] for rank in first[f][1].talking})) for f in range(len(first))),
        users=tuple(number),
    )


def _numbered(marks: Sequence[Hashable]) -> tuple[int, ...]:
    """Equal marks get equal numbers, in order of appearance."""
    number: dict[Hashable, int] = {}
    return tuple(number.setdefault(mark, len(number)) for mark in marks)
