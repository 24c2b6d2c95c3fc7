"""Which act must wait for which event, on devices that perform work later than it is enqueued.

Actors decide *whether* an act may be put into its lane.  Quotas then hold in the order of the lanes, provided that every act waits for

    what it reads      the events of those who wrote the block            (read after write)
    what it overwrites the events of those who read it, and wrote it last (write after read, write after write)

A block is identified by a key of any kind, a lane by its identity.  Acts of one lane need no event: a lane performs them in order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from backend.devices.device import Event, Lane

__all__ = ["Hazards", "Mark"]


@dataclass(slots=True, eq=False)
class Mark:
    """An act in its lane: between ``start`` and ``event``, and after all of ``waits``."""

    lane: Lane
    start: Event
    event: Event
    waits: tuple[Mark, ...] = ()
    span_ns: tuple[int, int] | None = None

    def times_ns(self) -> tuple[int, int]:
        """(start, end), to be asked when ``event`` was reached.

        It cannot have started before what it waited for had ended, whatever two clocks say of a microsecond.
        """
        stack = [self]
        while stack:
            mark = stack[-1]
            waits = mark.waits
            missing = [other for other in waits if other.span_ns is None]
            if mark.span_ns is None and missing:
                stack += missing
                continue
            if mark.span_ns is None:
                start_ns = max([mark.start.time_ns(), *(other.span_ns[1] for other in waits if other.span_ns is not None)])
                mark.span_ns = start_ns, max(start_ns, mark.event.time_ns())
                mark.waits = ()  # or every act of the run would be kept
            stack.pop()
        assert self.span_ns is not None
        return self.span_ns


@dataclass(slots=True)
class _Block:
    generation: int = -1
    writers: list[Mark] = field(default_factory=list)
    readers: list[Mark] = field(default_factory=list)
    before: list[Mark] = field(default_factory=list)
    """Readers and writers of the last generation: all who write the next one wait for them, and not for each other."""


class Hazards:
    """Not locked: the caller holds the lock of the actors, whose order of firing is the order of calls here."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, _Block] = {}

    def read(self, key: Hashable) -> list[Mark]:
        """What an act that reads the block waits for."""
        block = self._blocks.get(key)
        return list(block.writers) if block is not None else []

    def write(self, key: Hashable, generation: int) -> list[Mark]:
        """What an act that writes to the block waits for.

        Args:
            generation: number of the content; several acts may write parts of one (accumulation, several senders), in any order.
        """
        block = self._blocks.setdefault(key, _Block())
        if generation != block.generation:
            block.generation = generation
            block.before = [*block.readers, *block.writers]
            block.readers, block.writers = [], []
        return block.before

    def enqueued(self, mark: Mark, reads: Iterable[Hashable], writes: Iterable[Hashable]) -> None:
        """The act is in its lane."""
        for key in reads:
            _put(self._blocks.setdefault(key, _Block()).readers, mark)
        for key in writes:
            _put(self._blocks.setdefault(key, _Block()).writers, mark)


def _put(marks: list[Mark], mark: Mark) -> None:
    """The last one of a lane stands for all before it."""
    marks[:] = [other for other in marks if other.lane is not mark.lane]
    marks.append(mark)
