"""The actor state machine, stepped by the simulator, by the reference performer and by every worker (SEMANTICS 3.1 - 3.6).

An actor is one task on one rank.  It knows counters only: data never passes through it.

    ready (from a producer)      ack (from a consumer)
          |                            |
          v                            v
      received[src] += 1          acked[sink] += 1          can_fire()?  --> begin() -> act ... --> end() -> messages

A block of a consumed Regst is readable when every source has sent it; a block of a produced Regst is free when every sink has
acknowledged what it held.  All channels are first-in first-out, so counters suffice: block number n lies in slot n mod quota.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from planner.ir.actors.routes import routes
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan, RegstKind, Task, TaskKind

__all__ = ["Actor", "ActorId", "InPort", "Message", "MessageKind", "OutPort", "StreamGate", "build_actors"]


ActorId = tuple[str, int]
"""(task id, rank)"""


class MessageKind(Enum):
    READY = "ready"
    ACK = "ack"


@dataclass(frozen=True, slots=True)
class Message:
    """``sender`` tells ``receiver`` that a block of ``regst`` is readable (READY) or no longer needed (ACK)."""

    kind: MessageKind
    regst: str
    sender: ActorId
    receiver: ActorId


@dataclass(slots=True)
class InPort:
    """A consumed Regst.  ``phase`` counts the acts already done on the block in hand."""

    regst: str
    quota: int
    acts_per_block: int
    received: dict[ActorId, int]
    consumed: int = 0
    phase: int = 0
    acks: list[Message] | None = None
    """The messages that give a block back; the same every time."""

    @property
    def readable(self) -> bool:
        return self.phase > 0 or min(self.received.values()) > self.consumed

    @property
    def slot(self) -> int:
        return self.consumed % self.quota


@dataclass(slots=True)
class OutPort:
    """A produced Regst.  ``phase`` counts the acts already accumulated in the block in hand."""

    regst: str
    quota: int
    acts_per_block: int
    acked: dict[ActorId, int]
    produced: int = 0
    phase: int = 0
    readies: list[Message] | None = None
    """The messages that announce a full block."""

    @property
    def free(self) -> bool:
        return self.phase > 0 or not self.acked or self.produced - min(self.acked.values()) < self.quota

    @property
    def slot(self) -> int:
        return self.produced % self.quota


@dataclass(slots=True, eq=False)
class Actor:
    """One task on one rank; ``total_acts`` bounds the run (steps x acts per step).

    ``short`` counts the ports that an act would have to wait for, so that asking costs no look at them; -1: not counted yet.
    Counters of ports change by ``receive`` and ``end`` only.
    """

    task: Task
    rank: int
    inputs: dict[str, InPort]
    outputs: dict[str, OutPort]
    total_acts: int
    acts_begun: int = 0
    busy: bool = False
    short: int = -1
    id: ActorId = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.task.id, self.rank

    @property
    def done(self) -> bool:
        return self.acts_begun >= self.total_acts and not self.busy

    def can_fire(self) -> bool:
        """SEMANTICS 3.1: every consumed Regst readable, every produced Regst with a free block."""
        if self.busy or self.acts_begun >= self.total_acts:
            return False
        if self.short < 0:
            self.short = sum(not port.readable for port in self.inputs.values()) + sum(not port.free for port in self.outputs.values())
        return self.short == 0

    def receive(self, message: Message) -> None:
        if message.kind is MessageKind.READY:
            incoming = self.inputs[message.regst]
            incoming.received[message.sender] += 1
            # This source was one of those that the port waited for; the port may be readable now.
            if incoming.phase == 0 and incoming.received[message.sender] == incoming.consumed + 1 and incoming.readable and self.short > 0:
                self.short -= 1
        else:
            outgoing = self.outputs[message.regst]
            outgoing.acked[message.sender] += 1
            held = outgoing.produced - outgoing.acked[message.sender]
            if outgoing.phase == 0 and held == outgoing.quota - 1 and outgoing.free and self.short > 0:
                self.short -= 1

    def begin(self) -> int:
        """Take the blocks; returns the act's number, counted from 0 over the whole run."""
        if not self.can_fire():
            raise InvalidPlan(f"actor {self.task.id} on rank {self.rank} was started although it cannot fire (SEMANTICS 3.1)")
        self.busy = True
        self.acts_begun += 1
        return self.acts_begun - 1

    def end(self) -> list[Message]:
        """Give back what was consumed, announce what was produced (SEMANTICS 3.3)."""
        self.busy = False
        messages: list[Message] = []
        for outgoing in self.outputs.values():
            outgoing.phase += 1
            if outgoing.phase == outgoing.acts_per_block:
                outgoing.phase = 0
                outgoing.produced += 1
                if outgoing.readies is None:
                    outgoing.readies = [Message(MessageKind.READY, outgoing.regst, self.id, sink) for sink in outgoing.acked]
                messages += outgoing.readies
                self.short += not outgoing.free
        for incoming in self.inputs.values():
            incoming.phase += 1
            if incoming.phase == incoming.acts_per_block:
                incoming.phase = 0
                incoming.consumed += 1
                if incoming.acks is None:
                    incoming.acks = [Message(MessageKind.ACK, incoming.regst, self.id, source) for source in incoming.received]
                messages += incoming.acks
                self.short += not incoming.readable
        return messages

    def priority(self, position: int) -> tuple[int, int, int, int]:
        """Sort key among actors that could start on one stream now: (step, priority, act, place in the Plan)."""
        return self.acts_begun // self.task.acts, self.task.priority, self.acts_begun, position


