"""A second process that traces the model at the second size that bounds need, and cuts it into pieces, while the first process does so at the first:

    first     trace at size 1   its pieces   ........   bounds of all shapes
    second    trace at size 2   its pieces ->

It is a fork of the first, made before anything is traced.  What comes back is what the first process would have worked out itself; whatever goes
wrong in the second one, the first does itself, and says what there is to say.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import perf_counter

from planner.ir.graph import LogicalGraph
from planner.parallelism.bounding.ahead import has_second_core
from planner.parallelism.memory import KnownOfGraph

__all__ = ["TracedBeside", "traced_beside"]

_PATIENCE = 4.0
"""The second process may take so many times as long as the first did from the fork until it asked."""
_LEAST_S = 5.0
_POLL_S = 0.05


def may_trace_beside() -> bool:
    """Whether a fork may trace: as for bounds, and no GPU is in use, which a fork could not use."""
    torch = sys.modules.get("torch")
    return has_second_core() and not (torch is not None and torch.cuda.is_initialized())


@dataclass(slots=True)
class TracedBeside:
    """The graphs of a model, that at ``size`` from a second process.

    graph_of: micro-batches -> the graph at that size, traced in the process that calls it.
    known_of: what to work out of the graph in the second process.   learn: takes it in the first.
    size: in micro-batches.   is_cancelled: whether to wait no longer.
    """

    graph_of: Callable[[int], LogicalGraph]
    known_of: Callable[[LogicalGraph], KnownOfGraph]
    learn: Callable[[KnownOfGraph], None]
    size: int
    is_cancelled: Callable[[], bool] = lambda: False
    allowed: Callable[[], bool] = may_trace_beside
    _second: tuple[int, Connection] | None = None
    _began_s: float = field(default_factory=perf_counter)
    _found: LogicalGraph | None = None

    @property
    def process(self) -> int | None:
        """The second process's id; None: there is none."""
        return None if self._second is None else self._second[0]

    def __call__(self, micro_batches: int) -> LogicalGraph:
        """The graph at that size; raises what ``graph_of`` raises."""
        if micro_batches != self.size:
            return self.graph_of(micro_batches)
        if self._second is not None:
            self._found = self._received()
            self.stop()
        return self.graph_of(micro_batches) if self._found is None else self._found

    def start(self) -> None:
        """Fork the second process, if that is allowed."""
        if not self.allowed():
            return
        receiver, sender = Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries: the fork calls none that has any
            process = os.fork()
        if process == 0:
            try:
                receiver.close()
                self._trace(sender)
            finally:
                os._exit(0)
        sender.close()
        self._second, self._began_s = (process, receiver), perf_counter()

    def stop(self) -> None:
        """End the second process."""
        if self._second is not None:
            (process, receiver), self._second = self._second, None
            receiver.close()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def _received(self) -> LogicalGraph | None:
        """What the second process sends; None: nothing in time."""
        assert self._second is not None
        until_s = perf_counter() + max(_PATIENCE * (perf_counter() - self._began_s), _LEAST_S)
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while not self.is_cancelled() and perf_counter() < until_s:
                if self._second[1].poll(_POLL_S):
                    known: KnownOfGraph = self._second[1].recv()
                    self.learn(known)
                    return known.graph
        return None

    def _trace(self, sender: Connection) -> None:
        """What the second process does; it says nothing, because the first will say it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it, too; the first process decides
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # threads of the first process are not here
        with suppress(Exception):
            sender.send(self.known_of(self.graph_of(self.size)))


@contextmanager
def traced_beside(beside: TracedBeside) -> Iterator[Callable[[int], LogicalGraph]]:
    """Inside, the graphs, that of ``beside.size`` from a second process if there may be one."""
    beside.start()
    try:
        yield beside
    finally:
        beside.stop()
