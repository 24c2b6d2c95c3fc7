"""The tables of a what-if: the old decisions and new ones on the changed cluster, then what changed."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.units import show_s
from regista.analysis.whatif import WhatIf
from regista.trust.interval import interval_text, lead_text, objective_interval
from regista.views.tables.difference import difference_json, show_difference
from regista.views.tables.explanation import gap_text

__all__ = ["show_whatif", "whatif_json"]

Json = dict[str, object]


def show_whatif(outcome: WhatIf) -> RenderableType:
    """Old decisions and new ones on the new cluster, then what changed."""
    before, after = outcome.difference.a, outcome.plan
    head = Table(title=escape(f"plan {before.plan_id} with {', '.join(outcome.sets)}"), title_justify="left", show_header=False)
    head.add_row("as planned, old cluster", f"{show_s(before.search.objective_s)} per step")
    head.add_row("old decisions, new cluster", _old(outcome))
    head.add_row("planned anew, new cluster", f"{show_s(after.search.objective_s)} per step ({gap_text(after)})")
    if outcome.old_s is not None and outcome.old_s < float("inf"):
        head.add_row("gained by planning anew", f"{1 - after.search.objective_s / max(outcome.old_s, 1e-30):.2%}")
    interval = objective_interval(outcome.plan)
    head.add_row("interval of the new step", interval_text(interval))
    if outcome.old_s is not None and after.search.objective_s < outcome.old_s * (1 - 1e-6) < float("inf"):
        head.add_row("is that much?", lead_text(after.search.objective_s, outcome.old_s, interval, of="planning anew"))
    head.add_row("took", ", ".join(f"{what} {show_s(time_s)}" for what, time_s in outcome.seconds.items()))
    return Group(head, show_difference(outcome.difference))


def _old(outcome: WhatIf) -> str:
    if outcome.old_s is None:
        return "other devices: no decision carries over"
    if outcome.old_s == float("inf"):
        return "not allowed there"
    return f"{show_s(outcome.old_s)} per step" + ("" if outcome.old_fits else ", but they do not fit its memory")


def whatif_json(outcome: WhatIf) -> Json:
    return {
        "sets": list(outcome.sets),
        "plan_id": outcome.plan.plan_id,
        "old_objective_s": outcome.old_s,
        "old_fits": outcome.old_fits,
        "objective_s": outcome.plan.search.objective_s,
        "lower_bound_s": outcome.plan.search.lower_bound_s,
        "interval": objective_interval(outcome.plan).to_json(),
        "seconds": dict(outcome.seconds),
        "difference": difference_json(outcome.difference),
    }
