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

from backend.acts.links import Link, Node, Stream, linked
from backend.acts.rows import ActRow, RowLog
from backend.memory.blocks import Blocks
from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind, build_actors
from planner.ir.actors.routes import routes
from planner.ir.plan import Plan, TaskKind

__all__ = ["BegunAct", "Bookkeeper", "Stream"]

BegunAct = tuple[Actor, int, int]
"""An actor that has begun, the number of its act, and since when it could begin (ns of CLOCK_MONOTONIC)."""


class Bookkeeper:
    """The actors of some ranks of a Plan, for ``steps`` steps.

    Args:
        blocks: of each rank that this process performs.
        send: called with every message to an actor of a rank that it does not perform.
        logs: rank -> where its rows go; None: all stay in memory.

    Attributes:
        rows: rank -> its acts, in the order in which they were recorded.   unfinished: actors that have acts left.
    """

    def __init__(
        self,
        plan: Plan,
        steps: int,
        blocks: Mapping[int, Blocks],
        send: Callable[[Message], None] | None = None,
        logs: Mapping[int, RowLog] | None = None,
    ) -> None:
        self._blocks, self._send = blocks, send
        actors, gates = build_actors(plan, steps)
        self.actors = {key: actor for key, actor in actors.items() if key[1] in blocks}
        self.gates = {key: gate for key, gate in gates.items() if key[1] in blocks}
        self.streams = {key: Stream(gate) for key, gate in self.gates.items()}
        self._nodes, self._links = linked(plan, self.actors, self.streams, blocks)
        self.rows: Mapping[int, list[ActRow] | RowLog] = {rank: [] for rank in blocks} if logs is None else logs
        self.unfinished = self._count_unfinished()
        self._targets: dict[ActorId, tuple[int, ...]] = {}
        self._senders: dict[ActorId, int] = {}
        """(task, receiver) -> how many ranks send parts of the receiver's block."""
        self._arrived: dict[tuple[str, int, int], int] = {}
        """(task, receiver, act) -> how many of them have come, while some are missing."""
        self._readies: dict[tuple[str, int, int], list[Link]] = {}
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
        self.note_ready()
        return self.begin(self.streams.values())

    def note_ready(self) -> None:
        """Look at all actors for those that can begin; afterwards every change is noted by itself."""
        now_ns = time.monotonic_ns()
        for node in self._nodes.values():
            self._note(node, now_ns)

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
            if stream.waiting and (node := stream.choose()) is not None:
                acts.append(self._begin(node))
        return acts

    def begin_actor(self, actor: Actor) -> BegunAct:
        """Begin the act of an actor that its stream's gate has chosen."""
        return self._begin(self._nodes[actor])

    def _begin(self, node: Node) -> BegunAct:
        stream, ready_ns = node.stream, node.ready_ns
        stream.waiting.remove(node)
        node.ready_ns = 0
        return node.actor, stream.gate.start(node.actor), ready_ns

    def record(self, act: BegunAct, start_ns: int, end_ns: int) -> ActRow:
        """Note when the act was performed."""
        actor, number, ready_ns = act
        row = self._nodes[actor].task_place, number, ready_ns, start_ns, end_ns
        self.rows[actor.rank].append(row)
        return row

    def finish(self, act: BegunAct) -> list[Stream]:
        """The act has ended: account for its blocks and tell those who wait for it; Actor.end says the same in messages."""
        return self._finish(self._nodes[act[0]], act[1])

    def end(self, act: BegunAct, start_ns: int, end_ns: int) -> list[Stream]:
        """The act has ended: note when it was performed, and account for it as ``finish`` does."""
        actor, number, ready_ns = act
        node = self._nodes[actor]
        self.rows[actor.rank].append((node.task_place, number, ready_ns, start_ns, end_ns))
        return self._finish(node, number)

    def _finish(self, node: Node, number: int) -> list[Stream]:
        actor = node.actor
        actor.busy = False
        node.stream.gate.running = None
        heard: list[Link] = []
        elsewhere: list[Message] = []
        short = 0
        for out, acts, only, blocks, links, messages in node.outs:
            phase = out.phase + 1
            if phase != acts:
                out.phase = phase
                continue
            out.phase = 0
            produced = out.produced
            if blocks is not None:
                blocks.complete(out.regst, produced % out.quota)
            out.produced = produced = produced + 1
            heard += links
            if messages:
                elsewhere += messages
            short += not out.free if only is None else produced - only.count >= out.quota
        for port, acts, only, blocks, links, messages in node.ins:
            phase = port.phase + 1
            if phase != acts:
                port.phase = phase
                continue
            port.phase = 0
            consumed = port.consumed
            if blocks is not None:
                blocks.release(port.regst, consumed % port.quota)
            port.consumed = consumed = consumed + 1
            heard += links
            if messages:
                elsewhere += messages
            short += not port.readable if only is None else only.count <= consumed
        actor.short += short
        if actor.acts_begun >= actor.total_acts:
            self.unfinished -= 1
        if node.is_transfer:  # its block is complete when all senders' parts have arrived
            for receiver in self._targets.get(actor.id, ()):
                heard += self._complete(actor.task.id, number, actor.rank, receiver)
        if elsewhere:
            assert self._send is not None
            for message in elsewhere:
                self._send(message)
        return self._hear(heard, node)

    def arrive(self, task: str, number: int, sender: int, receiver: int) -> list[Stream]:
        """What act ``number`` of a TRANSFER of another process sends to a rank of this one is here."""
        return self._hear(self._complete(task, number, sender, receiver))

    def _complete(self, task: str, number: int, sender: int, receiver: int) -> list[Link]:
        """READY for the readers on the receiver; the last sender's part completes the block."""
        key = task, receiver, number
        count = self._arrived.pop(key, 0) + 1
        if count == self._senders[task, receiver]:
            for regst, quota in self._produced[task]:
                self._blocks[receiver].complete(regst, number % quota)
        else:
            self._arrived[key] = count
        links = self._readies.get((task, sender, receiver))
        if links is None:
            source = task, sender
            links = self._readies[task, sender, receiver] = [
                self._links[Message(MessageKind.READY, regst, source, (reader, receiver))] for regst, reader in self._consumers[task]
            ]
        return links

    def deliver(self, messages: Iterable[Message]) -> list[Stream]:
        """Hand messages of another process to the actors that they are for."""
        return self._hear(self._links[message] for message in messages)

    def _hear(self, links: Iterable[Link], ended: Node | None = None) -> list[Stream]:
        """Raise the counts, and note who can begin; returns the streams in which something may begin now.

        Args:
            ended: whose act has ended, so that its stream is free.
        """
        streams: list[Stream] = []
        now_ns = time.monotonic_ns()
        if ended is not None:
            if ended.actor.short <= 0:
                self._note(ended, now_ns)
            streams.append(ended.stream)
        for link in links:  # to each, what Actor.receive does with the message
            link.count = count = link.count + 1
            link.counts[link.sender] = count
            actor = link.actor
            if actor.short > 0:
                if not link.frees():
                    continue
                actor.short -= 1
                if actor.short:
                    continue
            if not actor.busy and self._note(link.node, now_ns):
                streams.append(link.node.stream)
        return streams

    def _note(self, node: Node, now_ns: int) -> bool:
        """Whether the actor can begin and nobody had noted it."""
        if node.ready_ns or not node.actor.can_fire():
            return False
        node.ready_ns = now_ns
        node.stream.waiting.append(node)
        return True
