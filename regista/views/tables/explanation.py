"""The tables of an explanation: what was searched, what else was possible, where time goes, and what fills the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.plan import Plan
from planner.ir.units import show_bytes, show_s
from planner.parallelism.proof import covered_text
from planner.schedule import schedule_of
from regista.analysis.budget import Holding, Spending
from regista.analysis.explain import Alternative, Explanation
from regista.views.tables.balance import balance_json, show_balance

__all__ = ["explanation_json", "gap_text", "show_explanation"]

Json = dict[str, object]


def gap_text(plan: Plan) -> str:
    """What the search proved about a Plan, in words."""
    ordered = schedule_of(plan).has_order
    return (
        _gap_text(plan)
        + (" at the pessimistic prices, every constant at the bad end of its spread" if "robust" in plan.options else "")
        + ("; layouts are priced as in 1f1b, simulate for the step time of this schedule" if ordered else "")
    )


def _gap_text(plan: Plan) -> str:
    objective_s, bound_s = plan.search.objective_s, plan.search.lower_bound_s
    if objective_s <= bound_s:
        return f"proven: no plan is cheaper among {covered_text(plan)}"
    if bound_s <= 0:
        return "no proof: this method gives no lower bound"
    above = f"at most {(objective_s - bound_s) / objective_s:.2%} above the optimum (lower bound {show_s(bound_s)})"
    return f"not proven: {above} among {covered_text(plan)}"


def show_explanation(explanation: Explanation) -> RenderableType:
    """Alternatives, memory, balance, time per link; in front of it comes show_facts, which has the proof."""
    plan = explanation.plan
    parts: list[RenderableType] = []
    # Of several stages the search compares their mean, which is no step time.
    best_s = explanation.best_s if len(plan.placements) == 1 else None
    if best_s is not None and best_s < plan.search.objective_s * (1 - 1e-9):
        parts.append(f"best found now: {show_s(best_s)} per step")
    if explanation.decisions:
        parts.append(_decisions(explanation))
    parts += [_time(explanation), _memory(explanation.holdings)]
    if (balance := show_balance(explanation.spending)) is not None:
        parts.append(balance)
    parts.append(_dearest(explanation.spending))
    if explanation.note:
        parts.append(escape(f"note: {explanation.note}"))
    return Group(*parts)


def _decisions(explanation: Explanation) -> Table:
    table = Table(title="layouts, and what each alternative would cost", title_justify="left", caption_justify="left")
    for column in ("tensor or op", "what", "bytes", "layout"):
        table.add_column(column)
    for column in ("more per step", "%"):
        table.add_column(column, justify="right", no_wrap=True)
    for decision in explanation.decisions:
        names = (escape(decision.name), escape(decision.what), show_bytes(decision.size_bytes))
        rows: dict[tuple[str, str], list[str]] = {}
        for alternative in decision.alternatives:
            shown = alternative.layout + ("  (chosen)" if alternative.chosen else "")
            rows.setdefault(_price(alternative, explanation.best_s), []).append(shown)
        for price, layouts in rows.items():
            table.add_row(*names, escape("\n".join(layouts) if "->" in layouts[0] else "   ".join(layouts)), *price)
            names = ("", "", "")
        table.add_section()
    more = f"; {explanation.left_out} more match (--top shows more)" if explanation.left_out else ""
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


def _time(explanation: Explanation) -> Table:
    table = Table(title="time per step, by kind and mesh axis", title_justify="left", caption_justify="left")
    for column in ("what", "axis", "link"):
        table.add_column(column)
    for column in ("acts", "bytes", "seconds", "%"):
        table.add_column(column, justify="right")
    total_s = sum(spent.time_s for spent in explanation.spending) or 1.0
    for (what, axis, link), spent in sorted(_by_link(explanation.spending).items(), key=lambda item: -sum(s.time_s for s in item[1])):
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
    table = Table(title="memory per device, the fullest first", title_justify="left")
    table.add_column("stage", no_wrap=True)
    for column in ("blocks of all registers", "at once", "share"):
        table.add_column(column, justify="right")
    table.add_column("for what")
    for holding in sorted(holdings, key=lambda holding: -holding.total_bytes):
        uses = sorted(holding.uses.items(), key=lambda entry: -entry[1])
        shown = ", ".join(f"{use.value} {show_bytes(size)}" for use, size in uses if size)
        sizes = (show_bytes(holding.total_bytes), show_bytes(holding.live_bytes), f"{holding.live_bytes / holding.device_bytes:.1%}")
        table.add_row(escape(holding.placement), *sizes, shown)
    return table


def explanation_json(explanation: Explanation) -> Json:
    """Seconds per step, bytes per device; an infinite price is null, as is one that was not worked out (see 'priced')."""
    return {
        "gap": explanation.gap,
        "best_s": explanation.best_s,
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
            for decision in explanation.decisions
        ],
        "left_out": explanation.left_out,
        "balance": balance_json(explanation.spending),
        "time": [
            {
                "what": what,
                "axis": spent[0].axis,
                "link": link,
                "acts": sum(s.acts for s in spent),
                "bytes": sum(s.acts * s.size_bytes for s in spent),
                "time_s": sum(s.time_s for s in spent),
            }
            for (what, _, link), spent in _by_link(explanation.spending).items()
        ],
        "communication": [
            {"task": s.task, "what": s.what, "axis": s.axis, "link": s.link, "acts": s.acts, "time_s": s.time_s, "moves": list(s.moves)}
            for s in explanation.spending
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
            for holding in explanation.holdings
        },
        "note": explanation.note,
    }
