"""Collectives (SEMANTICS 3.10): the ranks of one axis group meet, start together at the latest arrival, and end together.

    rank 0   |chosen . . . waits . . .|== all_reduce ==|      both streams are held from their own arrival on
    rank 1              |chosen       |== all_reduce ==|

Every rank that has chosen the act holds its stream, so ranks that list their collectives in different orders wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from planner.ir.actors.actor import Actor, ActorId, StreamGate
from planner.ir.plan import Plan

__all__ = ["Meeting", "explain_meetings"]


@dataclass(slots=True)
class Meeting:
    """One act of a collective of one axis group; ``complete`` fires when all of ``group`` are present."""

    task: str
    number: int
    group: tuple[int, ...]
    complete: simpy.Event
    present: list[int] = field(default_factory=list)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.group if rank not in self.present)


def explain_meetings(
    plan: Plan, actors: Mapping[ActorId, Actor], gates: Mapping[tuple[str, int], StreamGate], meetings: Sequence[Meeting]
) -> str:
    """Who waits in which collective for whom, followed until the story bites its tail."""
    there = {(meeting.task, rank): meeting for meeting in meetings for rank in meeting.present}
    current: ActorId = (meetings[0].task, meetings[0].present[0])
    path: dict[ActorId, str] = {}
    while current not in path:
        blocker, reason = _blocked_by(actors[current], gates, there)
        path[current] = f"{current[0]} (rank {current[1]}) {reason}"
        if blocker is None:
            break
        current = blocker
    scenes = "; ".join(f"{m.task} act {m.number}: ranks {sorted(m.present)} wait, ranks {sorted(m.missing)} never come" for m in meetings)
    return (
        f"a collective never completes (SEMANTICS 3.10): {scenes}; because {'; '.join(path.values())}; "
        "the way out: list the collectives of one group in the same order on all its ranks, on a stream with an order"
    )


def _blocked_by(actor: Actor, gates: Mapping[tuple[str, int], StreamGate], there: Mapping[ActorId, Meeting]) -> tuple[ActorId | None, str]:
    if meeting := there.get(actor.id):
        rank = meeting.missing[0]
        return (actor.task.id, rank), f"waits in act {meeting.number} for rank {rank}"
    for out in actor.outputs.values():
        if not out.free:
            holder = min(out.acked, key=lambda sink: out.acked[sink])
            return holder, f"waits until {holder[0]} (rank {holder[1]}) frees a block of regst {out.regst} (quota {out.quota})"
    for incoming in actor.inputs.values():
        if not incoming.readable:
            source = min(incoming.received, key=lambda s: incoming.received[s])
            return source, f"waits for data of regst {incoming.regst} from {source[0]} (rank {source[1]})"
    gate = gates[actor.task.stream, actor.rank]
    if gate.running is not None and gate.running != actor.id:
        return gate.running, f"waits for stream {actor.task.stream}, held by {gate.running[0]}"
    if gate.order:
        turn = gate.order[gate.position % len(gate.order)]
        if turn != actor.task.id:
            return (turn, actor.rank), f"waits for its turn after {turn} on stream {actor.task.stream}"
    return None, "waits for an act that never ends"
