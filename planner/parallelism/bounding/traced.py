"""A second process traces the model at a second micro-batch size while the first traces it at the first:

first     trace at size 1   its pieces   ........   bounds of all shapes
second    trace at size 2   its pieces ->
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from planner.ir.graph import LogicalGraph
from planner.parallelism.memory import KnownOfGraph
from planner.solve.beside import Beside, has_second_core

__all__ = ["TracedBeside"]


def may_trace_beside() -> bool:
    """Whether a fork may trace: as for bounds, and no GPU is in use, which a fork could not use."""
    torch = sys.modules.get("torch")
    return has_second_core() and not (torch is not None and torch.cuda.is_initialized())


@dataclass(slots=True)
class TracedBeside:
    """The graphs of a model, that at ``size`` from a second process, if there may be one.

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
    _beside: Beside[KnownOfGraph] = field(init=False)
    _found: LogicalGraph | None = None

    def __post_init__(self) -> None:
        self._beside = Beside(lambda: self.known_of(self.graph_of(self.size)), self.is_cancelled, self.allowed)

    def __call__(self, micro_batches: int) -> LogicalGraph:
        """The graph at that size; raises what ``graph_of`` raises."""
        if micro_batches != self.size or (self._found is None and self._beside.process is None):
            return self.graph_of(micro_batches)
        if self._found is None:
            known = self._beside.result()
            self.learn(known)
            self._found = known.graph
        return self._found

    @contextmanager
    def started(self) -> Iterator[Callable[[int], LogicalGraph]]:
        """Inside, the second process traces."""
        self._beside.start()
        try:
            yield self
        finally:
            self._beside.stop()
