"""What a picture of traces shows: their last steps, on a clock that starts with them; predicted before measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.ir.errors import Mismatch
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Source, Trace
from planner.ir.units import MS
from regista.analysis.comparison import summarise

__all__ = ["PANEL", "Window", "compute_streams", "in_order", "picture_title", "show_last"]

PANEL: Mapping[Source, str] = {Source.SIM: "predicted (sim)", Source.RUN: "measured (run)"}


@dataclass(frozen=True, slots=True)
class Window:
    """What one panel shows: the acts that end in its time window and the ends of its steps, in seconds from the window's start.

    begin_s: the window's start on the trace's clock.
    """

    trace: Trace
    acts: tuple[Act, ...]
    begin_s: float
    step_ends_s: tuple[float, ...]
    first_step: int

    @property
    def length_s(self) -> float:
        return self.step_ends_s[-1]


def compute_streams(plan: Plan) -> frozenset[str]:
    """The streams on which forward, backward and update tasks stand; a device whose streams of these are idle is in a bubble."""
    return frozenset(task.stream for task in plan.tasks if task.kind.is_compute)


def in_order(traces: Sequence[Trace]) -> list[Trace]:
    """One trace, or the simulated one and then the measured one.

    Raises:
        Mismatch: no trace, more than two, or two of one source.
    """
    if not 1 <= len(traces) <= 2 or len({trace.source for trace in traces}) != len(traces):
        raise Mismatch(f"a Gantt picture takes 1 trace, or 1 simulated and 1 measured; got {[t.source.value for t in traces]}")
    return sorted(traces, key=lambda trace: trace.source is Source.RUN)


def picture_title(plan: Plan, traces: Sequence[Trace]) -> str:
    """The model, each trace's step time, and the error of the prediction if both are there.

    Raises:
        Mismatch: a trace is of another plan.
    """
    parts = []
    times = [summarise(plan, trace).step_time_s for trace in traces]
    for trace, step_s in zip(traces, times, strict=True):
        parts.append(f"{PANEL[trace.source]} {step_s / MS:.4g} ms per step")
    if len(times) == 2 and times[1]:
        parts.append(f"error {times[0] / times[1] - 1:+.1%}")
    return f"{plan.model}:  " + ",  ".join(parts)


def show_last(plan: Plan, trace: Trace, steps: int) -> Window:
    """The last ``steps`` steps of a trace (all of a shorter one).

    Raises:
        Mismatch: steps < 1.
    """
    if steps < 1:
        raise Mismatch(f"steps = {steps}; a picture shows at least 1 step")
    ends = trace.step_ends_s(plan)
    first = max(0, trace.steps - steps)
    begin_s = ends[first - 1] if first else min((act.start_s for act in trace.acts), default=0.0)
    acts = tuple(act for act in trace.acts if act.end_s > begin_s)
    return Window(trace, acts, begin_s, tuple(end - begin_s for end in ends[first:]), first)
