"""Live bytes while the token game is played (SEMANTICS 5, law 5).

A block lives from the begin of the first act that writes it until its last ack arrives at the producer:

    begin (phase 0)          end -> ready ... consumers ...  last ack
      |------------------------ block live --------------------|

State is always live.  A TRANSFER writes blocks that lie on the receiving ranks.  A running fragment adds its workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind
from planner.ir.actors.game import Observer
from planner.ir.actors.routes import routes
from planner.ir.plan import Fragment, Plan, RegstKind, TaskKind

__all__ = ["Ledger", "Listener", "Place"]

Place = int | str
"""A rank; in a folded game, where all ranks of a placement hold alike, the id of the placement."""

Listener = Callable[[Place, str, int, int], None]
"""Told (place, id of a Regst or of a task, blocks more, bytes more) whenever a level changes; a task's bytes are its workspace, in 0 blocks."""


class _Store:
    """The blocks of one Regst in one place.  Several senders may fill parts of one block: it lives while any of them holds it."""

    __slots__ = ("block_bytes", "blocks_of", "level", "place", "regst")

    def __init__(self, regst: str, place: Place, block_bytes: int) -> None:
        self.regst = regst
        self.place = place
        self.block_bytes = block_bytes
        self.blocks_of: dict[ActorId, int] = {}
        self.level = 0


class _Delivery:
    """One producer's blocks in one place: the consumers there, and how many blocks all of them have given back."""

    __slots__ = ("freed", "sinks", "store")

    def __init__(self, store: _Store, sinks: tuple[ActorId, ...]) -> None:
        self.store = store
        self.sinks = sinks
        self.freed = 0


class Ledger(Observer):
    """Counts live bytes per place and remembers the peaks, all of them and without workspace; ``listener`` hears of every change."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener

    def start(self, plan: Plan, actors: Mapping[ActorId, Actor]) -> None:
        folded = any(rank < 0 for _, rank in actors)
        self._place = {actor.id: actor.task.placement if folded else actor.rank for actor in actors.values()}
        self._live: dict[Place, int] = dict.fromkeys([p.id for p in plan.placements] if folded else range(plan.num_ranks), 0)
        for regst in plan.regsts:
            if regst.kind is RegstKind.STATE:
                for place in (regst.placement,) if folded else plan.placement[regst.placement].ranks:
                    self._live[place] += plan.block_bytes(regst)
        self.peak_bytes = dict(self._live)
        self.register_bytes = dict(self._live)
        self._working = dict.fromkeys(self._live, 0)
        size = {regst.id: 0 if regst.kind is RegstKind.STATE else plan.block_bytes(regst) for regst in plan.regsts}
        stores: dict[tuple[str, Place], _Store] = {}
        self._deliveries: dict[ActorId, dict[str, dict[Place, _Delivery]]] = {}
        self._workspace = {t.id: t.body.workspace_bytes for t in plan.tasks if isinstance(t.body, Fragment) and t.body.workspace_bytes}
        targets = {} if folded else {task.id: routes(plan, task) for task in plan.tasks if task.kind is TaskKind.TRANSFER}
        for actor in actors.values():
            by_regst = self._deliveries[actor.id] = {}
            for port in actor.outputs.values():
                if not size[port.regst]:
                    continue
                there: tuple[Place, ...] = (plan.regst[port.regst].placement,)
                if not folded:
                    there = targets[actor.task.id][actor.rank] if actor.task.id in targets else (actor.rank,)
                by_place = by_regst[port.regst] = {}
                for place in there:
                    store = stores.setdefault((port.regst, place), _Store(port.regst, place, size[port.regst]))
                    store.blocks_of[actor.id] = 0
                    by_place[place] = _Delivery(store, tuple(sink for sink in port.acked if self._place[sink] == place))

    def began(self, actor: Actor) -> None:
        """The act takes a new block of every Regst of which it has none in hand."""
        for regst, deliveries in self._deliveries[actor.id].items():
            if actor.outputs[regst].phase == 0:
                for delivery in deliveries.values():
                    self._add_blocks(delivery.store, actor.id, 1)
        if workspace := self._workspace.get(actor.task.id):
            self._work(actor, workspace)

    def ended(self, actor: Actor) -> None:
        """Workspace goes; a full block that nobody reads is recycled at once."""
        for regst, deliveries in self._deliveries[actor.id].items():
            if actor.outputs[regst].phase == 0:
                for delivery in deliveries.values():
                    if not delivery.sinks:
                        self._add_blocks(delivery.store, actor.id, -1)
        if workspace := self._workspace.get(actor.task.id):
            self._work(actor, -workspace)

    def received(self, actor: Actor, message: Message) -> None:
        """An ack at its producer frees a block when it is the last one."""
        if message.kind is not MessageKind.ACK:
            return
        delivery = self._deliveries[actor.id].get(message.regst, {}).get(self._place[message.sender])
        if delivery is None:
            return
        acked = actor.outputs[message.regst].acked
        freed = min(acked[sink] for sink in delivery.sinks)
        if freed > delivery.freed:
            self._add_blocks(delivery.store, actor.id, delivery.freed - freed)
            delivery.freed = freed

    def _add_blocks(self, store: _Store, producer: ActorId, blocks: int) -> None:
        store.blocks_of[producer] += blocks
        level = max(store.blocks_of.values())
        if level != store.level:
            more, store.level = level - store.level, level
            place, size_bytes = store.place, more * store.block_bytes
            self._live[place] += size_bytes
            self.register_bytes[place] = max(self.register_bytes[place], self._live[place])
            self.peak_bytes[place] = max(self.peak_bytes[place], self._live[place] + self._working[place])
            if self._listener is not None:
                self._listener(place, store.regst, more, size_bytes)

    def _work(self, actor: Actor, size_bytes: int) -> None:
        place = self._place[actor.id]
        self._working[place] += size_bytes
        self.peak_bytes[place] = max(self.peak_bytes[place], self._live[place] + self._working[place])
        if self._listener is not None:
            self._listener(place, actor.task.id, 0, size_bytes)
