"""The table of search times."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.units import show_s
from regista.analysis.search_time import Row

__all__ = ["rows_json", "show_rows"]

Json = dict[str, object]


def show_rows(rows: Sequence[Row]) -> RenderableType:
    """One line per search; a model and a mesh that all share stand in the title."""
    title, shared = "seconds of search (run)", len({(row.point.model, row.point.mesh) for row in rows}) == 1
    if shared:
        title += f": {escape(rows[0].point.model)} on a mesh of {rows[0].point.mesh}"
    table = Table(title=title, title_justify="left")
    for column in ("layers", "nodes", "method") if shared else ("model", "mesh", "layers", "nodes", "method"):
        table.add_column(column)
    for column in ("trace", "state", "search", "objective"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("outcome")
    for row in rows:
        point = row.point
        of_model = () if shared else (escape(point.model), point.mesh)
        times = (
            show_s(row.trace_s),
            show_s(row.build_s),
            show_s(row.search_s),
            "-" if row.objective_s is None else show_s(row.objective_s),
        )
        table.add_row(*of_model, str(point.layers), str(row.nodes), point.method, *times, escape(row.outcome))
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
