"""Who is told of what at the end of an act, looked up once: the token game of some ranks as objects that point at each other.

    Node (actor, stream)  --outs-->  port, its blocks, links to readers here, messages to readers elsewhere
                          --ins--->  port, its blocks, links to producers here, messages to producers elsewhere

A Link is a message to an actor of this process without the message: the counter of a port that it raises.  What it changes is what
Actor.receive changes (SEMANTICS 3.1 - 3.3); tests play both on random Plans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from backend.memory.blocks import Blocks
from planner.ir.actors.actor import Actor, ActorId, InPort, Message, MessageKind, OutPort, StreamGate
from planner.ir.plan import Plan, RegstKind, TaskKind

__all__ = ["Link", "Node", "Stream", "linked"]


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
    """``counts[sender]`` is what a message from ``sender`` raises: of a readable port's ``received``, or of a free one's ``acked``.

    count: the same number, at hand without a look-up by a tuple.   alone: the port waits for no other sender.   actor: the node's.
    """

    node: Node
    sender: ActorId
    counts: dict[ActorId, int]
    reads: InPort | None
    writes: OutPort | None
    count: int = field(init=False)
    alone: bool = field(init=False)
    actor: Actor = field(init=False)

    def __post_init__(self) -> None:
        self.count, self.alone, self.actor = self.counts[self.sender], len(self.counts) == 1, self.node.actor

    def frees(self) -> bool:
        """Whether the port waits no more, by the message that was counted last."""
        if (reads := self.reads) is not None:
            return self.count == reads.consumed + 1 and reads.phase == 0 and (self.alone or reads.readable)
        writes = self.writes
        assert writes is not None
        return writes.produced - self.count == writes.quota - 1 and writes.phase == 0 and (self.alone or writes.free)


_Out = tuple[OutPort, int, Link | None, Blocks | None, list[Link], list[Message]]
_In = tuple[InPort, int, Link | None, Blocks | None, list[Link], list[Message]]
"""A port and what its actor's acts do to it: how many acts use a block, the one link that the port waits for (None: none, or several, which are
looked through), where the block is accounted for (None: nowhere), who hears here that it is done with, and the messages for those elsewhere."""


@dataclass(slots=True, eq=False)
class Node:
    """An actor and what its acts touch.

    stream_place: among the actors of its stream.   task_place: of its task in the Plan.   ready_ns: since when it can begin; 0: it cannot.
    outs, ins: its ports, and what the end of an act does to each.
    """

    actor: Actor
    stream: Stream
    stream_place: int
    task_place: int
    is_transfer: bool
    outs: list[_Out] = field(default_factory=list)
    ins: list[_In] = field(default_factory=list)
    ready_ns: int = 0

    def urgency(self) -> tuple[int, int, int, int]:
        return self.actor.priority(self.stream_place)


def linked(
    plan: Plan, actors: Mapping[ActorId, Actor], streams: Mapping[tuple[str, int], Stream], blocks: Mapping[int, Blocks]
) -> tuple[dict[Actor, Node], dict[Message, Link]]:
    """The actors of this process, and the links of all messages to them.

    Args:
        actors: of the ranks of ``blocks``.

    Returns:
        nodes: by the actors themselves, as their ids, which are tuples, would be hashed anew at each look.
    """
    places = {task.id: place for place, task in enumerate(plan.tasks)}
    nodes: dict[Actor, Node] = {}
    links: dict[Message, Link] = {}
    for key, actor in actors.items():
        stream = streams[actor.task.stream, actor.rank]
        node = Node(actor, stream, len(stream.members), places[actor.task.id], actor.task.kind is TaskKind.TRANSFER)
        nodes[actor] = stream.members[actor.task.id] = node
        for port in actor.inputs.values():
            for sender in port.received:
                links[Message(MessageKind.READY, port.regst, sender, key)] = Link(node, sender, port.received, port, None)
        for out in actor.outputs.values():
            for sender in out.acked:
                links[Message(MessageKind.ACK, out.regst, sender, key)] = Link(node, sender, out.acked, None, out)

    def told(kind: MessageKind, regst: str, sender: ActorId, receivers: Iterable[ActorId]) -> tuple[list[Link], list[Message]]:
        messages = [Message(kind, regst, sender, receiver) for receiver in receivers]
        return [links[m] for m in messages if m in links], [m for m in messages if m not in links]

    def only(kind: MessageKind, regst: str, senders: Collection[ActorId], receiver: ActorId) -> Link | None:
        return links[Message(kind, regst, next(iter(senders)), receiver)] if len(senders) == 1 else None

    for key, actor in actors.items():
        own, node = blocks[actor.rank], nodes[actor]
        for out in actor.outputs.values():
            # A transfer's block lies on its receivers, and is full when all senders' parts have come: not at the end of this act.
            heard: tuple[Blocks | None, list[Link], list[Message]] = (None, [], [])
            if not node.is_transfer:
                heard = own, *told(MessageKind.READY, out.regst, key, out.acked)
            node.outs.append((out, out.acts_per_block, only(MessageKind.ACK, out.regst, out.acked, key), *heard))
        for port in actor.inputs.values():
            kept = plan.regst[port.regst].kind is RegstKind.STATE
            heard = None if kept else own, *told(MessageKind.ACK, port.regst, key, port.received)
            node.ins.append((port, port.acts_per_block, only(MessageKind.READY, port.regst, port.received, key), *heard))
    return nodes, links
