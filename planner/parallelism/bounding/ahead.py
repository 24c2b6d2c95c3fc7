"""A second process that bounds shapes ahead of the search, on a second core:

    first    bound A   bound C    take B   work out D ................   take E   take F   ...
    second        bound B    bound E     trace D   bound F   bound G

It is a fork of the first, so that it has all that was worked out, and goes through the same queue, best bound first; a shape that the other
process has begun is left to it, until that tells its bound.  While the first waits for such a bound, it bounds the next shapes of its queue that
nobody has begun.  While the first works out a shape, the second traces the shape's graph if it is asked to, and goes on with bounds.  What comes
back is what the first process would have worked out itself: every bound is a function of its shape and kind alone, so plans and bounds are those
of one process.  Whatever goes wrong in the second one, the first does itself.
"""

from __future__ import annotations

import heapq
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from select import select
from tempfile import mkstemp
from time import perf_counter
from typing import NamedTuple

from planner.ir.errors import RegistaError
from planner.parallelism.bounding.claims import Claims, Owner
from planner.parallelism.bounding.closer import BoundKind, Closer, Entry, WholeBounds, closer_bounds
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.shape import Shape
from planner.solve.beside import end, forked, has_second_core, patient_until_s

__all__ = ["Ahead"]

_WORTH_S = 1.0
"""A search that takes less is over before a second process would help."""
_LONG = 5_000
"""Ops of a model from which on the search surely takes longer."""
_POLL_S = 0.05

_Place = int
"""The number of a shape and a kind of bound."""
_Message = tuple[_Place, Closer | bool | tuple[int, int]]
"""A bound of a place, or its end: whether those that came before are all; or of so many micro-batches, where the trace lies: (offset, bytes)."""


class _Ask(NamedTuple):
    """The request to trace the model at one micro-batch size, given by how many micro-batches a step has."""

    micro_batches: int


class _Enough(NamedTuple):
    """A bound in seconds that dismisses a shape."""

    bound_s: float


_Told = tuple[Shape, BoundKind, Closer] | bool | _Ask | _Enough
"""By which bound of a kind a shape that the first process had begun, or has alone, stands in its queue; whether whole models may be bounded;
at how many micro-batches to trace; or from which bound on no higher one of a shape is looked for."""


