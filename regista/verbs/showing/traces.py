"""The trace files that a verb reads together, and which steps of them it shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from planner.ir.errors import Mismatch
from planner.ir.files import load_trace
from planner.ir.plan import Plan
from planner.ir.traces.held import consecutive
from planner.ir.traces.trace import Trace

__all__ = ["load_steps", "steps_shown", "traces_of_one_plan"]


def steps_shown(plan: Plan, trace: Trace) -> tuple[Trace, list[str]]:
    """What of a trace can be shown (planner.ir.traces.held.consecutive), and what is to be said of it: nothing of a whole trace."""
    if not trace.held_steps:
        return trace, []
    part = consecutive(plan, trace)
    return part, [f"steps {part.about['trace steps']}"]


def load_steps(path: str) -> tuple[Plan, Trace]:
    """As load_trace; of a trace that holds some steps, those that can be shown, which is said on the standard error."""
    plan, trace = load_trace(path)
    shown, said = steps_shown(plan, trace)
    for line in said:
        print(f"{path}: {line}", file=sys.stderr)
    return plan, shown


def traces_of_one_plan(paths: Sequence[str]) -> tuple[Plan, list[Trace]]:
    """The plan, and a trace per file.

    Raises:
        Mismatch: the traces are of different plans.   InvalidFile: a file cannot be read.
    """
    loaded = [load_steps(path) for path in paths]
    ids = {plan.plan_id for plan, _ in loaded}
    if len(ids) > 1:
        raise Mismatch(f"the traces are of different plans ({', '.join(sorted(ids))}); draw traces of one plan together")
    return loaded[0][0], [trace for _, trace in loaded]
