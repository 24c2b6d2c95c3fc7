"""A planned point, reduced to what a simulation needs: the compiled engine's tables, and per task the work that constants turn into seconds.

    Plan --compile_plan (ranks folded)--> tables        actor --> row (one per different act) --> products, sweeps, kernels, bytes on links

A Work is kept on disk under the content id of its point and of this file's VERSION, so that a calibration that simulates thousands of times
plans each point once, and goes on after an interruption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.fidelity.kernels import Kernels, Product, kernels_of
from experiments.fidelity.plans import Planned, plan_of, reference_cluster
from experiments.fidelity.points import Point
from planner.cost.mesh_links import axis_link, hop_link
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.collective import Collective, sent_bytes
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Boxing, Fragment, Plan, Task, TaskKind
from planner.ir.sbp import Split
from planner.ir.text import content_id
from simulator.compiled import compile_plan
from simulator.compiled.arrays import PlanArrays

__all__ = ["Row", "Work", "Works", "kept_work", "work_of", "work_path"]

VERSION = 5
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Row(IntEnum):
    """What a row is: its formula stands in constants.py.  PASSED collectives act per micro-batch, ONCE per step."""

    FREE = 0
    COMPUTE = 1
    UPDATE = 2
    PASSED = 3
    ONCE = 4
    TRANSFER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """kind, sweep_bytes, kernels, parameters, sent_bytes, crossing, group, turns: shape [rows].  product: [n, 6]: row, count, batch, m, n, k.

    sent_bytes: by one device over its port.   group: devices that meet in the collective (a transfer: 2).
    turns: how often a collective's ring is gone around: twice by an all-reduce, which is a reduce-scatter and an all-gather.
    crossing: devices of a node that send out of it at the same time (0: none does).
    actor_row: [actors].   classes: of ranks.
    """

    kind: Ints
    sweep_bytes: Floats
    kernels: Floats
    parameters: Floats
    sent_bytes: Floats
    crossing: Floats
    group: Floats
    turns: Floats
    product: Ints
    actor_row: Ints
    classes: int
    tables: PlanArrays


Works = Sequence[Work]


@dataclass(frozen=True, slots=True)
class _Unit:
    """No link has a bandwidth that matters but the node's ports, which have 1 byte per second: a reading of how many share them."""

    cluster: Cluster

    @classmethod
    def of(cls, point: Point) -> _Unit:
        cluster = reference_cluster(point)
        return cls(
            replace(
                cluster,
                node=LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e14),
                nic=LinkSpec(latency_s=1.0, bandwidth_bytes_per_s=1.0),
            )
        )

    def shared_by(self, link: LinkSpec) -> float:
        return 1.0 / link.bandwidth_bytes_per_s if link.latency_s > 0 else 0.0


def work_of(point: Point, planned: Planned) -> Work:
    """Reduce a planned point."""
    plan, unit = planned.plan, _Unit.of(point)
    rows: dict[tuple[object, ...], int] = {}
    row_of: dict[str, int] = {}
    for task in plan.tasks:
        row_of[task.id] = rows.setdefault(_row(plan, task, planned, unit), len(rows))
    compiled = compile_plan(plan, _NoCost(), sizes=False)
    kernel_rows = list(rows)
    products = [
        (i, count, p.batch, p.m, p.n, p.k)
        for i, row in enumerate(kernel_rows)
        for p, count in row[-1]  # type: ignore[attr-defined]
    ]
    column = [np.array([row[c] for row in kernel_rows], dtype=np.float64) for c in range(8)]
    return Work(
        kind=column[0].astype(np.int64),
        sweep_bytes=column[1],
        kernels=column[2],
        parameters=column[3],
        sent_bytes=column[4],
        crossing=column[5],
        group=column[6],
        turns=column[7],
        product=np.array(products, dtype=np.int64).reshape(-1, 6),
        actor_row=np.array([row_of[task.id] for task, _ in compiled.actors], dtype=np.int64),
        classes=compiled.ranks.num_classes,
        tables=compiled.tables,
    )


