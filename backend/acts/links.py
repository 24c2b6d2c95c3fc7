"""Who is told of what at the end of an act, looked up once: the token game of some ranks as objects that point at each other.

    Node (actor, stream)  --outs-->  port, its blocks, links to readers here, messages to readers elsewhere
                          --ins--->  port, its blocks, links to producers here, messages to producers elsewhere

A Link is a message to an actor of this process without the message: the counter of a port that it raises.  What it changes is what
Actor.receive changes (SEMANTICS 3.1 - 3.3); tests play both on random Plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from backend.memory.blocks import Blocks
from planner.ir.actors.actor import Actor, ActorId, InPort, Message, MessageKind, OutPort, StreamGate
from planner.ir.plan import Plan, RegstKind, TaskKind

__all__ = ["Link", "Node", "Stream", "link_of", "nodes_of"]


@dataclass(slots=True, eq=False)
class Stream:
    """A stream of one rank.  waiting: its actors that can begin and have not.   members: task -> its actor here."""

    gate: StreamGate
    waiting: list[Node] = field(default_factory=list)
    members: dict[str, Node] = field(default_factory=dict)

    def choose(self) -> Node | None:
        """As StreamGate.choose, without a look at those that cannot fire."""
        gate, waiting = self.gate, self.waiting
        if gate.running is not None or not waiting:
            return None
        if gate.order:
            turn = self.members.get(gate.order[gate.position % len(gate.order)])
            return turn if turn is not None and turn.ready_ns else None
        return waiting[0] if len(waiting) == 1 else min(waiting, key=Node.urgency)


@dataclass(slots=True, eq=False)
class Link:
    """``counts[sender]`` is what a message from ``sender`` raises: of a readable port's ``received``, or of a free one's ``acked``."""

    node: Node
    sender: ActorId
    counts: dict[ActorId, int]
    reads: InPort | None
    writes: OutPort | None

    def raise_count(self) -> bool:
        """What Actor.receive does with the message; False: the actor waits for others still."""
        count = self.counts[self.sender] = self.counts[self.sender] + 1
        reads, writes = self.reads, self.writes
        if reads is not None:
            freed = reads.phase == 0 and count == reads.consumed + 1 and (len(self.counts) == 1 or reads.readable)
        else:
            assert writes is not None
            freed = writes.phase == 0 and writes.produced - count == writes.quota - 1 and (len(self.counts) == 1 or writes.free)
        actor = self.node.actor
        if freed and actor.short > 0:
            actor.short -= 1
        return actor.short <= 0


Told = tuple[Blocks | None, list[Link], list[Message]]
"""What becomes of a block when a port has done with it: where it is accounted for (None: nowhere), who hears of it here, and what goes elsewhere."""


@dataclass(slots=True, eq=False)
class Node:
    """An actor and what its acts touch.

    stream_place: among the actors of its stream.   task_place: of its task in the Plan.   ready_ns: since when it can begin; 0: it cannot.
    outs, ins: its ports; beside each the one actor that the port waits for (None: none, or several, which are looked through), and who is told.
    """

    actor: Actor
    stream: Stream
    stream_place: int
    task_place: int
    is_transfer: bool
    outs: list[tuple[OutPort, ActorId | None, Told]] = field(default_factory=list)
    ins: list[tuple[InPort, ActorId | None, Told]] = field(default_factory=list)
    ready_ns: int = 0

    def urgency(self) -> tuple[int, int, int, int]:
        return self.actor.priority(self.stream_place)


def link_of(nodes: Mapping[ActorId, Node], kind: MessageKind, regst: str, sender: ActorId, receiver: ActorId) -> Link:
    """The link of a message to an actor here."""
    actor = nodes[receiver].actor
    if kind is MessageKind.READY:
        reads = actor.inputs[regst]
        return Link(nodes[receiver], sender, reads.received, reads, None)
    writes = actor.outputs[regst]
    return Link(nodes[receiver], sender, writes.acked, None, writes)


def nodes_of(
    plan: Plan, actors: Mapping[ActorId, Actor], streams: Mapping[tuple[str, int], Stream], blocks: Mapping[int, Blocks]
) -> dict[ActorId, Node]:
    """The actors of this process, linked.

    Args:
        actors: of the ranks of ``blocks``.
    """
    places = {task.id: place for place, task in enumerate(plan.tasks)}
    nodes: dict[ActorId, Node] = {}
    for key, actor in actors.items():
        stream = streams[actor.task.stream, actor.rank]
        node = Node(actor, stream, len(stream.members), places[actor.task.id], actor.task.kind is TaskKind.TRANSFER)
        nodes[key] = stream.members[actor.task.id] = node
    for key, node in nodes.items():
        own = blocks[key[1]]
        for out in node.actor.outputs.values():
            # A transfer's block lies on its receivers, and is full when all senders' parts have come: not at the end of this act.
            told: Told = (None, [], []) if node.is_transfer else (own, *_heard(nodes, MessageKind.READY, out.regst, key, out.acked))
            node.outs.append((out, _only(out.acked), told))
        for port in node.actor.inputs.values():
            kept = plan.regst[port.regst].kind is RegstKind.STATE
            told = (None if kept else own, *_heard(nodes, MessageKind.ACK, port.regst, key, port.received))
            node.ins.append((port, _only(port.received), told))
    return nodes


def _only(counts: Mapping[ActorId, int]) -> ActorId | None:
    return next(iter(counts)) if len(counts) == 1 else None


def _heard(
    nodes: Mapping[ActorId, Node], kind: MessageKind, regst: str, sender: ActorId, receivers: Iterable[ActorId]
) -> tuple[list[Link], list[Message]]:
    here = [link_of(nodes, kind, regst, sender, receiver) for receiver in receivers if receiver in nodes]
    return here, [Message(kind, regst, sender, receiver) for receiver in receivers if receiver not in nodes]
