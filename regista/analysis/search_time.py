"""Seconds of search against the size of the model, per search method, as a table that can be continued.

A row is one search: the model with so many layers, on one mesh, by one method.  Its seconds are of the search alone; tracing the model and
stating the problem are in columns of their own.  Rows that the CSV has are not measured again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from pathlib import Path
from time import perf_counter

import numpy as np

from planner.ir.cluster import Cluster
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.reading import read_csv
from planner.ir.text import save_text
from planner.search import Method, build_model, search
from planner.search.model import SearchModel
from planner.solve import Edge, Problem
from planner.solve.bounds.message_passing import Dual
from planner.stages import assign_stages, prepare
from regista.programs import program_of

__all__ = ["Point", "Row", "load_rows", "measure", "points", "save_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One search to time.  limit_s: given to the method; one that does not keep to it is left to end."""

    model: str
    layers: int
    cluster: str
    mesh: str
    method: str
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A Point and what it took.  nodes, choices: of the choice problem, and the strategies of all nodes together.

    outcome: 'proven' (no choice is cheaper), 'found' (without such a proof), or why there is nothing.   kind: the numbers are of a run.
    """

    point: Point
    nodes: int
    choices: int
    trace_s: float
    build_s: float
    search_s: float
    objective_s: float | None
    lower_bound_s: float | None
    outcome: str

    @property
    def is_solved(self) -> bool:
        return self.objective_s is not None


_COLUMNS = (
    *(field.name for field in fields(Point)),
    *(field.name for field in fields(Row) if field.name != "point"),
    "kind",
)


def points(
    models: Sequence[str], layers: Sequence[int], methods: Sequence[str], cluster: Cluster, mesh: tuple[int, ...], limit_s: float
) -> tuple[Point, ...]:
    """Every model with every number of layers by every method, small models first.

    Raises:
        Unsupported: an unknown method, a model that takes no arguments, or a mesh of more devices than the cluster has.
    """
    unknown = sorted(set(methods) - {method.value for method in Method})
    if unknown:
        raise Unsupported(f"search methods {', '.join(unknown)} are not known; choose from {', '.join(m.value for m in Method)}")
    fixed = [model for model in models if not model.startswith("zoo:")]
    if fixed:
        raise Unsupported(f"{', '.join(fixed)}: the number of layers is varied, so models are zoo:NAME with a key 'layers'")
    if min(mesh) < 1 or prod(mesh) > cluster.num_devices:
        raise Unsupported(f"mesh {'x'.join(map(str, mesh))} needs {prod(mesh)} devices, {cluster.name} has {cluster.num_devices}")
    text = "x".join(map(str, mesh))
    return tuple(
        Point(model=model, layers=number, cluster=cluster.name, mesh=text, method=method, limit_s=limit_s)
        for number in sorted(set(layers))
        for model in dict.fromkeys(models)
        for method in dict.fromkeys(methods)
    )


def measure(
    wanted: Sequence[Point], known: Sequence[Row], cluster: Cluster, say: Callable[[str], None] = lambda text: None
) -> Iterator[Row]:
    """Search what ``known`` lacks, in order; a method that has overrun its limit is not asked about larger models.

    Raises:
        RegistaError: the model cannot be traced or laid out.
    """
    done = {row.point for row in known}
    missing = [point for point in wanted if point not in done]
    overrun = {(r.point.model, r.point.method): r.point.layers for r in known if r.point in wanted and r.search_s > r.point.limit_s}
    if missing:
        _warm_up()
    stated: dict[tuple[str, int], tuple[SearchModel, float, float]] = {}
    for point in missing:
        if overrun.get((point.model, point.method), point.layers) < point.layers:
            continue
        name = f"{point.model} with {point.layers} layers"
        if (point.model, point.layers) not in stated:
            say(f"stating {name} ...")
            stated = {(point.model, point.layers): _stated(point, cluster)}  # one at a time: large ones fill the memory
        model, trace_s, build_s = stated[point.model, point.layers]
        say(f"{point.method}: {name}, {len(model.problem.names)} nodes ...")
        began = perf_counter()
        try:
            solution = search(model, Method(point.method), seconds=point.limit_s)
        except Unsupported as refusal:
            objective_s, bound_s, outcome = None, None, str(refusal)
        else:
            objective_s, bound_s = solution.objective, solution.lower_bound
            outcome = "proven" if solution.gap <= 0 else "found"
        search_s = perf_counter() - began
        if search_s > point.limit_s:
            overrun[point.model, point.method] = point.layers
        yield Row(
            point=point,
            nodes=len(model.problem.names),
            choices=sum(map(len, model.problem.costs)),
            trace_s=trace_s,
            build_s=build_s,
            search_s=search_s,
            objective_s=objective_s,
            lower_bound_s=bound_s,
            outcome=outcome,
        )


def _stated(point: Point, cluster: Cluster) -> tuple[SearchModel, float, float]:
    began = perf_counter()
    graph = program_of(f"{point.model}{'&' if '?' in point.model else '?'}layers={point.layers}").graph(1)
    traced = perf_counter()
    mesh = tuple(map(int, point.mesh.split("x")))
    model = build_model(prepare(graph, assign_stages(graph, 1, ()), 1), mesh, cluster, (), 1)
    return model, traced - began, perf_counter() - traced


def _warm_up() -> None:
    """Compiled code is compiled before the clock runs."""
    unequal = np.array([[1.0, 0.0], [0.0, 1.0]])
    triangle = Problem(("a", "b", "c"), (np.zeros(2),) * 3, (Edge(0, 1, unequal), Edge(1, 2, unequal), Edge(0, 2, unequal)))
    Dual(triangle).sweep(1, np.inf)


def save_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Write the CSV that load_rows reads, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        values = asdict(row.point) | {field.name: getattr(row, field.name) for field in fields(Row) if field.name != "point"}
        values["kind"] = "run"
        writer.writerow(["" if values[column] is None else values[column] for column in _COLUMNS])
    save_text(path, text.getvalue())


def load_rows(path: str | Path) -> tuple[Row, ...]:
    """Rows of a CSV; none if there is no such file yet.

    Raises:
        InvalidFile: not a table of ours.
    """
    source = Path(path)
    if not source.exists():
        return ()
    header, *lines = read_csv(source, "give a table of search times (CSV), or another name") or [[]]
    if tuple(header) != _COLUMNS:
        raise InvalidFile(f"{source}: not a table of search times (its columns are not {', '.join(_COLUMNS)}); give another name")
    try:
        return tuple(_row(dict(zip(_COLUMNS, line, strict=True))) for line in lines if line)
    except (ValueError, OverflowError) as error:
        raise InvalidFile(f"{source}: not a readable table of search times ({error}); give another name") from None


def _row(entry: Mapping[str, str]) -> Row:
    point = Point(
        model=entry["model"],
        layers=int(entry["layers"]),
        cluster=entry["cluster"],
        mesh=entry["mesh"],
        method=entry["method"],
        limit_s=float(entry["limit_s"]),
    )
    return Row(
        point=point,
        nodes=int(entry["nodes"]),
        choices=int(entry["choices"]),
        trace_s=float(entry["trace_s"]),
        build_s=float(entry["build_s"]),
        search_s=float(entry["search_s"]),
        objective_s=float(entry["objective_s"]) if entry["objective_s"] else None,
        lower_bound_s=float(entry["lower_bound_s"]) if entry["lower_bound_s"] else None,
        outcome=entry["outcome"],
    )


# Okabe & Ito 2008, with a marker each, so that colour is not needed to tell them apart.