@dataclass(slots=True)
class Ahead:
    """Closer bounds of shapes, from the second process where it has them, else worked out here.

    whole: of a shape's whole model.   shapes: all that may be asked about.
    after_s: seconds before the first fork.   allowed: whether to fork at all.   num_taken: bounds that came from the second process.
    trace_there: micro-batches -> a trace of the model, made and pickled in the second process; None: it traces nothing.
    """

    bounds: ShapeBounds
    whole: WholeBounds
    shapes: Sequence[Shape]
    after_s: float = _WORTH_S
    allowed: Callable[[], bool] = has_second_core
    trace_there: Callable[[int], bytes] | None = None
    num_taken: int = 0
    _began_s: float = field(default_factory=perf_counter)
    _number: dict[Shape, int] = field(default_factory=dict)
    _claims: Claims = field(default_factory=lambda: Claims(0))
    _second: tuple[int, Connection] | None = None
    _to_second: Connection | None = None
    _arrived: dict[_Place, list[Closer]] = field(default_factory=dict)
    _ended: dict[_Place, bool] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    """Micro-batches of the shapes, numbered."""
    _asked_s: dict[int, float] = field(default_factory=dict)
    """Micro-batches -> when the second process was asked to trace."""
    _traces: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Micro-batches -> (offset, bytes) of a trace in the file."""
    _file: int | None = None
    """The file without a name where the second process leaves what is too long for a pipe, which holds up who writes until the other reads."""
    _known: set[Shape] = field(default_factory=set)
    """Shapes of which the second process knows."""
    _queue: Sequence[Entry] = ()
    """The queue of the search in this process: shapes with their bounds, as they are now."""

    def __post_init__(self) -> None:
        self._number = {shape: number for number, shape in enumerate(dict.fromkeys(self.shapes))}
        self._sizes = {size: number for number, size in enumerate(dict.fromkeys(shape.micro_batches for shape in self.shapes))}

    @property
    def process(self) -> int | None:
        """The second process's id; None: there is none."""
        return None if self._second is None else self._second[0]

    def closer(self, shape: Shape, kind: BoundKind, memory_binds: bool) -> Iterator[Closer]:
        """The bounds of the kind after ``kind``; where the second process ends in the middle, they begin again."""
        place = self._place(shape, kind)
        if self._second is not None and not self._claims.claim(place, Owner.FIRST):
            taken = 0
            while self._has_more(place, taken):
                self.num_taken += not taken
                yield self._arrived[place][taken]
                taken += 1
        elif self._ended.get(place):
            yield from self._arrived.get(place, ())
        if not self._ended.get(place):
            yield from closer_bounds(self.bounds, self.whole, shape, kind, memory_binds)

    def known(self, shape: Shape, kind: BoundKind) -> Sequence[Closer] | None:
        """The bounds of the kind after ``kind`` from the second process; None: it has not said by now that these are all."""
        with suppress(EOFError, OSError):
            while self._second is not None and self._second[1].poll():
                self._note(self._second[1].recv())
        place = self._place(shape, kind)
        return self._arrived.get(place, ()) if self._ended.get(place) else None

    def tell(self, shape: Shape, kind: BoundKind, found: Closer) -> None:
        """Tell the second process by which bound a shape now stands in the queue, unless it is too busy to listen.

        It goes on with the shape when its turn comes; of those that it found itself it knows already.
        """
        if self._to_second is not None and self._claims.owner(self._place(shape, BoundKind(kind - 1))) is Owner.FIRST:
            self._send((shape, kind, found))

    def _send(self, told: _Told) -> bool:
        """Send to the second process; False: it is too busy to listen, or gone."""
        if self._to_second is None:
            return False
        with suppress(OSError):
            if select([], [self._to_second], [], 0)[1]:
                self._to_second.send(told)
                if not isinstance(told, bool | _Ask | _Enough):
                    self._known.add(told[0])
                return True
        return False

    def tell_enough(self, bound_s: float) -> None:
        """Tell the second process the bound in seconds that dismisses a shape; while it is too busy to listen, it is not told."""
        self._send(_Enough(bound_s))

    def ask_for_trace(self, micro_batches: int) -> bool:
        """Ask the second process to trace as soon as it has ended the bound that it works on; False: there is none, or it is too busy to listen."""
        if micro_batches in self._asked_s:
            return True
        if self._file is None or not self._send(_Ask(micro_batches)):
            return False
        self._asked_s[micro_batches] = perf_counter()
        return True

    def trace(self, micro_batches: int) -> bytes | None:
        """Wait for the trace that was asked for; None: the second process has not begun with it, and leaves it, or failed, or takes too long."""
        if self._claims.claim(self._place_of_trace(micro_batches), Owner.FIRST):
            return None
        until_s = patient_until_s(self._asked_s[micro_batches])
        while micro_batches not in self._traces and self._second is not None and perf_counter() < until_s:
            if self.bounds.time_limit.is_cancelled:
                break
            try:
                if self._second[1].poll(_POLL_S):
                    self._note(self._second[1].recv())
            except (EOFError, OSError):
                self.stop()
        offset, size = self._traces.get(micro_batches, (0, 0))
        return os.pread(self._file, size, offset) if self._file is not None and size else None

    def _renew(self, bound_whole: bool) -> bool:
        """Tell the second process what ``start`` would have told it; False: it does not listen, or there is none.

        It goes on with what it knows of meshes, and memory that both have need not be copied again.
        """
        new: list[_Told] = [
            (shape, kind, Closer(bound_s=s, memory_binds=binds)) for s, shape, kind, binds in self._queue if shape not in self._known
        ]
        return self._second is not None and all(self._send(told) for told in (*new, bound_whole))

    def start(
        self,
        queue: Sequence[Entry],
        *,
        renewed: bool = False,
        bound_whole: bool = False,
        without: Shape | None = None,
        bound_ends: bool = True,
    ) -> None:
        """Fork a second process that goes through the queue, if there is none.

        Args:
            renewed: the one that there is learns which shapes have come into the queue since, and ``bound_whole``.
            bound_whole: it may bound whole models, too.   without: a shape that the first process works out.
            bound_ends: the end stages of that shape are bounded, which is all that is.
        """
        self._queue = queue
        if without is not None and self._second is not None:
            for kind in BoundKind:
                if kind is not BoundKind.WITHIN_MEMORY or not bound_ends:  # of the bound after it
                    self._claims.claim(self._place(without, kind), Owner.FIRST)
        after_s = 0.0 if self.bounds.num_ops > _LONG else self.after_s
        is_worth = len(queue) > 1 and perf_counter() - self._began_s >= after_s
        if (self._second is not None and not renewed) or not is_worth or not self.allowed() or self._renew(bound_whole):
            return
        self.stop()
        self._known = {entry[1] for entry in queue}
        if self.trace_there is not None and self._file is None:
            with suppress(OSError):  # without room for a file nothing is asked for
                self._file, name = mkstemp()
                os.unlink(name)
        self._claims = Claims(len(self._number) * len(BoundKind) + len(self._sizes))
        receiver, sender = Pipe(duplex=False)
        listener, teller = Pipe(duplex=False)

        def go_ahead() -> None:
            receiver.close()
            teller.close()
            self._go_ahead(list(queue), sender, listener, bound_whole)

        process = forked(go_ahead)
        sender.close()
        listener.close()
        self._second, self._to_second = (process, receiver), teller

    def close(self) -> None:
        """End the second process, and drop its traces."""
        self.stop()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def stop(self) -> None:
        """End the second process."""
        if self._second is not None:
            (process, receiver), self._second = self._second, None
            receiver.close()
            if self._to_second is not None:
                self._to_second.close()
                self._to_second = None
            end(process)

    def _place(self, shape: Shape, kind: BoundKind) -> _Place:
        return self._number[shape] * len(BoundKind) + kind - 1

    def _place_of_trace(self, micro_batches: int) -> int:
        """Where a trace is claimed, behind all bounds."""
        return len(self._number) * len(BoundKind) + self._sizes[micro_batches]

    def _has_more(self, place: _Place, taken: int) -> bool:
        """Whether the second process gives more than ``taken`` bounds of a place that it has begun; bounds other shapes until that is known."""
        while len(self._arrived.get(place, ())) <= taken:
            if place in self._ended or self._second is None or self.bounds.time_limit.is_cancelled:
                return False
            try:
                if self._second[1].poll() or (not self.bound_next() and self._second[1].poll(_POLL_S)):
                    self._note(self._second[1].recv())
            except (EOFError, OSError):
                self.stop()
        return True

    def bound_next(self) -> bool:
        """Bound the first shape of the queue that nobody has begun, for when it is asked about; False: there is none, or the time is up."""
        if self.bounds.time_limit.is_up():
            return False
        for _, shape, kind, memory_binds in sorted(entry for entry in self._queue if entry[2] < BoundKind.WITHIN_MEMORY):
            place = self._place(shape, kind)
            if place in self._ended or self._claims.owner(place) is not Owner.NOBODY or not self._claims.claim(place, Owner.FIRST):
                continue
            with suppress(RegistaError):  # it is raised when the shape is asked about
                self._arrived[place] = list(closer_bounds(self.bounds, self.whole, shape, kind, memory_binds))
                self._ended[place] = True
            return True
        return False

    def _note(self, message: _Message) -> None:
        place, content = message
        if isinstance(content, Closer):
            self._arrived.setdefault(place, []).append(content)
        elif isinstance(content, tuple):
            self._traces[place] = content
        else:
            self._ended[place] = content

    def _traced(self, micro_batches: int) -> tuple[int, int]:
        """In the second process: (offset, bytes) of a trace in the file; no bytes: it failed, and the first process traces and says why."""
        assert self.trace_there is not None and self._file is not None
        trace = b""
        with suppress(Exception):
            trace = self.trace_there(micro_batches)
        offset = os.lseek(self._file, 0, os.SEEK_END)
        return offset, os.pwrite(self._file, trace, offset)

    def _go_ahead(self, queue: list[Entry], sender: Connection, listener: Connection, bound_whole: bool) -> None:
        """What the second process does, until it is ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it, too; the first process decides
        first = os.getppid()
        self.bounds.trace_no_more()
        heapq.heapify(queue)
        closest: list[Entry] = []  # they wait until whole models may be bounded
        enough_s = inf
        while os.getppid() == first:
            while listener.poll(0 if queue else _POLL_S):
                told: _Told = listener.recv()
                if isinstance(told, bool):
                    bound_whole = told
                    queue, closest = [*queue, *closest], []
                    heapq.heapify(queue)
                elif isinstance(told, _Ask):
                    if self._claims.claim(self._place_of_trace(told.micro_batches), Owner.SECOND):
                        sender.send((told.micro_batches, self._traced(told.micro_batches)))
                elif isinstance(told, _Enough):
                    enough_s = told.bound_s
                else:
                    shape, kind, found = told
                    heapq.heappush(queue, (found.bound_s, shape, kind, found.memory_binds))
            if not queue:
                continue
            least_s, shape, kind, memory_binds = heapq.heappop(queue)
            known = self._ended.get(place := self._place(shape, kind))
            if kind is BoundKind.WITHIN_MEMORY and not bound_whole:
                closest.append((least_s, shape, kind, memory_binds))
                continue
            if kind is BoundKind.WHOLE_MODEL or not (known or self._claims.claim(place, Owner.SECOND)):
                continue
            found = Closer(bound_s=least_s, memory_binds=memory_binds)
            try:
                for found in self._arrived.get(place, ()) if known else closer_bounds(self.bounds, self.whole, shape, kind, memory_binds):
                    if not known:
                        sender.send((place, found))
                    if found.bound_s >= enough_s:
                        break
            except RegistaError:
                sender.send((place, False))
                continue
            if not known:
                sender.send((place, True))
            if not found.too_large_bytes:
                heapq.heappush(queue, (max(least_s, found.bound_s), shape, BoundKind(kind + 1), found.memory_binds))
