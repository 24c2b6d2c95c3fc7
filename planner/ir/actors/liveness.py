"""Liveness (SEMANTICS 4.1) by playing the token game, and the story of a dead-lock when there is one.

Why playing proves it.  Each Regst has one producer, messages are first-in first-out, and an act runs to its end once begun, so the net is
persistent: whatever may fire stays fireable until it fires.  All maximal firing orders then fire the same acts.  If one order completes a
step, every order does; and after a step all counters stand as before it, so every later step completes too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from planner.ir.actors.actor import Actor, ActorId, Message, StreamGate, build_actors
from planner.ir.errors import DeadLock
from planner.ir.plan import Plan, RegstKind, Task

__all__ = ["Firing", "Observer", "explain_wait", "play"]


@dataclass(frozen=True, slots=True)
class Firing:
    """One act of the folded game."""

    task: str
    act: int
    start_s: float
    end_s: float


class Observer:
    """Told of what happens in a game; does nothing by itself."""

    def began(self, actor: Actor) -> None:
        """An act begins; its blocks are taken."""

    def ended(self, actor: Actor) -> None:
        """An act has ended; its messages are about to arrive."""

    def received(self, actor: Actor, message: Message) -> None:
        """A message has arrived."""


def play(
    plan: Plan, steps: int = 1, duration_s: Callable[[Task], float] = lambda task: 1.0, observer: Observer | None = None
) -> tuple[Firing, ...]:
    """Fire every act of ``steps`` steps in the folded Plan, streams one act at a time, ready tasks by priority.

    Args:
        duration_s: how long an act takes; orders the firings, never decides liveness.

    Raises:
        DeadLock: some act can never fire; the message names the cycle and the quota that would break it.
    """
    actors, gates = build_actors(plan, steps, folded=True)
    running: list[tuple[float, int, str, ActorId]] = []
    log: list[Firing] = []
    now, number = 0.0, 0
    # Once ready, an actor stays ready: each gate has a queue of those, most urgent first.
    place = {actor_id: number for number, actor_id in enumerate(actors)}
    ready: dict[tuple[str, int], list[tuple[tuple[int, int, int, int], Actor]]] = {key: [] for key in gates}
    queued: set[ActorId] = set()

    def note(actor: Actor) -> None:
        if actor.id not in queued and actor.can_fire():
            queued.add(actor.id)
            heapq.heappush(ready[actor.task.stream, actor.rank], (actor.priority(place[actor.id]), actor))

    def next_of(key: tuple[str, int]) -> Actor | None:
        """As StreamGate.choose, from the queue."""
        gate, queue = gates[key], ready[key]
        if gate.running is not None or not queue:
            return None
        if not gate.order:
            return heapq.heappop(queue)[1]
        turn = gate.order[gate.position % len(gate.order)]
        found = next((entry for entry in queue if entry[1].task.id == turn), None)
        if found is None:
            return None
        queue.remove(found)
        return found[1]

    for actor in actors.values():
        note(actor)
    first = {key: number for number, key in enumerate(gates)}
    stirred = dict.fromkeys(gates)
    while True:
        for stream, rank in sorted(stirred, key=first.__getitem__):
            if (chosen := next_of((stream, rank))) is not None:
                queued.discard(chosen.id)
                if observer is not None:
                    observer.began(chosen)
                act = gates[stream, rank].start(chosen)
                end_s = now + duration_s(chosen.task)
                log.append(Firing(chosen.task.id, act, now, end_s))
                heapq.heappush(running, (end_s, number, stream, chosen.id))
                number += 1
        if not running:
            break
        now = running[0][0]
        stirred = {}
        while running and running[0][0] == now:
            _, _, stream, actor_id = heapq.heappop(running)
            gates[stream, -1].finish()
            touched = dict.fromkeys((actor_id,))
            messages = actors[actor_id].end()
            if observer is not None:
                observer.ended(actors[actor_id])
            for message in messages:
                actors[message.receiver].receive(message)
                if observer is not None:
                    observer.received(actors[message.receiver], message)
                touched[message.receiver] = None
            stirred[stream, -1] = None
            for actor in (actors[t] for t in touched):
                stirred[actor.task.stream, -1] = None
                note(actor)
    if any(not actor.done for actor in actors.values()):
        raise DeadLock(explain_wait(plan, actors, gates))
    return tuple(log)


def explain_wait(plan: Plan, actors: dict[ActorId, Actor], gates: dict[tuple[str, int], StreamGate]) -> str:
    """Follow 'who waits for whom' until it bites its tail, and say it in the user's words."""
    waiting = [actor for actor in actors.values() if not actor.done]
    path: list[tuple[ActorId, str, str | None]] = []
    current = waiting[0]
    seen: dict[ActorId, int] = {}
    while current.id not in seen:
        seen[current.id] = len(path)
        blocker, reason, regst = _blocked_by(plan, current, actors, gates)
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
        way_out = "no quota is on the cycle, so the stream orders or the edges themselves contradict each other; lower the plan anew"
    return f"the plan is not live (SEMANTICS 4.1), these actors wait for each other for ever: {story}; the way out: {way_out}"


def _name(actor: ActorId) -> str:
    task, rank = actor
    return task if rank < 0 else f"{task} (rank {rank})"


def _blocked_by(
    plan: Plan, actor: Actor, actors: dict[ActorId, Actor], gates: dict[tuple[str, int], StreamGate]
) -> tuple[ActorId | None, str, str | None]:
    """Whom this actor waits for, why, and the full Regst if that is the reason."""
    for out in actor.outputs.values():
        if not out.free:
            holder = min(out.acked, key=lambda sink: out.acked[sink])
            return holder, f"waits until {_name(holder)} frees a block of regst {out.regst} (quota {out.quota})", out.regst
    for incoming in actor.inputs.values():
        if not incoming.readable:
            source = min(incoming.received, key=lambda s: incoming.received[s])
            return source, f"waits for data of regst {incoming.regst} from {_name(source)}", None
    gate = gates[actor.task.stream, actor.rank]
    if gate.order and actor.acts_begun < actor.total_acts:
        turn = gate.order[gate.position % len(gate.order)]
        if turn != actor.task.id:
            return (turn, actor.rank), f"waits for its turn after {turn} on stream {actor.task.stream}", None
    return None, "waits for an act that never ends", None
