"""The traces of a step: each size is traced once, by this process or by a fork of it."""

from planner.frontend.traces.beside import TracesBeside
from planner.frontend.traces.kept import TracedStep, Traces

__all__ = ["TracedStep", "Traces", "TracesBeside"]
