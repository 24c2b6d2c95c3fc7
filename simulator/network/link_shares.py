"""What an act of a Plan takes of the links of its cluster: the share of each link's bandwidth that is in use while the act runs alone.

(1) share of link l = bytes of the act over l / (bandwidth of l x duration of the act alone), at most 1                       -> link_shares()

A collective goes around the ring of its ranks (an all-to-all from each to each), a transfer from each sender to the receivers of its pieces.
The price gives the duration, the route gives the links.  A price that already includes latency, or lines of an axis that share a nic, makes the
duration longer and the share smaller; so lines that were priced together fit on the link together and are not charged twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from planner.ir.actors.routes import Piece, pieces
from planner.ir.collective import Collective, sent_bytes
from planner.ir.plan import Boxing, PlacedTensor, Placement, Plan, Task, TaskKind
from planner.ir.sbp import Split
from simulator.network.fabric import Machine

__all__ = ["acting_together", "link_shares", "point_to_point"]

PointToPoint = tuple[int, int, float]
"""(sender, receiver, bytes)"""


def acting_together(plan: Plan, task: Task) -> Iterator[tuple[int, ...]]:
    """The ranks of a communicating task that act together: lines of a collective's axis, or each sender by itself; of others none."""
    if task.kind is TaskKind.TRANSFER or (isinstance(task.body, Boxing) and task.body.collective is not Collective.LOCAL):
        yield from dict.fromkeys(plan.peers(task, rank) for rank in plan.ranks_of(task))


def point_to_point(plan: Plan, task: Task, ranks: tuple[int, ...]) -> tuple[PointToPoint, ...]:
    """Who sends how much to whom in one act: of a collective by ``ranks``, or of a transfer by the one sender in it; else nobody."""
    if isinstance(task.body, Boxing) and task.body.collective is not Collective.LOCAL:
        return tuple(_around(plan, task, task.body, ranks))
    if task.kind is TaskKind.TRANSFER:
        return tuple(_across(plan, task, ranks[0]))
    return ()


def _around(plan: Plan, task: Task, body: Boxing, ranks: tuple[int, ...]) -> Iterator[PointToPoint]:
    placement, p = plan.placement[task.placement], len(ranks)
    total_bytes = 0
    for read in task.reads:
        tensor = plan.regst[read.regst].tensors[read.index]
        total_bytes += tensor.local_bytes(placement) * (placement.mesh[body.axis] if isinstance(body.src[body.axis], Split) else 1)
    sent = sent_bytes(body.collective, total_bytes, p)
    for i, src in enumerate(ranks):
        if body.collective is Collective.ALL_TO_ALL:
            yield from ((src, dst, sent / (p - 1)) for dst in ranks if dst != src)
        elif p > 1:
            yield src, ranks[(i + 1) % p], sent


def _across(plan: Plan, task: Task, sender: int) -> Iterator[PointToPoint]:
    for read, write in zip(task.reads, task.writes, strict=True):
        target = plan.regst[write.regst]
        source, arrival = plan.regst[read.regst].tensors[read.index], target.tensors[write.index]
        for piece in _by_sender(source, plan.placement[task.placement], arrival, plan.placement[target.placement]).get(sender, ()):
            yield sender, piece.dst_rank, float(piece.numel * source.dtype.size_bytes)


@lru_cache(maxsize=64)
def _by_sender(source: PlacedTensor, here: Placement, arrival: PlacedTensor, there: Placement) -> Mapping[int, tuple[Piece, ...]]:
    """The pieces that each rank sends, worked out once for all senders."""
    sent: dict[int, list[Piece]] = {}
    for piece in pieces(source, here, arrival, there):
        sent.setdefault(piece.src_rank, []).append(piece)
    return {rank: tuple(found) for rank, found in sent.items()}


def link_shares(plan: Plan, task: Task, ranks: tuple[int, ...], duration_s: float, machine: Machine) -> Mapping[str, float]:
    """(1) Link of ``machine`` -> share; empty for an act that sends nothing or takes no time.

    Args:
        ranks: as in ``point_to_point``.   duration_s: of the act alone, as the cost model prices it.
    """
    over: dict[str, float] = {}
    for src, dst, size_bytes in point_to_point(plan, task, ranks) if duration_s > 0 else ():
        for link in machine.links_between(src, dst):
            over[link] = over.get(link, 0.0) + size_bytes
    bandwidth = machine.bandwidth_bytes_per_s
    return {link: min(size / (bandwidth[link] * duration_s), 1.0) for link, size in over.items() if size}
