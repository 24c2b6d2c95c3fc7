"""Tables for people: an explanation, a difference, a what-if, search times.  Everything here returns rich renderables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.plan import Plan
from planner.ir.units import show_bytes, show_s
from planner.lower import Schedule
from regista.analysis.budget import Holding, Spending, Use
from regista.analysis.diff import Change, Difference, Value
from regista.analysis.explain import Alternative, Explanation
from regista.analysis.search_time import Row
from regista.analysis.whatif import WhatIf

__all__ = [
    "difference_json",
    "explanation_json",
    "gap_text",
    "rows_json",
    "show_difference",
    "show_explanation",
    "show_rows",
    "show_whatif",
    "whatif_json",
]

Json = dict[str, object]


def gap_text(plan: Plan) -> str:
    """What the search proved about a Plan, in words."""
    ordered = Schedule(plan.options.get("schedule", Schedule.ONE_F_ONE_B.value)).has_order
    return _gap_text(plan) + ("; layouts are priced as in 1f1b, simulate for the step time of this schedule" if ordered else "")


def _gap_text(plan: Plan) -> str:
    objective_s, bound_s = plan.search.objective_s, plan.search.lower_bound_s
    if objective_s <= bound_s:
        return "proven: no plan is cheaper"
    if bound_s <= 0:
        return "no proof: this method gives no lower bound"
    return f"not proven: at most {(objective_s - bound_s) / objective_s:.2%} above the optimum (lower bound {show_s(bound_s)})"


# explain


def show_explanation(told: Explanation) -> RenderableType:
    """Search, alternatives, time per link, memory; in front of it comes show_plan."""
    plan = told.plan
    head = Table(title="search", title_justify="left", show_header=False)
    head.add_row("method", plan.search.method)
    head.add_row("objective", f"{show_s(plan.search.objective_s)} per step")
    head.add_row("lower bound", f"{show_s(plan.search.lower_bound_s)} per step")
    head.add_row("gap", f"{told.gap:.3%} ({gap_text(plan)})")
    if told.best_s is not None and told.best_s < plan.search.objective_s * (1 - 1e-9):
        head.add_row("best found now", f"{show_s(told.best_s)} per step")
    parts: list[RenderableType] = [head]
    if told.decisions:
        parts.append(_decisions(told))
    parts += [_time(told), _dearest(told.spending), _memory(told.holdings)]
    if told.note:
        parts.append(escape(f"note: {told.note}"))
    return Group(*parts)


def _decisions(told: Explanation) -> Table:
    table = Table(title="layouts, and what each alternative would cost", title_justify="left", caption_justify="left")
    for column in ("tensor or op", "what", "bytes", "layout"):
        table.add_column(column)
    for column in ("more per step", "%"):
        table.add_column(column, justify="right", no_wrap=True)
    for decision in told.decisions:
        names = (escape(decision.name), escape(decision.what), show_bytes(decision.size_bytes))
        rows: dict[tuple[str, str], list[str]] = {}
        for alternative in decision.alternatives:
            shown = alternative.layout + ("  (chosen)" if alternative.chosen else "")
            rows.setdefault(_price(alternative, told.best_s), []).append(shown)
        for price, layouts in rows.items():
            table.add_row(*names, escape("\n".join(layouts) if "->" in layouts[0] else "   ".join(layouts)), *price)
            names = ("", "", "")
        table.add_section()
    more = f"; {told.left_out} more match (--top shows more)" if told.left_out else ""
    table.caption = f"the best plan with that one layout fixed, minus the best of all{more}"
    return table


def _price(alternative: Alternative, best_s: float | None) -> tuple[str, str]:
    difference_s = alternative.difference_s
    if difference_s is None:
        return "not priced", ""
    if difference_s == float("inf"):
        return "no plan", ""
    about = "" if alternative.proven else "at most "
    share = f"{difference_s / best_s:+.2%}" if best_s else ""
    shown = show_s(difference_s) if abs(difference_s) >= 1e-6 else f"{difference_s / 1e-9:.3g} ns"
    return (f"{about}+{shown}", share) if difference_s else ("0", "")


def _time(told: Explanation) -> Table:
    table = Table(title="time per step, by kind and mesh axis", title_justify="left", caption_justify="left")
    for column in ("what", "axis", "link"):
        table.add_column(column)
    for column in ("acts", "bytes", "seconds", "%"):
        table.add_column(column, justify="right")
    total_s = sum(spent.time_s for spent in told.spending) or 1.0
    for (what, axis, link), spent in sorted(_by_link(told.spending).items(), key=lambda item: -sum(s.time_s for s in item[1])):
        time_s, size = sum(s.time_s for s in spent), sum(s.acts * s.size_bytes for s in spent)
        acts = str(sum(s.acts for s in spent))
        table.add_row(what, axis, link, acts, show_bytes(size) if size else "-", show_s(time_s), f"{time_s / total_s:.1%}")
    table.add_section()
    table.add_row("all", "", "", "", "", show_s(total_s), "")
    table.caption = "tasks of the plan at the cluster's prices, added up as if nothing overlapped; every act pays its overhead"
    return table


def _by_link(spending: Sequence[Spending]) -> Mapping[tuple[str, str, str], list[Spending]]:
    groups: dict[tuple[str, str, str], list[Spending]] = {}
    for spent in spending:
        groups.setdefault((spent.what, "-" if spent.axis is None else str(spent.axis), spent.link), []).append(spent)
    return groups


def _dearest(spending: Sequence[Spending], most: int = 8) -> Table:
    table = Table("task", "what", "axis", "link", "bytes", "seconds", "tensors", title="dearest communication", title_justify="left")
    for spent in [s for s in spending if s.moves][:most]:
        moves = ", ".join(spent.moves[:2]) + (f", ... ({len(spent.moves)})" if len(spent.moves) > 2 else "")
        axis = "-" if spent.axis is None else str(spent.axis)
        cells = (escape(spent.task), spent.what, axis, spent.link, show_bytes(spent.acts * spent.size_bytes), show_s(spent.time_s))
        table.add_row(*cells, escape(moves))
    return table


def _memory(holdings: Sequence[Holding]) -> Table:
    table = Table(title="memory per device", title_justify="left", caption_justify="left")
    table.add_column("use")
    for holding in holdings:
        table.add_column(escape(holding.placement), justify="right")
    for use in Use:
        table.add_row(use.value, *(show_bytes(holding.uses[use]) for holding in holdings))
    table.add_section()
    table.add_row("all", *(show_bytes(holding.total_bytes) for holding in holdings))
    table.add_row("at once", *(show_bytes(holding.live_bytes) for holding in holdings))
    table.add_row("of a device's", *(show_bytes(holding.device_bytes) for holding in holdings))
    table.add_row("share", *(f"{holding.total_bytes / holding.device_bytes:.1%}" for holding in holdings))
    fullest = holdings[0]
    table.caption = f"{fullest.placement} is the fullest; most of it is {fullest.binds.value}"
    return table


def explanation_json(told: Explanation) -> Json:
    """Seconds per step, bytes per device; an infinite price is null, as is one that was not found out ('priced' tells them apart)."""
    return {
        "gap": told.gap,
        "best_s": told.best_s,
        "decisions": [
            {
                "name": decision.name,
                "what": decision.what,
                "module": decision.module,
                "size_bytes": decision.size_bytes,
                "chosen": decision.chosen,
                "alternatives": [
                    {
                        "layout": a.layout,
                        "chosen": a.chosen,
                        "priced": a.objective_s is not None,
                        "objective_s": a.objective_s,
                        "difference_s": a.difference_s,
                        "proven": a.proven,
                    }
                    for a in decision.alternatives
                ],
            }
            for decision in told.decisions
        ],
        "left_out": told.left_out,
        "time": [
            {
                "what": what,
                "axis": spent[0].axis,
                "link": link,
                "acts": sum(s.acts for s in spent),
                "bytes": sum(s.acts * s.size_bytes for s in spent),
                "time_s": sum(s.time_s for s in spent),
            }
            for (what, _, link), spent in _by_link(told.spending).items()
        ],
        "communication": [
            {"task": s.task, "what": s.what, "axis": s.axis, "link": s.link, "acts": s.acts, "time_s": s.time_s, "moves": list(s.moves)}
            for s in told.spending
            if s.moves
        ],
        "memory": {
            holding.placement: {
                **{use.value: size for use, size in holding.uses.items()},
                "total": holding.total_bytes,
                "live": holding.live_bytes,
                "device": holding.device_bytes,
                "binds": holding.binds.value,
            }
            for holding in told.holdings
        },
        "note": told.note,
    }


# diff


def show_difference(found: Difference) -> RenderableType:
    """Tables of what differs; one line if nothing does."""
    if found.is_empty:
        return escape(f"nothing differs: both are plan {found.a.plan_id}" if found.a.plan_id == found.b.plan_id else "nothing differs")
    a, b = found.a.plan_id, found.b.plan_id
    parts: list[RenderableType] = []
    for title, changes in (
        ("plans", found.facts),
        ("layouts of parameters and states", found.layouts),
        ("op signatures", found.ops),
        ("quotas", found.quotas),
    ):
        if changes:
            parts.append(_changes(title, changes, a, b))
    if found.traffic:
        table = Table("communication per step", *(f"{what}, {plan}" for what in ("acts", "bytes", "seconds") for plan in (a, b)))
        table.title, table.title_justify = "communication", "left"
        for kind, (first, second) in found.traffic.items():
            acts, sizes = (str(first.acts), str(second.acts)), (show_bytes(first.size_bytes), show_bytes(second.size_bytes))
            table.add_row(kind, *acts, *sizes, show_s(first.time_s), show_s(second.time_s))
        parts.append(table)
    if found.memory:
        parts.append(_changes("memory of the fullest device", found.memory, a, b, size=True))
    if found.note:
        parts.append(escape(f"note: {found.note}"))
    return Group(*parts)


def _changes(title: str, changes: Sequence[Change], a: str, b: str, *, size: bool = False) -> Table:
    table = Table("what", a, b, title=title, title_justify="left")
    counted = any(change.count > 1 for change in changes)
    if counted:
        table.add_column("count", justify="right")
    for change in changes:
        cells = (_shown(change.what, change.a, size), _shown(change.what, change.b, size))
        table.add_row(escape(change.what), *cells, *((str(change.count),) if counted else ()))
    return table


def _shown(what: str, value: Value, size: bool) -> str:
    if value is None:
        return "-"
    if size and isinstance(value, int):
        return show_bytes(value)
    if isinstance(value, float) and what.endswith("_s") and not what.endswith("per_s"):
        return show_s(value)
    return escape(f"{value:g}" if isinstance(value, float) else str(value))


def difference_json(found: Difference) -> Json:
    """Every entry is what differs: 'a' and 'b' of the first and the second plan."""

    def listed(changes: Sequence[Change]) -> list[Json]:
        return [{"what": change.what, "a": change.a, "b": change.b, "count": change.count} for change in changes]

    return {
        "a": found.a.plan_id,
        "b": found.b.plan_id,
        "same": found.is_empty,
        "facts": listed(found.facts),
        "layouts": listed(found.layouts),
        "ops": listed(found.ops),
        "communication": {
            kind: {name: {"acts": t.acts, "bytes": t.size_bytes, "time_s": t.time_s} for name, t in (("a", first), ("b", second))}
            for kind, (first, second) in found.traffic.items()
        },
        "quotas": listed(found.quotas),
        "memory": listed(found.memory),
        "note": found.note,
    }


# whatif


def show_whatif(found: WhatIf) -> RenderableType:
    """Old decisions and new ones on the new cluster, then what changed."""
    before, after = found.difference.a, found.plan
    head = Table(title=escape(f"plan {before.plan_id} with {', '.join(found.sets)}"), title_justify="left", show_header=False)
    head.add_row("as planned, old cluster", f"{show_s(before.search.objective_s)} per step")
    head.add_row("old decisions, new cluster", _old(found))
    head.add_row("planned anew, new cluster", f"{show_s(after.search.objective_s)} per step ({gap_text(after)})")
    if found.old_s is not None and found.old_s < float("inf"):
        head.add_row("gained by planning anew", f"{1 - after.search.objective_s / max(found.old_s, 1e-30):.2%}")
    head.add_row("took", ", ".join(f"{what} {show_s(time_s)}" for what, time_s in found.seconds.items()))
    return Group(head, show_difference(found.difference))


def _old(found: WhatIf) -> str:
    if found.old_s is None:
        return "other devices: no decision carries over"
    if found.old_s == float("inf"):
        return "not allowed there"
    return f"{show_s(found.old_s)} per step" + ("" if found.old_fits else ", but they do not fit its memory")


def whatif_json(found: WhatIf) -> Json:
    return {
        "sets": list(found.sets),
        "plan_id": found.plan.plan_id,
        "old_objective_s": found.old_s,
        "old_fits": found.old_fits,
        "objective_s": found.plan.search.objective_s,
        "lower_bound_s": found.plan.search.lower_bound_s,
        "seconds": dict(found.seconds),
        "difference": difference_json(found.difference),
    }


# search-time


def show_rows(rows: Sequence[Row]) -> RenderableType:
    table = Table("model", "layers", "mesh", "nodes", "method", title="seconds of search (run)", title_justify="left")
    for column in ("trace", "state", "search", "objective"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("outcome")
    for row in rows:
        point = row.point
        times = (
            show_s(row.trace_s),
            show_s(row.build_s),
            show_s(row.search_s),
            "-" if row.objective_s is None else show_s(row.objective_s),
        )
        table.add_row(escape(point.model), str(point.layers), point.mesh, str(row.nodes), point.method, *times, escape(row.outcome))
    return table


def rows_json(rows: Sequence[Row]) -> list[Json]:
    return [
        {
            "model": row.point.model,
            "layers": row.point.layers,
            "mesh": row.point.mesh,
            "cluster": row.point.cluster,
            "method": row.point.method,
            "limit_s": row.point.limit_s,
            "nodes": row.nodes,
            "choices": row.choices,
            "trace_s": row.trace_s,
            "build_s": row.build_s,
            "search_s": row.search_s,
            "objective_s": row.objective_s,
            "lower_bound_s": row.lower_bound_s,
            "outcome": row.outcome,
        }
        for row in rows
    ]
