"""The token game of a Plan without a clock: which acts may begin, and what every begin, end and message changes (SEMANTICS 3).

    driver: a clock                     TokenGame: counters
      begin_acts()        ----->        every idle stream begins the act that is next on it
      end(actor)          ----->        the act is over; returns its messages
      deliver(message)    ----->        an actor may become ready to fire

A driver only says when.  planner.ir.actors.liveness gives every act a duration, simulator.game a SimPy process per stream,
simulator.pacing the speed that its links leave it, and simulator.analysis.replay the times of a trace.

Streams choose after all ends and messages of an instant.  A choice on one stream changes nothing on the others, so what happens does not
depend on the order in which the driver handles the events of one instant.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.ir.actors.actor import Actor, ActorId, Message, StreamGate, build_actors
from planner.ir.actors.deadlock import explain_meetings, explain_wait
from planner.ir.plan import Plan

__all__ = ["Meeting", "Observer", "StreamKey", "TokenGame", "by_receiver"]

StreamKey = tuple[str, int]
"""(stream, rank)"""


class Observer:
    """Told of what happens in a game, in order; does nothing by itself."""

    def start(self, plan: Plan, actors: Mapping[ActorId, Actor]) -> None:
        """Before the first act."""

    def ready(self, actor: Actor, message: Message | None) -> None:
        """An actor can fire from now on.  message: the last thing that it waited for; None: nothing but its own act before."""

    def began(self, actor: Actor) -> None:
        """An act has begun; its blocks are taken."""

    def ended(self, actor: Actor) -> None:
        """An act has ended; its messages are about to be delivered."""

    def received(self, actor: Actor, message: Message) -> None:
        """A message has arrived at ``actor``."""


@dataclass(slots=True, eq=False)
class Meeting:
    """One act of a collective (SEMANTICS 3.10): it starts when all ranks of ``group`` are present, in the order of their arrival."""

    task: str
    number: int
    group: tuple[int, ...]
    present: list[Actor] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.present) == len(self.group)


@dataclass(slots=True, eq=False)
class _Candidates:
    """The actors of one stream of one rank that can fire; ``place`` orders the streams as the Plan does.

    urgent: a heap by Actor.priority, for streams without an order; an entry is stale once its actor has begun.
    """

    place: int
    gate: StreamGate
    ready: dict[str, Actor] = field(default_factory=dict)
    urgent: list[tuple[tuple[int, int, int, int], Actor]] = field(default_factory=list)

    def choose(self) -> Actor | None:
        """As StreamGate.choose, without a look at those that cannot fire."""
        gate = self.gate
        if gate.running is not None or not self.ready:
            return None
        if gate.order:
            return self.ready.get(gate.order[gate.position % len(gate.order)])
        while True:
            (_, _, act, _), actor = self.urgent[0]
            if actor.acts_begun == act and actor.task.id in self.ready:
                return actor
            heapq.heappop(self.urgent)


class TokenGame:
    """``steps`` steps of a Plan; mutable, played once.

    Args:
        observers: told of everything, in this order.
        folded: one actor per task (rank -1) stands for all ranks; collectives then have nobody to wait for.
    """

    def __init__(self, plan: Plan, steps: int, observers: Sequence[Observer] = (), *, folded: bool = False) -> None:
        self.plan = plan
        self.actors, self.gates = build_actors(plan, steps, folded=folded)
        # Most observers care for some of the hooks only, and a game calls them millions of times.
        self._on_ready = [o.ready for o in observers if type(o).ready is not Observer.ready]
        self._on_begin = [o.began for o in observers if type(o).began is not Observer.began]
        self._on_end = [o.ended for o in observers if type(o).ended is not Observer.ended]
        self._on_receive = [o.received for o in observers if type(o).received is not Observer.received]
        self._position = {actor_id: number for number, actor_id in enumerate(self.actors)}
        self._candidates = {key: _Candidates(place, gate) for place, (key, gate) in enumerate(self.gates.items())}
        self._candidates_of = {actor.id: self._candidates[actor.task.stream, actor.rank] for actor in self.actors.values()}
        self._may_choose: dict[int, _Candidates] = {}
        self._meetings: dict[tuple[str, tuple[int, ...], int], Meeting] = {}
        for observer in observers:
            observer.start(plan, self.actors)
        for actor in self.actors.values():
            self._note(actor, None)

    @property
    def is_over(self) -> bool:
        """Whether every actor has performed all of its acts."""
        return all(actor.done for actor in self.actors.values())

    def position(self, actor: Actor) -> int:
        """Place of the actor in the Plan, from 0."""
        return self._position[actor.id]

    def choice(self, stream: StreamKey) -> Actor | None:
        """Who would begin next on a stream now; None: it is taken, or nobody whose turn it is can fire."""
        return self._candidates[stream].choose()

    def begin_acts(self) -> list[tuple[Actor, int]]:
        """Begin what every idle stream chooses now, in the order of the Plan's streams; (actor, number of its act) of each."""
        may_choose, self._may_choose = self._may_choose, {}
        begun = []
        for place in sorted(may_choose):
            actor = may_choose[place].choose()
            if actor is not None:
                begun.append((actor, self.begin(actor)))
        return begun

    def begin(self, actor: Actor) -> int:
        """Begin one act of an actor that can fire; returns the act's number, counted from 0 over all steps."""
        candidates = self._candidates_of[actor.id]
        candidates.ready.pop(actor.task.id, None)
        number = candidates.gate.start(actor)
        for told in self._on_begin:
            told(actor)
        return number

    def meet(self, actor: Actor, number: int) -> Meeting:
        """The act has begun on this rank: the meeting of the ranks that start it together, this one now present."""
        group = self.plan.peers(actor.task, actor.rank)
        if len(group) == 1:
            return Meeting(actor.task.id, number, group, [actor])
        key = actor.task.id, group, number
        meeting = self._meetings.setdefault(key, Meeting(actor.task.id, number, group))
        meeting.present.append(actor)
        if meeting.is_complete:
            del self._meetings[key]
        return meeting

    def end(self, actor: Actor) -> list[Message]:
        """The act is over and its stream is free; the driver delivers the messages when they arrive."""
        candidates = self._candidates_of[actor.id]
        candidates.gate.finish()
        messages = actor.end()
        for told in self._on_end:
            told(actor)
        self._note(actor, None)
        if candidates.ready:
            self._may_choose[candidates.place] = candidates
        return messages

    def deliver(self, message: Message) -> None:
        """A message arrives."""
        actor = self.actors[message.receiver]
        actor.receive(message)
        for told in self._on_receive:
            told(actor, message)
        self._note(actor, message)

    def explain(self) -> str:
        """Why the game cannot go on although it is not over."""
        if self._meetings:
            return explain_meetings(self.actors, self.gates, tuple(self._meetings.values()))
        return explain_wait(self.plan, self.actors, self.gates)

    def _note(self, actor: Actor, message: Message | None) -> None:
        """Put the actor among its stream's candidates as soon as it can fire; it stays there until it begins."""
        if not actor.can_fire():
            return
        candidates = self._candidates_of[actor.id]
        if actor.task.id in candidates.ready:
            return
        candidates.ready[actor.task.id] = actor
        if not candidates.gate.order:
            heapq.heappush(candidates.urgent, (actor.priority(self._position[actor.id]), actor))
        if candidates.gate.running is None:
            self._may_choose[candidates.place] = candidates
        for told in self._on_ready:
            told(actor, message)


def by_receiver(messages: Sequence[Message]) -> dict[int, list[Message]]:
    """Messages by the rank that they go to."""
    bundles: dict[int, list[Message]] = {}
    for message in messages:
        bundles.setdefault(message.receiver[1], []).append(message)
    return bundles
