"""A measured sweep as plain values: every point that was predicted and then run, with its error and its noise.

error       sim_step_s / run_step_s - 1              noise       run_again_step_s / run_step_s - 1  (the same Plan run again)
workload    the points of one model with its options: between them a planner has the choice
choice      measured step time of the point that is predicted fastest / that of the point that was fastest, less 1; 0: the right one was chosen
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from planner.ir.plan import TaskKind
from regista.analysis.statistics import quantile, rank_correlation
from regista.report.rows import Rows, number
from regista.sweep.point import PLAN_KEYS

__all__ = ["Group", "KindErrors", "Measured", "by_group", "by_kind", "is_measured_sweep", "measured_points", "workload"]

_NEEDED = ("point_id", "phase", "label", "sim_step_s", "run_step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One point.  Times in seconds, of one step.   noise: None if it was run once.   cells: its row as it stands in the CSV."""

    point_id: str
    label: str
    sim_s: float
    run_s: float
    noise: float | None
    cells: Mapping[str, str]

    @property
    def error(self) -> float:
        """As in the module's text; below 0: the prediction is too short."""
        return self.sim_s / self.run_s - 1

    @property
    def model(self) -> str:
        """Its name in the zoo; 'all' where the rows do not say."""
        return self.cells.get("model", "").removeprefix("zoo:") or "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points that belong together.   fastest: label of the one that is predicted fastest.   choice: as in the module's text."""

    name: str
    points: tuple[Measured, ...]

    @property
    def sizes(self) -> list[float]:
        """|error| of every point."""
        return [abs(point.error) for point in self.points]

    @property
    def noises(self) -> list[float]:
        """|noise| of every point that was run twice."""
        return [abs(point.noise) for point in self.points if point.noise is not None]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's of predicted and measured step time; None for fewer than 3 points or where one side is constant."""
        return rank_correlation([point.sim_s for point in self.points], [point.run_s for point in self.points])

    @property
    def fastest(self) -> Measured:
        return min(self.points, key=lambda point: point.sim_s)

    @property
    def choice(self) -> float:
        return self.fastest.run_s / min(point.run_s for point in self.points) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KindErrors:
    """Errors of one kind's busy seconds per step, busiest rank.   share: of all kinds' measured seconds."""

    kind: TaskKind
    errors: tuple[float, ...]
    share: float

    @property
    def median(self) -> float:
        return median(self.errors)

    @property
    def p90(self) -> float:
        return quantile([abs(error) for error in self.errors], 0.9)


def is_measured_sweep(rows: Rows) -> bool:
    """Does the CSV come from a sweep whose points are run, and has one been?"""
    return set(_NEEDED) <= set(rows.columns) and bool(measured_points(rows))


def measured_points(rows: Rows) -> tuple[Measured, ...]:
    """The points that were run, in the order in which they first appear; of a point that was run again, the last row.

    A row of the phase 'predicted' is never mixed with one that was run before or after it: each 'performed' row has its own prediction.
    """
    last: dict[str, Mapping[str, str]] = {}
    for row in rows.rows:
        if row["phase"] == "performed" and row.get("status", "ok") == "ok":
            last[row["point_id"]] = row
    points = []
    for point_id, row in last.items():
        sim_s, run_s, again_s = (number(row.get(column)) for column in ("sim_step_s", "run_step_s", "run_again_step_s"))
        if sim_s is None or run_s is None or run_s <= 0:
            continue
        noise = again_s / run_s - 1 if again_s is not None else None
        points.append(Measured(point_id=point_id, label=row["label"], sim_s=sim_s, run_s=run_s, noise=noise, cells=row))
    return tuple(points)


def by_group(points: Iterable[Measured], name: Callable[[Measured], str]) -> tuple[Group, ...]:
    """Points of equal name together, in the order in which the names first appear."""
    groups: dict[str, list[Measured]] = {}
    for point in points:
        groups.setdefault(name(point), []).append(point)
    return tuple(Group(name=key, points=tuple(group)) for key, group in groups.items())


def workload(rows: Rows, point: Measured) -> str:
    """The model and those of its options that the sweep varies: columns of a point that are no option of planning or running."""
    fields = rows.columns[rows.columns.index("label") + 1 :]
    fields = fields[: fields.index("plan_id")] if "plan_id" in fields else ()
    options = [name for name in fields if name not in (*PLAN_KEYS, "model") and not name.startswith(("run_", "simulate_"))]
    varied = [name for name in options if len({row[name] for row in rows.rows if row.get("model") == point.cells.get("model")}) > 1]
    return ", ".join((point.model, *(f"{name} {point.cells[name]}" for name in varied if point.cells[name])))


def by_kind(points: Sequence[Measured]) -> tuple[KindErrors, ...]:
    """Per kind of task that was both predicted and measured, the most measured time first."""
    seconds = {kind: [number(point.cells.get(f"run_{kind.value}_s")) or 0.0 for point in points] for kind in TaskKind}
    total_s = sum(map(sum, seconds.values()))
    kinds = []
    for kind in TaskKind:
        columns = (f"sim_{kind.value}_s", f"run_{kind.value}_s")
        pairs = [[number(point.cells.get(column)) for column in columns] for point in points]
        errors = tuple(sim / run - 1 for sim, run in pairs if sim is not None and run)
        if errors:
            kinds.append(KindErrors(kind=kind, errors=errors, share=sum(seconds[kind]) / total_s))
    return tuple(sorted(kinds, key=lambda kind: -kind.share))
