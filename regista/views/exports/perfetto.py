"""Traces as Chrome trace-event JSON, for https://ui.perfetto.dev and chrome://tracing.

process  "rank 0 (sim)"      one per trace and rank; traces start together at 0
thread   a stream            complete events (ph "X"), ts and dur in microseconds; "idle_before" says what the stream waited for
counter  "live bytes"        one per rank (ph "C"), stacked by category
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.ir.errors import Mismatch
from planner.ir.plan import Boxing, Plan
from planner.ir.text import canonical, save_text
from planner.ir.traces.trace import Act, Trace
from planner.ir.units import US, show_s
from simulator.analysis.category import Category
from simulator.analysis.curve import memory_curves
from simulator.analysis.idle import idle_times

__all__ = ["save_perfetto", "trace_events"]

Event = dict[str, object]


def trace_events(plan: Plan, traces: Sequence[Trace]) -> tuple[Event, ...]:
    """Metadata events first, then per trace one complete event per act, in order of time, and the live bytes of its ranks.

    Returns:
        events with ts and dur in microseconds from the first act of their own trace.

    Raises:
        Mismatch: no trace, or one of another plan.

    Source: "Trace Event Format", Google 2016: complete, counter and metadata events.
    """
    if not traces:
        raise Mismatch("no trace to write; give at least one")
    for trace in traces:
        if trace.plan_id != plan.plan_id:
            raise Mismatch(f"the {trace.source.value} trace is of plan {trace.plan_id}, not of {plan.plan_id} ({plan.model})")
    named = [event for number, trace in enumerate(traces) for event in _names(plan, trace, number)]
    done = [event for number, trace in enumerate(traces) for event in (*_acts(plan, trace, number), *_live_bytes(plan, trace, number))]
    return (*named, *done)


def save_perfetto(plan: Plan, traces: Sequence[Trace], path: str | Path) -> None:
    """Write one JSON file; it appears whole or not at all.

    Raises:
        Mismatch: see trace_events.   InvalidFile: path cannot be written.
    """
    about: dict[str, object] = {"plan_id": plan.plan_id, "model": plan.model}
    save_text(path, canonical({"traceEvents": trace_events(plan, traces), "displayTimeUnit": "ms", "otherData": about}) + "\n")


def _pid(plan: Plan, trace_number: int, rank: int) -> int:
    return trace_number * plan.num_ranks + rank + 1


def _names(plan: Plan, trace: Trace, trace_number: int) -> Iterator[Event]:
    streams = sorted({(act.rank, plan.task[act.task].stream) for act in trace.acts})
    threads = {stream.id: number + 1 for number, stream in enumerate(plan.streams)}
    for rank in sorted({rank for rank, _ in streams}):
        pid = _pid(plan, trace_number, rank)
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"rank {rank} ({trace.source.value})"}}
        # Rank by rank, each trace's process beneath the other's.
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": rank * 16 + trace_number}}
    for rank, stream in streams:
        place: Event = {"pid": _pid(plan, trace_number, rank), "tid": threads[stream]}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": stream}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": threads[stream]}}


def _acts(plan: Plan, trace: Trace, trace_number: int) -> Iterator[Event]:
    threads = {stream.id: number + 1 for number, stream in enumerate(plan.streams)}
    zero_s = _zero_s(trace)
    waited: dict[Act, list[str]] = defaultdict(list)
    for gap in idle_times(plan, trace):
        if gap.act is not None:
            waited[gap.act].append(f"{show_s(gap.duration_s)} {gap}")
    for act in sorted(trace.acts, key=lambda a: (a.start_s, a.end_s, a.rank, a.task)):
        task = plan.task[act.task]
        step, micro_batch = divmod(act.number, task.acts)
        args: dict[str, object] = {
            "act": act.number,
            "step": step,
            "micro_batch": micro_batch,
            "waited_us": (act.start_s - act.ready_s) / US,
        }
        if act in waited:
            args["idle_before"] = "; ".join(waited[act])
        if isinstance(task.body, Boxing):
            args["collective"] = task.body.collective.value
        yield {
            "ph": "X",
            "name": task.id,
            "cat": task.kind.value,
            "pid": _pid(plan, trace_number, act.rank),
            "tid": threads[task.stream],
            "ts": (act.start_s - zero_s) / US,
            "dur": act.duration_s / US,
            "args": args,
        }


def _live_bytes(plan: Plan, trace: Trace, trace_number: int) -> Iterator[Event]:
    """One counter event per level that holds for some time, on the clock of the trace's acts."""
    zero_s = _zero_s(trace)
    for rank, curve in memory_curves(plan, trace).items():
        for number, at_s in enumerate(curve.times_s):
            if number + 1 < len(curve.times_s) and curve.times_s[number + 1] == at_s:
                continue
            levels = {category.value: curve.levels_bytes[category][number] for category in Category}
            # A collective's blocks may be taken before the first act starts.
            at_us = max(at_s - zero_s, 0.0) / US
            yield {"ph": "C", "name": "live bytes", "pid": _pid(plan, trace_number, rank), "tid": 0, "ts": at_us, "args": levels}


def _zero_s(trace: Trace) -> float:
    return min((act.start_s for act in trace.acts), default=0.0)
