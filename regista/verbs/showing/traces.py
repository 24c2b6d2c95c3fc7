"""The trace files that a verb reads together."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.errors import Mismatch
from planner.ir.files import load_trace
from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace

__all__ = ["traces_of_one_plan"]


def traces_of_one_plan(paths: Sequence[str]) -> tuple[Plan, list[Trace]]:
    """The plan, and a trace per file.

    Raises:
        Mismatch: the traces are of different plans.   InvalidFile: a file cannot be read.
    """
    loaded = [load_trace(path) for path in paths]
    ids = {plan.plan_id for plan, _ in loaded}
    if len(ids) > 1:
        raise Mismatch(f"the traces are of different plans ({', '.join(sorted(ids))}); draw traces of one plan together")
    return loaded[0][0], [trace for _, trace in loaded]