@dataclass(slots=True)
class StreamGate:
    """A stream of one rank: idle or busy, and the position in its order where the Plan fixes one."""

    order: tuple[str, ...] = ()
    position: int = 0
    running: ActorId | None = None
    members: list[Actor] = field(default_factory=list)

    def choose(self) -> Actor | None:
        """The actor to start now; None: the stream is busy, or nobody whose turn it is can fire."""
        if self.running is not None:
            return None
        if self.order:
            turn = self.order[self.position % len(self.order)]
            return next((a for a in self.members if a.task.id == turn and a.can_fire()), None)
        ready = [(place, actor) for place, actor in enumerate(self.members) if actor.can_fire()]
        if len(ready) < 2:
            return ready[0][1] if ready else None
        return min(ready, key=lambda pair: pair[1].priority(pair[0]))[1]

    def start(self, actor: Actor) -> int:
        self.running = actor.id
        self.position += 1
        return actor.begin()

    def finish(self) -> None:
        self.running = None


def build_actors(plan: Plan, steps: int, *, folded: bool = False) -> tuple[dict[ActorId, Actor], dict[tuple[str, int], StreamGate]]:
    """All actors of ``steps`` steps and the stream gates they stand at.

    Args:
        folded: one actor per task (rank -1) instead of one per task and rank; enough for questions of order and liveness,
            because all ranks of a placement behave alike.

    Returns:
        actors by (task, rank), gates by (stream, rank).
    """
    actors: dict[ActorId, Actor] = {}
    gates: dict[tuple[str, int], StreamGate] = {}
    for task in plan.tasks:
        for rank in (-1,) if folded else plan.ranks_of(task):
            actor = Actor(task=task, rank=rank, inputs={}, outputs={}, total_acts=steps * task.acts)
            actors[actor.id] = actor
            gate = gates.setdefault((task.stream, rank), StreamGate(order=plan.stream[task.stream].order))
            gate.members.append(actor)
    for regst in plan.regsts:
        if regst.producer is None:
            continue
        producer = plan.task[regst.producer]
        (port,) = [p for p in producer.produces if p.regst == regst.id]
        full = 1 if regst.kind is RegstKind.STATE else 0
        sinks_of: dict[ActorId, dict[ActorId, int]] = {}
        sources_of: dict[ActorId, dict[ActorId, int]] = {}
        for source, sink in _links(plan, producer, regst.id, folded):
            sinks_of.setdefault(source, {})[sink] = 0
            sources_of.setdefault(sink, {})[source] = full
        for rank in (-1,) if folded else plan.ranks_of(producer):
            sinks = sinks_of.get((producer.id, rank), {})
            actors[producer.id, rank].outputs[regst.id] = OutPort(regst.id, regst.quota, port.acts_per_block, sinks, produced=full)
        for consumer, port in plan.consumers[regst.id]:
            for rank in (-1,) if folded else plan.ranks_of(consumer):
                sources = sources_of.get((consumer.id, rank), {})
                actors[consumer.id, rank].inputs[regst.id] = InPort(regst.id, regst.quota, port.acts_per_block, sources)
    return actors, gates


def _links(plan: Plan, producer: Task, regst: str, folded: bool) -> Iterator[tuple[ActorId, ActorId]]:
    """(producer actor, consumer actor) pairs between which messages of ``regst`` travel."""
    for consumer, _ in plan.consumers[regst]:
        if folded:
            yield (producer.id, -1), (consumer.id, -1)
        elif producer.kind is TaskKind.TRANSFER:
            table: Mapping[int, tuple[int, ...]] = routes(plan, producer)
            yield from (((producer.id, src), (consumer.id, dst)) for src, targets in table.items() for dst in targets)
        else:
            yield from (((producer.id, rank), (consumer.id, rank)) for rank in plan.ranks_of(producer))
