"""Communicators of a Plan: the groups of ranks whose communications keep one order, and which launch each communication is.

    stream, axis        line of ranks along the axis          a communicator of collectives
    stream              all ranks that its transfers join     a communicator of messages from rank to rank, where those are two-sided (NCCL)

Two streams never share one: their communications may be on their way at the same time.  Who makes communicators makes them in the order of
``communicators``, on every rank: making one is a meeting, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.ir.actors.actor import ActorId
from planner.ir.actors.routes import routes
from planner.ir.plan import Plan, TaskKind

__all__ = ["Communicator", "communicators", "joined_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """ranks: in axis order.   axis: of the stream's mesh; None: it carries messages from rank to rank."""

    stream: str
    axis: int | None
    ranks: tuple[int, ...]


def communicators(plan: Plan) -> tuple[Communicator, ...]:
    """All communicators of a Plan, in the one order in which every rank makes those that it belongs to."""
    made: dict[Communicator, None] = {}
    for task in plan.tasks:
        axis = task.meeting_axis
        if axis is not None:
            lines = plan.placement[task.placement].lines(axis)
            made |= dict.fromkeys(Communicator(stream=task.stream, axis=axis, ranks=ranks) for ranks in lines if len(ranks) > 1)
    joined: dict[str, set[int]] = {}
    for task in plan.tasks:
        if task.kind is TaskKind.TRANSFER:
            crossing = {rank for src, targets in routes(plan, task).items() for dst in targets if dst != src for rank in (src, dst)}
            joined.setdefault(task.stream, set()).update(crossing)
    between = [Communicator(stream=stream, axis=None, ranks=tuple(sorted(ranks))) for stream, ranks in joined.items() if ranks]
    return (*made, *between)


def joined_ranks(plan: Plan) -> Mapping[ActorId, tuple[int, ...]]:
    """Actor -> the ranks that one act of it joins: a collective's in axis order, a transfer's sender and those that it sends to.

    Actors that need no other rank are left out.
    """
    joined: dict[ActorId, tuple[int, ...]] = {}
    for task in plan.tasks:
        if task.kind is TaskKind.TRANSFER:
            for src, targets in routes(plan, task).items():
                others = tuple(dst for dst in targets if dst != src)
                if others:
                    joined[task.id, src] = (src, *others)
        elif task.meeting_axis is not None:
            for rank in plan.ranks_of(task):
                if len(ranks := plan.peers(task, rank)) > 1:
                    joined[task.id, rank] = ranks
    return joined