class _NoCost:
    """Seconds come later."""

    id = "none"

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return 0.0

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


def _row(plan: Plan, task: Task, planned: Planned, unit: _Unit) -> tuple[object, ...]:
    """(kind, sweep bytes, kernels, parameters, sent bytes, crossing, group, turns, products with their counts)."""
    placement = plan.placement[task.placement]
    if isinstance(task.body, Fragment):
        made = kernels_of(task.body.ops, planned.types, frozenset(a.name for a in task.writes))
        kind = Row.UPDATE if task.kind is TaskKind.UPDATE else Row.COMPUTE
        return (kind, made.sweep_bytes, made.num_kernels, made.parameters, 0.0, 0.0, 0, 0, _counted(made))
    if isinstance(task.body, Boxing):
        body = task.body
        if body.collective is Collective.LOCAL:
            return (Row.FREE, 0, 0, 0, 0.0, 0.0, 0, 0, ())
        total = 0.0
        for read in task.reads:
            local = plan.regst[read.regst].tensors[read.index].local_bytes(placement)
            total += local * placement.mesh[body.axis] if isinstance(body.src[body.axis], Split) else local
        sent = sent_bytes(body.collective, total, placement.mesh[body.axis])
        crossing = unit.shared_by(axis_link(unit.cluster, placement.mesh, body.axis, body.collective))
        kind = Row.PASSED if _is_passed(plan, task) else Row.ONCE
        turns = 2 if body.collective is Collective.ALL_REDUCE else 1
        return (kind, 0, 0, 0, sent, crossing, placement.mesh[body.axis], turns, ())
    if task.kind is TaskKind.TRANSFER:
        target = plan.regst[task.produces[0].regst]
        link = hop_link(unit.cluster, placement.ranks, plan.placement[target.placement].ranks)
        return (Row.TRANSFER, 0, 0, 0, float(plan.block_bytes(target)), unit.shared_by(link), 2, 0, ())
    return (Row.FREE, 0, 0, 0, 0.0, 0.0, 0, 0, ())


def _is_passed(plan: Plan, task: Task) -> bool:
    """Whether a collective belongs to the passes of micro-batches, not to the end of the step.

    With one micro-batch everything acts once; then it does if the forward or backward part reads what it makes.
    """
    if plan.micro_batches > 1:
        return task.acts == plan.micro_batches
    readers = [reader for port in task.produces for reader, _ in plan.consumers[port.regst]]
    return any(reader.kind is TaskKind.FORWARD or reader.kind.is_backward for reader in readers)


def _counted(made: Kernels) -> tuple[tuple[Product, int], ...]:
    return tuple(sorted(Counter(made.products).items()))


def work_path(point: Point, folder: Path) -> Path:
    """Where a point's Work is kept; what was measured there is no part of the name's content."""
    return folder / f"{content_id((VERSION, replace(point, paper_s=0.0)))}.npz"


def kept_work(point: Point, folder: Path, graphs: dict[tuple[object, ...], LogicalGraph] | None = None) -> Work:
    """The Work of a point: from the folder, else planned now and kept there."""
    path = work_path(point, folder)
    if path.is_file():
        with np.load(path) as data:
            tables = PlanArrays(**{name: data[f"t_{name}"] for name in PlanArrays._fields})
            own = {f.name: data[f.name] for f in fields(Work) if f.name not in ("tables", "classes")}
            return Work(**own, classes=int(data["classes"]), tables=tables)
    work = work_of(point, plan_of(point, graphs))
    folder.mkdir(parents=True, exist_ok=True)
    own = {f.name: getattr(work, f.name) for f in fields(Work) if f.name not in ("tables", "classes")}
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **own, classes=np.int64(work.classes), **{f"t_{n}": v for n, v in work.tables._asdict().items()})
    part.replace(path)
    return work
