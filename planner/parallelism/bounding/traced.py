"""A second process traces the model at a second micro-batch size while the first traces it at the first:

first     checks   trace at size 1   its pieces   ........   bounds of all shapes
second    trace at size 2   its pieces ->

first     layouts of the best shape by a graph scaled from these two   ........   its Plan
second    trace at the shape's size ->   bounds of other shapes
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from planner.ir.graph import LogicalGraph, Op
from planner.ir.text import content_id
from planner.parallelism.memory import KnownOfGraph
from planner.search.literals import Differs, other_factors, with_ops
from planner.solve.beside import Beside, has_second_core, unheard

__all__ = ["SecondTrace", "TracedBeside"]


def may_trace_beside() -> bool:
    """Whether a fork may trace: as for bounds, and no GPU is in use, which a fork could not use."""
    torch = sys.modules.get("torch")
    return has_second_core() and not (torch is not None and torch.cuda.is_initialized())


class SecondTrace(Protocol):
    """How a second process traces for the first (planner.frontend.traces.beside)."""

    def has(self, micro_batches: int) -> bool:
        """Whether this process has the trace."""
        ...

    def meanwhile(self) -> None:
        """What the first process does while the second traces, because one of them has to; what it raises ends both."""
        ...

    def graph(self, micro_batches: int) -> LogicalGraph:
        """In the second process: trace the step at that micro-batch size, and return its graph."""
        ...

    def beside_graph(self, micro_batches: int) -> bytes:
        """In the second process: what a trace has beside its graph, pickled for ``take``."""
        ...

    def take(self, micro_batches: int, graph: LogicalGraph, beside_graph: bytes) -> None:
        """In the first process: keep a trace of the second's, as if it had been made here."""
        ...


@dataclass(slots=True)
class TracedBeside:
    """The graphs of a model, that at ``size`` from a second process, if there may be one.

    graph_of: micro-batches -> the graph at that size, traced in the process that calls it.   second: how the second process does so.
    known_of: what to work out of the graph in the second process.   learn: takes it in the first.
    size: in micro-batches.   is_cancelled: whether to wait no longer.
    """

    graph_of: Callable[[int], LogicalGraph]
    second: SecondTrace
    known_of: Callable[[LogicalGraph], KnownOfGraph]
    learn: Callable[[KnownOfGraph], None]
    size: int
    is_cancelled: Callable[[], bool] = lambda: False
    allowed: Callable[[], bool] = may_trace_beside
    _beside: Beside[tuple[KnownOfGraph, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self._beside = Beside(self._traced, self.is_cancelled, self.allowed)

    def _traced(self) -> tuple[KnownOfGraph, bytes]:
        """In the second process: what it sends of the trace at ``size``."""
        return self.known_of(self.second.graph(self.size)), self.second.beside_graph(self.size)

    def __call__(self, micro_batches: int) -> LogicalGraph:
        """The graph at that size; raises what ``graph_of`` raises."""
        if micro_batches == self.size and (received := self._beside.received()) is not None:
            known, beside_graph = received[0]
            self.learn(known)
            self.second.take(self.size, known.graph, beside_graph)
        return self.graph_of(micro_batches)

    def is_here(self, micro_batches: int) -> bool:
        """Whether the first process has the graph at that size, or a second one may not trace it."""
        return micro_batches == self.size or self.second.has(micro_batches) or not self.allowed()

    def trace_there(self, micro_batches: int, scaled: LogicalGraph | None) -> bytes:
        """In the second process: a trace, pickled for ``received``: its graph, or only the ops in which that differs from the scaled one; its id.

        Args:
            scaled: a graph of the same size that both processes have; None: there is none.
        """
        with unheard():
            graph = self.second.graph(micro_batches)
            beside_graph = self.second.beside_graph(micro_batches)
        sent: LogicalGraph | Mapping[str, Op] = graph
        if scaled is not None:
            with suppress(Differs):
                sent = other_factors(graph, scaled)
        return pickle.dumps((sent, content_id(graph), beside_graph), pickle.HIGHEST_PROTOCOL)

    def received(self, micro_batches: int, trace: bytes | None, scaled: LogicalGraph) -> tuple[LogicalGraph, str | None]:
        """In the first process: (the graph, its content id) from ``trace_there``'s trace; None instead of a trace: (the graph traced here, None)."""
        if trace is None:
            return self(micro_batches), None
        sent, graph_id, beside_graph = pickle.loads(trace)
        graph = sent if isinstance(sent, LogicalGraph) else with_ops(scaled, sent)
        self.second.take(micro_batches, graph, beside_graph)
        return self(micro_batches), graph_id

    @contextmanager
    def started(self) -> Iterator[Callable[[int], LogicalGraph]]:
        """Inside, the second process traces, unless the first has its trace; raises what ``second.meanwhile`` raises."""
        if not self.second.has(self.size):
            self._beside.start()
        try:
            self.second.meanwhile()
            yield self
        finally:
            self._beside.stop()
