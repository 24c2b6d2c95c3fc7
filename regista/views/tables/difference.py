"""The tables of a difference between two plans."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.units import show_bytes, show_s
from regista.analysis.diff import Change, Difference, Value

__all__ = ["difference_json", "show_difference"]

Json = dict[str, object]


def show_difference(difference: Difference) -> RenderableType:
    """Tables of what differs; one line if nothing does."""
    if difference.is_empty:
        return escape(
            f"nothing differs: both are plan {difference.a.plan_id}" if difference.a.plan_id == difference.b.plan_id else "nothing differs"
        )
    a, b = difference.a.plan_id, difference.b.plan_id
    parts: list[RenderableType] = []
    for title, changes in (
        ("plans", difference.facts),
        ("layouts of parameters and states", difference.layouts),
        ("op signatures", difference.ops),
        ("quotas", difference.quotas),
    ):
        if changes:
            parts.append(_changes(title, changes, a, b))
    if difference.traffic:
        table = Table("what", "acts", "bytes", "seconds", title=f"communication per step, {a} -> {b}")
        for kind, (first, second) in difference.traffic.items():
            sizes, times = (show_bytes(first.size_bytes), show_bytes(second.size_bytes)), (show_s(first.time_s), show_s(second.time_s))
            table.add_row(kind, f"{first.acts} -> {second.acts}", " -> ".join(sizes), " -> ".join(times))
        parts.append(table)
    if difference.memory:
        parts.append(_changes("memory of the fullest device", difference.memory, a, b, size=True))
    if difference.note:
        parts.append(escape(f"note: {difference.note}"))
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


def difference_json(difference: Difference) -> Json:
    """Every entry is what differs: 'a' and 'b' of the first and the second plan."""

    def listed(changes: Sequence[Change]) -> list[Json]:
        return [{"what": change.what, "a": change.a, "b": change.b, "count": change.count} for change in changes]

    return {
        "a": difference.a.plan_id,
        "b": difference.b.plan_id,
        "same": difference.is_empty,
        "facts": listed(difference.facts),
        "layouts": listed(difference.layouts),
        "ops": listed(difference.ops),
        "communication": {
            kind: {name: {"acts": t.acts, "bytes": t.size_bytes, "time_s": t.time_s} for name, t in (("a", first), ("b", second))}
            for kind, (first, second) in difference.traffic.items()
        },
        "quotas": listed(difference.quotas),
        "memory": listed(difference.memory),
        "note": difference.note,
    }
