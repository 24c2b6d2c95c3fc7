"""The trace of a game that was played to its end."""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir.actors.ledger import Ledger
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Source, Trace

__all__ = ["Entry", "sim_trace"]

Entry = tuple[float, float, int, int, Act]
"""(start, end, place of the actor in the Plan, number of the act, the act): in this order acts stand in a trace."""


def sim_trace(plan: Plan, steps: int, entries: list[Entry], ledger: Ledger, about: Mapping[str, str]) -> Trace:
    """A SIM trace, acts sorted by start; the peaks are the ledger's."""
    return Trace(
        source=Source.SIM,
        performer="simulator",
        plan_id=plan.plan_id,
        steps=steps,
        acts=tuple(act for *_, act in sorted(entries, key=lambda entry: entry[:4])),
        peak_bytes={str(rank): peak for rank, peak in ledger.peak_bytes.items()},
        register_bytes={str(rank): peak for rank, peak in ledger.register_bytes.items()},
        about=about,
    )
