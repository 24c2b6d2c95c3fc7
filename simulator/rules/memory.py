"""Live bytes per rank while the game is played (SEMANTICS 5, law 5).

A block lives from the begin of the first act that writes it until its last ack arrives at the producer:

    begin (phase 0)          end -> ready ... consumers ...  last ack
      |------------------------ block live --------------------|

State is always live.  A TRANSFER writes blocks that lie on the receiving ranks.  A running fragment adds its workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from planner.ir.actors.actor import Actor, ActorId, Message
from planner.ir.actors.routes import routes
from planner.ir.plan import Fragment, Plan, RegstKind, TaskKind

__all__ = ["Ledger", "Listener"]

Listener = Callable[[int, str, int, int], None]
"""Told (rank, id of a Regst or of a task, blocks more, bytes more) whenever a level changes; a task's bytes are its workspace, in 0 blocks."""


class _Shelf:
    """The blocks of one Regst on one rank.  Several senders may fill parts of one block: it lives while any of them holds it."""

    __slots__ = ("block_bytes", "held", "level", "rank", "regst")

    def __init__(self, regst: str, rank: int, block_bytes: int) -> None:
        self.regst = regst
        self.rank = rank
        self.block_bytes = block_bytes
        self.held: dict[ActorId, int] = {}
        self.level = 0


class _Line:
    """One producer's blocks on one rank: the consumers there, and how many blocks all of them have given back."""

    __slots__ = ("freed", "shelf", "sinks")

    def __init__(self, shelf: _Shelf, sinks: tuple[ActorId, ...]) -> None:
        self.shelf = shelf
        self.sinks = sinks
        self.freed = 0


class Ledger:
    """Counts live bytes per rank and remembers the peaks; ``listener`` hears of every change after the begin."""

    def __init__(self, plan: Plan, actors: Iterable[Actor], listener: Listener | None = None) -> None:
        self._listener = listener
        self._live = dict.fromkeys(range(plan.num_ranks), 0)
        for regst in plan.regsts:
            if regst.kind is RegstKind.STATE:
                for rank in plan.placement[regst.placement].ranks:
                    self._live[rank] += plan.block_bytes(regst)
        self._peak = dict(self._live)
        self._working = dict.fromkeys(self._live, 0)
        self._register_peak = dict(self._live)
        size = {regst.id: 0 if regst.kind is RegstKind.STATE else plan.block_bytes(regst) for regst in plan.regsts}
        shelves: dict[tuple[str, int], _Shelf] = {}
        self._lines: dict[ActorId, dict[str, dict[int, _Line]]] = {}
        self._workspace: dict[str, int] = {t.id: t.body.workspace_bytes for t in plan.tasks if isinstance(t.body, Fragment)}
        targets = {task.id: routes(plan, task) for task in plan.tasks if task.kind is TaskKind.TRANSFER}
        for actor in actors:
            here = targets[actor.task.id][actor.rank] if actor.task.id in targets else (actor.rank,)
            table = self._lines[actor.id] = {}
            for port in actor.outputs.values():
                if not size[port.regst]:
                    continue
                table[port.regst] = {}
                for rank in here:
                    shelf = shelves.setdefault((port.regst, rank), _Shelf(port.regst, rank, size[port.regst]))
                    shelf.held[actor.id] = 0
                    table[port.regst][rank] = _Line(shelf, tuple(sink for sink in port.acked if sink[1] == rank))

    def begin(self, actor: Actor) -> None:
        """The act takes a new block of every Regst of which it has none in hand."""
        for regst, lines in self._lines[actor.id].items():
            if actor.outputs[regst].phase == 0:
                for line in lines.values():
                    self._hold(line.shelf, actor.id, 1)
        if workspace := self._workspace.get(actor.task.id, 0):
            self._work(actor, workspace)

    def end(self, actor: Actor) -> None:
        """Workspace goes; a full block that nobody reads is recycled at once."""
        for regst, lines in self._lines[actor.id].items():
            if actor.outputs[regst].phase == 0:
                for line in lines.values():
                    if not line.sinks:
                        self._hold(line.shelf, actor.id, -1)
        if workspace := self._workspace.get(actor.task.id, 0):
            self._work(actor, -workspace)

    def acknowledged(self, actor: Actor, message: Message) -> None:
        """An ack has arrived at the producer ``actor``."""
        line = self._lines[actor.id].get(message.regst, {}).get(message.sender[1])
        if line is None:
            return
        acked = actor.outputs[message.regst].acked
        freed = min(acked[sink] for sink in line.sinks)
        if freed > line.freed:
            self._hold(line.shelf, actor.id, line.freed - freed)
            line.freed = freed

    def peaks(self) -> dict[str, int]:
        """Peak live bytes per rank, keyed as in Trace.peak_bytes."""
        return {str(rank): peak for rank, peak in self._peak.items()}

    def register_peaks(self) -> dict[str, int]:
        """The same without workspace, keyed as in Trace.register_bytes."""
        return {str(rank): peak for rank, peak in self._register_peak.items()}

    def _hold(self, shelf: _Shelf, producer: ActorId, blocks: int) -> None:
        shelf.held[producer] += blocks
        level = max(shelf.held.values())
        if level != shelf.level:
            self._grow(shelf, level - shelf.level)
            shelf.level = level

    def _grow(self, shelf: _Shelf, blocks: int) -> None:
        rank, size_bytes = shelf.rank, blocks * shelf.block_bytes
        self._live[rank] += size_bytes
        self._register_peak[rank] = max(self._register_peak[rank], self._live[rank])
        self._peak[rank] = max(self._peak[rank], self._live[rank] + self._working[rank])
        if self._listener is not None:
            self._listener(rank, shelf.regst, blocks, size_bytes)

    def _work(self, actor: Actor, size_bytes: int) -> None:
        rank = actor.rank
        self._working[rank] += size_bytes
        self._peak[rank] = max(self._peak[rank], self._live[rank] + self._working[rank])
        if self._listener is not None:
            self._listener(rank, actor.task.id, 0, size_bytes)
