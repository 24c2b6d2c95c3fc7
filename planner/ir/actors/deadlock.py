"""The story of a dead-lock: who waits for whom, followed until an actor stands there for the second time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from planner.ir.actors.actor import Actor, ActorId, StreamGate
from planner.ir.plan import Plan, RegstKind

__all__ = ["explain_meetings", "explain_wait"]


class Incomplete(Protocol):
    """A collective that some of its ranks have reached (planner.ir.actors.game.Meeting)."""

    task: str
    number: int
    group: tuple[int, ...]
    present: list[Actor]


_Gates = Mapping[tuple[str, int], StreamGate]


def explain_wait(plan: Plan, actors: Mapping[ActorId, Actor], gates: _Gates) -> str:
    """The cycle of waits among the actors that are not done, and the quota that would break it."""
    current = next(actor for actor in actors.values() if not actor.done)
    path: list[tuple[ActorId, str, str | None]] = []
    seen: dict[ActorId, int] = {}
    while current.id not in seen:
        seen[current.id] = len(path)
        blocker, reason, regst = _blocked_by(current, gates, {})
        path.append((current.id, reason, regst))
        if blocker is None:
            break
        current = actors[blocker]
    cycle = path[seen.get(current.id, 0) :]
    # State is updated in place: it has one block by law.
    full = [regst for _, _, regst in cycle if regst is not None and plan.regst[regst].kind is not RegstKind.STATE]
    story = "; ".join(f"{_name(actor)} {reason}" for actor, reason, _ in cycle)
    # Among the full Regsts on the cycle, the cheapest one to enlarge is the way out that costs least memory.
    if full:
        cheapest = min(full, key=lambda r: plan.block_bytes(plan.regst[r]))
        way_out = f"raise the quota of regst {cheapest} from {plan.regst[cheapest].quota} to {plan.regst[cheapest].quota + 1}"
    else:
        way_out = (
            "no quota is on the cycle, so the stream orders or the edges themselves contradict each other: in a Plan that you wrote or changed, "
            "put one of these tasks at another place of its stream's order; a Plan that 'regista plan' wrote is its fault: please report it"
        )
    return f"the plan is not live (SEMANTICS 4.1), these actors wait for each other for ever: {story}; the way out: {way_out}"


def explain_meetings(actors: Mapping[ActorId, Actor], gates: _Gates, meetings: Sequence[Incomplete]) -> str:
    """Which collectives wait for which ranks, and what these ranks wait for."""
    there = {actor.id: meeting for meeting in meetings for actor in meeting.present}
    current = meetings[0].present[0].id
    path: dict[ActorId, str] = {}
    while current not in path:
        blocker, reason, _ = _blocked_by(actors[current], gates, there)
        path[current] = f"{_name(current)} {reason}"
        if blocker is None:
            break
        current = blocker
    scenes = "; ".join(
        f"{m.task} act {m.number}: ranks {sorted(a.rank for a in m.present)} wait, ranks {sorted(_missing(m))} never come" for m in meetings
    )
    return (
        f"a collective never completes (SEMANTICS 3.10): {scenes}; because {'; '.join(path.values())}; "
        "the way out: list the collectives of one group in the same order on all its ranks, on a stream with an order"
    )


def _missing(meeting: Incomplete) -> tuple[int, ...]:
    present = {actor.rank for actor in meeting.present}
    return tuple(rank for rank in meeting.group if rank not in present)


def _name(actor: ActorId) -> str:
    task, rank = actor
    return task if rank < 0 else f"{task} (rank {rank})"


def _blocked_by(actor: Actor, gates: _Gates, there: Mapping[ActorId, Incomplete]) -> tuple[ActorId | None, str, str | None]:
    """Whom this actor waits for, why, and the full Regst if that is the reason.  there: who waits in which collective."""
    if meeting := there.get(actor.id):
        rank = _missing(meeting)[0]
        return (actor.task.id, rank), f"waits in act {meeting.number} for rank {rank}", None
    for out in actor.outputs.values():
        if not out.free:
            holder = min(out.acked, key=lambda sink: out.acked[sink])
            return holder, f"waits until {_name(holder)} frees a block of regst {out.regst} (quota {out.quota})", out.regst
    for incoming in actor.inputs.values():
        if not incoming.readable:
            source = min(incoming.received, key=lambda s: incoming.received[s])
            return source, f"waits for data of regst {incoming.regst} from {_name(source)}", None
    gate = gates[actor.task.stream, actor.rank]
    if gate.running in there and gate.running is not None and gate.running != actor.id:
        return gate.running, f"waits for stream {actor.task.stream}, held by {gate.running[0]}", None
    if gate.order and actor.acts_begun < actor.total_acts:
        turn = gate.order[gate.position % len(gate.order)]
        if turn != actor.task.id:
            return (turn, actor.rank), f"waits for its turn after {turn} on stream {actor.task.stream}", None
    return None, "waits for an act that never ends", None
