"""A trace played again on the actors of its Plan: what each act waited for, and which block was held when.

A trace says when acts ran; why they could not run earlier follows from the Plan.  At every instant of the trace, in rounds,

    acts end, messages arrive at the actors            (received: the last one that makes an actor fire is its Cause)
    acts of this instant that can fire begin           (began)
    ... again, if some of them took no time ...

which is the order of the simulator's own instants.  So whoever watches a replay sees what the simulator's ledger saw, in the same order.

A rank that has chosen a collective holds its stream and its blocks from then on, before the act's start (SEMANTICS 3.10):

    begin = max(ready_s, end of the stream's act before)  <=  start_s
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind
from planner.ir.actors.game import Observer, StreamKey, TokenGame
from planner.ir.actors.routes import routes
from planner.ir.errors import InvalidTrace, Mismatch
from planner.ir.plan import Plan, TaskKind
from planner.ir.traces.trace import Act, Source, Trace

__all__ = ["Cause", "ReplayObserver", "message_times", "replay"]


@dataclass(frozen=True, slots=True)
class Cause:
    """The last thing an act waited for.  READY: ``act`` filled a block of ``regst``; ACK: ``act`` gave one back; known at ``arrives_s``."""

    kind: MessageKind
    regst: str
    act: Act
    arrives_s: float


class ReplayObserver:
    """Told of what happens in a replay, in order; does nothing by itself."""

    def start(self, plan: Plan, actors: dict[ActorId, Actor]) -> None:
        """Before the first instant."""

    def began(self, actor: Actor, act: Act, begin_s: float, cause: Cause | None) -> None:
        """An act takes its blocks.  cause: None if nothing but its stream (or nothing at all) kept it from an earlier begin."""

    def ended(self, actor: Actor, act: Act) -> None:
        """An act has ended; its messages are about to arrive."""

    def received(self, actor: Actor, message: Message, now_s: float) -> None:
        """A message has arrived at ``actor``."""


def message_times(plan: Plan, latency_s: Callable[[int, int], float]) -> dict[str, float]:
    """Trace.message_s of a Plan: ``latency_s(src, dst)`` for every pair of ranks between which messages travel, both ways."""
    tables = [routes(plan, task) for task in plan.tasks if task.kind is TaskKind.TRANSFER]
    pairs = {(src, dst) for table in tables for src, targets in table.items() for dst in targets if src != dst}
    return {f"{a}->{b}": latency_s(a, b) for a, b in sorted(pairs | {(b, a) for a, b in pairs})}


def replay(plan: Plan, trace: Trace, observer: ReplayObserver) -> None:
    """Play the acts of ``trace`` at their own times.

    Raises:
        Mismatch: the trace is of another plan.   InvalidTrace: an act stands where it could not have begun (check_trace names the law).
    """
    if trace.plan_id != plan.plan_id:
        raise Mismatch(f"the {trace.source.value} trace is of plan {trace.plan_id}, not of {plan.plan_id} ({plan.model})")
    _Replay(plan, trace, observer).run()


class _Replay(Observer):
    """The token game with a trace for its clock: mutable, used once."""

    def __init__(self, plan: Plan, trace: Trace, observer: ReplayObserver) -> None:
        self.plan, self.trace, self.observer = plan, trace, observer
        self.travel_s = {_ranks(pair): travel_s for pair, travel_s in trace.message_s.items()}
        self.cause: dict[ActorId, Cause] = {}
        self.arriving: tuple[Act, float] | None = None
        self.events: list[tuple[float, int, Actor | None, Act, list[Message]]] = []
        self.number = 0
        # On real clocks the ends of one collective differ, so each rank's act stands for itself.
        self.ranks_meet = trace.source is Source.SIM
        self.act_of: dict[ActorId, Act] = {}
        self.game = TokenGame(plan, trace.steps, (self,))

    def run(self) -> None:
        self.observer.start(self.plan, self.game.actors)
        begins = deque(sorted(self._begins(), key=lambda entry: entry[0]))
        while begins or self.events:
            now_s = min(entry[0] for entry in (begins[0] if begins else None, self.events[0] if self.events else None) if entry)
            due: dict[StreamKey, list[Act]] = defaultdict(list)
            while begins and begins[0][0] == now_s:
                act = begins.popleft()[1]
                due[self.plan.task[act.task].stream, act.rank].append(act)
            while True:
                self._settle(now_s)
                chosen = [(stream, pick) for stream, acts in due.items() if (pick := self._choose(stream, acts)) is not None]
                if not chosen:
                    break
                for stream, pick in chosen:
                    due[stream].remove(pick)
                    self._begin(pick, now_s)
            if late := next((acts[0] for acts in due.values() if acts), None):
                raise InvalidTrace(
                    f"{late.task} act {late.number} on rank {late.rank} begins at {now_s:.9f} s, before its inputs were readable, "
                    "its blocks free and its stream idle; the trace breaks SEMANTICS 3.1, make it anew"
                )

    def _begins(self) -> Iterator[tuple[float, Act]]:
        by_stream: dict[StreamKey, list[Act]] = defaultdict(list)
        for act in self.trace.acts:
            by_stream[self.plan.task[act.task].stream, act.rank].append(act)
        for acts in by_stream.values():
            acts.sort(key=lambda act: (act.start_s, act.end_s))
            free_s = float("-inf")
            for act in acts:
                meets = self.ranks_meet and len(self.plan.peers(self.plan.task[act.task], act.rank)) > 1
                yield (min(act.start_s, max(act.ready_s, free_s)) if meets else act.start_s), act
                free_s = act.end_s

    def _choose(self, stream: StreamKey, due: list[Act]) -> Act | None:
        """The next act of a stream; several stand at one instant only if all but the last take no time."""
        gate = self.game.gates[stream]
        if gate.running is not None or not due:
            return None
        able = [act for act in due if self._can_begin(act)]
        if len(due) > 1 and gate.order:
            turn = gate.order[gate.position % len(gate.order)]
            able = [act for act in able if act.task == turn]
        if len(able) > 1:
            able.sort(key=self._priority)
        return able[0] if able else None

    def _can_begin(self, act: Act) -> bool:
        actor = self.game.actors[act.task, act.rank]
        return actor.acts_begun == act.number and actor.can_fire()

    def _priority(self, act: Act) -> tuple[int, int, int, int]:
        actor = self.game.actors[act.task, act.rank]
        return actor.priority(self.game.position(actor))

    def _begin(self, act: Act, now_s: float) -> None:
        actor = self.game.actors[act.task, act.rank]
        self.game.begin(actor)
        self.act_of[actor.id] = act
        self.observer.began(actor, act, now_s, self.cause.pop(actor.id, None))
        meeting = self.game.meet(actor, act.number) if self.ranks_meet else None
        if meeting is None:
            self._push(act.end_s, actor, act, [])
        elif meeting.is_complete:
            for member in meeting.present:
                self._push(self.act_of[member.id].end_s, member, self.act_of[member.id], [])

    def _push(self, time_s: float, actor: Actor | None, act: Act, messages: list[Message]) -> None:
        heapq.heappush(self.events, (time_s, self.number, actor, act, messages))
        self.number += 1

    def _settle(self, now_s: float) -> None:
        """Everything that ends or arrives by now."""
        while self.events and self.events[0][0] <= now_s:
            _, _, actor, act, messages = heapq.heappop(self.events)
            if actor is None:
                for message in messages:
                    self._deliver(message, act, now_s)
                continue
            sent = self.game.end(actor)
            self.observer.ended(actor, act)
            remote: dict[float, list[Message]] = defaultdict(list)
            for message in sent:
                travel_s = self.travel_s.get((act.rank, message.receiver[1]), 0.0)
                if travel_s:
                    remote[act.end_s + travel_s].append(message)
                else:
                    self._deliver(message, act, now_s)
            for arrives_s, bundle in remote.items():
                self._push(arrives_s, None, act, bundle)

    def _deliver(self, message: Message, act: Act, now_s: float) -> None:
        self.arriving = act, now_s
        self.game.deliver(message)
        self.observer.received(self.game.actors[message.receiver], message, now_s)

    def ready(self, actor: Actor, message: Message | None) -> None:
        if message is not None and self.arriving is not None:
            act, now_s = self.arriving
            self.cause[actor.id] = Cause(message.kind, message.regst, act, now_s)


def _ranks(pair: str) -> tuple[int, int]:
    src, _, dst = pair.partition("->")
    return int(src), int(dst)
