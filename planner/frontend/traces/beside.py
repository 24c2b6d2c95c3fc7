"""Traces of a step by a fork of the process that needs them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from planner.frontend.to_graph.translate import Translated
from planner.frontend.to_graph.update import Update
from planner.frontend.traces.kept import TracedStep, Traces
from planner.frontend.tracing.trace import Step
from planner.ir.graph import LogicalGraph

__all__ = ["TracesBeside"]


@dataclass(frozen=True, slots=True)
class TracesBeside:
    """The traces of a step in the two processes; each has ``traces`` of its own."""

    traces: Traces
    step: Step
    update: Update

    def has(self, micro_batches: int) -> bool:
        """Whether this process has the trace."""
        return self.traces.has(micro_batches)

    def meanwhile(self) -> None:
        """What the first process does while the second traces: it checks that every input cut along the batch belongs to the batch.

        Raises:
            InvalidProgram: one may not.
        """
        self.traces.try_batch_dims(self.step)

    def graph(self, micro_batches: int) -> LogicalGraph:
        """In the second process: trace one of so many micro-batches, as Program.graph does, but without trying out the batch dims."""
        self.traces.take_as_tried()
        return self.traces.of(self.step, self.update, micro_batches).graph

    def beside_graph(self, micro_batches: int) -> bytes:
        """In the second process: what a trace has beside its graph, pickled for ``take``."""
        traced = self.traces.traced(self.step, self.update, micro_batches)
        of = traced.translated
        return pickle.dumps((of.constants, of.tracer, of.refusal, of.has_loss, traced.notes))

    def take(self, micro_batches: int, graph: LogicalGraph, beside_graph: bytes) -> None:
        """In the first process: keep a trace of the second's, as if it had been made here."""
        constants, tracer, refusal, has_loss, notes = pickle.loads(beside_graph)
        translated = Translated(graph=graph, constants=constants, tracer=tracer, refusal=refusal, has_loss=has_loss)
        self.traces.take(micro_batches, TracedStep(translated=translated, denominators=None, notes=notes))
