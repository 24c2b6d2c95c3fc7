"""The actors of one process and what they wait for: the bookkeeping that all performers share.

    begin(streams) --> acts, at most one per stream --> performed by the caller --> record(act, start, end)    a row of the trace
                                                                                    finish(act)                blocks, counters, messages
    arrive(...)   one sender's part of a transferred block is here

``finish`` and ``arrive`` return the streams in which another act may begin now.

Not locked: a worker and the performer in one process call it under a lock of theirs, the reference performer has one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backend.acts.act import settle
from backend.acts.rows import ActRow
from backend.memory.blocks import Blocks
from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind, StreamGate, build_actors
from planner.ir.actors.routes import routes
from planner.ir.plan import Plan, TaskKind

__all__ = ["BegunAct", "Bookkeeper", "Stream"]

BegunAct = tuple[Actor, int, int]
"""An actor that has begun, the number of its act, and since when it could begin (ns of CLOCK_MONOTONIC)."""


@dataclass(slots=True, eq=False)
class Stream:
    """A stream of one rank.  ready: its actors that can begin and have not; without any, the gate needs no look at its members."""

    gate: StreamGate
    ready: int = 0


class Bookkeeper:
    """The actors of some ranks of a Plan, for ``steps`` steps.

    Args:
        blocks: of each rank that this process performs.
        send: called with every message to an actor of a rank that it does not perform.

    Attributes:
        rows: rank -> its acts, in the order in which they were recorded.   unfinished: actors that have acts left.
    """

    def __init__(self, plan: Plan, steps: int, blocks: Mapping[int, Blocks], send: Callable[[Message], None] | None = None) -> None:
        self._blocks, self._send = blocks, send
        actors, gates = build_actors(plan, steps)
        self.actors = {key: actor for key, actor in actors.items() if key[1] in blocks}
        self.gates = {key: gate for key, gate in gates.items() if key[1] in blocks}
        self.streams = {key: Stream(gate) for key, gate in self.gates.items()}
        self.rows: dict[int, list[ActRow]] = {rank: [] for rank in blocks}
        self.unfinished = self._count_unfinished()
        self._stream_of = {key: self.streams[actor.task.stream, actor.rank] for key, actor in self.actors.items()}
        self._ready_ns: dict[ActorId, int] = {}
        self._places = {task.id: place for place, task in enumerate(plan.tasks)}
        self._targets: dict[ActorId, tuple[int, ...]] = {}
        self._senders: dict[ActorId, int] = {}
        """(task, receiver) -> how many ranks send parts of the receiver's block."""
        self._arrived: dict[tuple[str, int, int], int] = {}
        """(task, receiver, act) -> how many of them have come, while some are missing."""
        self._readies: dict[tuple[str, int, int], list[Message]] = {}
        self._produced: dict[str, tuple[tuple[str, int], ...]] = {}
        """TRANSFER -> (Regst, quota) of what it fills."""
        self._consumers: dict[str, tuple[tuple[str, str], ...]] = {}
        """TRANSFER -> (Regst, task that reads it)."""
        for task in plan.tasks:
            if task.kind is not TaskKind.TRANSFER:
                continue
            self._produced[task.id] = tuple((port.regst, plan.regst[port.regst].quota) for port in task.produces)
            self._consumers[task.id] = tuple((port.regst, reader.id) for port in task.produces for reader, _ in plan.consumers[port.regst])
            for sender, receivers in routes(plan, task).items():
                self._targets[task.id, sender] = tuple(rank for rank in receivers if rank in blocks)
                for rank in self._targets[task.id, sender]:
                    self._senders[task.id, rank] = self._senders.get((task.id, rank), 0) + 1

    def _count_unfinished(self) -> int:
        return sum(not actor.done for actor in self.actors.values())

    def begin_all(self) -> list[BegunAct]:
        """Begin whatever may start; for the start of a run, and after ``extend``."""
        self.note_ready(self.actors.values())
        return self.begin(self.streams.values())

    def extend(self, steps: int) -> None:
        """Go on up to ``steps`` steps, counted from the start of the run."""
        for actor in self.actors.values():
            actor.total_acts = steps * actor.task.acts
        self.unfinished = self._count_unfinished()

    @property
    def steps_done(self) -> int:
        """Steps whose acts are all done or running."""
        return min(actor.acts_begun // actor.task.acts for actor in self.actors.values())

    def begin(self, streams: Iterable[Stream]) -> list[BegunAct]:
        """Begin what may start in these streams; at most one act in each."""
        acts: list[BegunAct] = []
        for stream in streams:
            if stream.ready and (actor := stream.gate.choose()) is not None:
                stream.ready -= 1
                acts.append((actor, stream.gate.start(actor), self._ready_ns.pop(actor.id)))
        return acts

    def begin_actor(self, actor: Actor) -> BegunAct:
        """Begin the act of an actor that its stream's gate has chosen."""
        stream = self._stream_of[actor.id]
        stream.ready -= 1
        return actor, stream.gate.start(actor), self._ready_ns.pop(actor.id)

    def record(self, act: BegunAct, start_ns: int, end_ns: int) -> ActRow:
        """Note when the act was performed."""
        actor, number, ready_ns = act
        row = self._places[actor.task.id], number, ready_ns, start_ns, end_ns
        self.rows[actor.rank].append(row)
        return row

    def finish(self, act: BegunAct) -> list[Stream]:
        """The act has ended: account for its blocks and tell those who wait for it."""
        actor, number, _ = act
        task = actor.task
        is_transfer = task.kind is TaskKind.TRANSFER
        settle(actor, self._blocks[actor.rank], produced_here=not is_transfer)
        self._stream_of[actor.id].gate.finish()
        messages = actor.end()
        if actor.done:
            self.unfinished -= 1
        if is_transfer:  # its block is complete when all senders' parts have arrived, so READY comes from ``arrive``
            messages = [message for message in messages if message.kind is MessageKind.ACK]
            for receiver in self._targets.get(actor.id, ()):
                messages += self._complete(task.id, number, actor.rank, receiver)
        return self._deliver(messages, [actor])

    def arrive(self, task: str, number: int, sender: int, receiver: int) -> list[Stream]:
        """What act ``number`` of a TRANSFER of another process sends to a rank of this one is here."""
        return self.deliver(self._complete(task, number, sender, receiver))

    def _complete(self, task: str, number: int, sender: int, receiver: int) -> list[Message]:
        """READY for the readers on the receiver; the last sender's part completes the block."""
        key = task, receiver, number
        count = self._arrived.get(key, 0) + 1
        if count == self._senders[task, receiver]:
            self._arrived.pop(key, None)
            for regst, quota in self._produced[task]:
                self._blocks[receiver].complete(regst, number % quota)
        else:
            self._arrived[key] = count
        messages = self._readies.get((task, sender, receiver))
        if messages is None:
            messages = self._readies[task, sender, receiver] = [
                Message(MessageKind.READY, regst, (task, sender), (reader, receiver)) for regst, reader in self._consumers[task]
            ]
        return messages

    def deliver(self, messages: Iterable[Message]) -> list[Stream]:
        """Hand messages to the actors here, and send on those to actors of other processes."""
        return self._deliver(messages, [])

    def _deliver(self, messages: Iterable[Message], changed: list[Actor]) -> list[Stream]:
        """The same; ``changed``: actors whose counters have changed already."""
        for message in messages:
            actor = self.actors.get(message.receiver)
            if actor is not None:
                actor.receive(message)
                changed.append(actor)
            else:
                assert self._send is not None
                self._send(message)
        return self.note_ready(changed)

    def note_ready(self, actors: Iterable[Actor]) -> list[Stream]:
        """Note since when actors can begin; returns their streams."""
        streams: list[Stream] = []
        for actor in actors:
            stream = self._stream_of[actor.id]
            streams.append(stream)
            if actor.can_fire() and actor.id not in self._ready_ns:
                self._ready_ns[actor.id] = time.monotonic_ns()
                stream.ready += 1
        return streams
