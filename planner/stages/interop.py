"""Alpa's inter-op search with its two omissions mended: transfers between stages, and memory in flight with variants that trade it for time.

For limits (t, u) on the slowest stage's micro-batch and on once-per-step work, the least sum is a shortest path (planner.stages.interop_dp).
Alpa tries every limit t in ascending order.  The least sum falls as the limits grow, so a whole box of limits is dropped when

    least sum at its largest (t, u) / v + (B v - 1) its smallest t + v its smallest u  >=  best T                          (1) -> interop_plan()

and else it is halved, the most promising box first.  Exact within planner.stages.pipeline (1)-(2), with few of the limits tried.

Source: Alpa (OSDI'22), section 5.2, equations 2-5; the boxes are ours.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from planner.ir.errors import Unsupported
from planner.stages.interop_dp import Chosen, Prices, build_tables, least_sum
from planner.stages.pipeline import Interop, PlannedStage, StagePlan, StagePrice, Submesh, step_s, submeshes

__all__ = ["interop_plan"]

_SAME = 1e-12  # relative: bounds this close to the best do not promise anything better


def interop_plan(problem: Interop) -> StagePlan:
    """The pipeline of least step time.

    Raises:
        Unsupported: no way to fill the cluster with stages that can be built and fit in memory.
    """
    shapes = submeshes(problem.num_nodes, problem.devices_per_node)
    prices = _price_all(problem, shapes)
    best: StagePlan | None = None
    limits = tried = 0
    for menu, exact in _menus(problem, shapes):
        plan, limits_here, tried_here = _search(problem, menu, prices, exact, inf if best is None else best.step_s)
        limits, tried = limits + limits_here, tried + tried_here
        if plan is not None and (best is None or plan.step_s < best.step_s):
            best = plan
    if best is None:
        raise Unsupported(
            f"no pipeline of {problem.num_layers} layers on {problem.num_nodes} x {problem.devices_per_node} devices with "
            f"{problem.micro_batches} micro-batches and {problem.virtual} chunks per device fits in {problem.memory_bytes / 1e9:.3g} GB; "
            "give finer layers, variants that recompute, smaller micro-batches or more devices"
        )
    return replace(best, limits=limits, tried=tried)


def _menus(problem: Interop, shapes: Sequence[Submesh]) -> list[tuple[tuple[Submesh, ...], int | None]]:
    """Sub-meshes that may stand in one pipeline, and the number of stages where that is fixed."""
    if not problem.same_size:
        return [(tuple(shapes), None)]
    menus: list[tuple[tuple[Submesh, ...], int | None]] = []
    for shape in shapes:
        turns, rest = divmod(problem.num_devices, shape.size)
        stages = turns * problem.virtual
        if rest or stages > min(problem.num_layers, problem.max_stages or stages):
            continue
        if problem.virtual == 1 or (turns > 1 and problem.micro_batches % turns == 0):
            menus.append(((shape,), stages))
    return menus


def _price_all(problem: Interop, shapes: Sequence[Submesh]) -> Prices:
    """price() for every range and sub-mesh, asked once for equal sequences of kinds."""
    known: dict[Hashable, tuple[StagePrice, ...]] = {}
    table: dict[tuple[int, int, Submesh], tuple[StagePrice, ...]] = {}
    for first in range(problem.num_layers):
        for last in range(first, problem.num_layers):
            alike: Hashable = (first, last) if problem.kinds is None else tuple(problem.kinds[first : last + 1])
            for shape in shapes:
                if (alike, shape) not in known:
                    known[alike, shape] = tuple(problem.price(first, last, shape))
                table[first, last, shape] = known[alike, shape]
    return table


Box = tuple[int, int, int, int]


def _search(
    problem: Interop, shapes: Sequence[Submesh], prices: Prices, exact: int | None, to_beat_s: float
) -> tuple[StagePlan | None, int, int]:
    """(1) over one menu: the best plan if it beats ``to_beat_s``, how many limits there are, how many were tried."""
    tables = build_tables(problem, shapes, prices, exact)
    legal = np.isfinite(tables.micro_batch_s)
    slow, once = np.unique(tables.micro_batch_s[legal]), np.unique(tables.once_s[legal])
    if not len(slow):
        return None, 0, 0
    v, again = problem.virtual, problem.micro_batches * problem.virtual - 1
    best_s, best = to_beat_s, None
    sums: dict[tuple[int, int], float] = {}

    def bound_s(box: Box) -> float:
        nonlocal best_s, best
        smallest_t, t, smallest_u, u = box
        if (t, u) not in sums:
            sums[t, u], chosen = least_sum(tables, float(slow[t]), float(once[u]))
            stages = tuple(_named(stage, shapes, prices) for stage in chosen)
            if stages and (seconds := step_s(stages, problem.micro_batches, v)) < best_s:
                best_s, best = seconds, stages
        return sums[t, u] / v + again * float(slow[smallest_t]) + v * float(once[smallest_u])

    whole: Box = (0, len(slow) - 1, 0, len(once) - 1)
    boxes = [(bound_s(whole), whole)]
    while boxes and boxes[0][0] < best_s * (1 - _SAME):
        _, box = heapq.heappop(boxes)
        for half in _halves(box, again * (slow[box[1]] - slow[box[0]]) >= v * (once[box[3]] - once[box[2]])):
            if (bound := bound_s(half)) < best_s:
                heapq.heappush(boxes, (bound, half))
    limits, tried = len(slow) * len(once), len(sums)
    if best is None:
        return None, limits, tried
    return StagePlan(stages=best, step_s=best_s, lower_bound_s=best_s, limits=limits, tried=tried), limits, tried


def _halves(box: Box, slow_is_looser: bool) -> tuple[Box, ...]:
    """The box in two along the side where its bound is looser; a single pair of limits has no halves."""
    t0, t1, u0, u1 = box
    if t0 < t1 and (slow_is_looser or u0 == u1):
        t = (t0 + t1) // 2
        return (t0, t, u0, u1), (t + 1, t1, u0, u1)
    if u0 < u1:
        u = (u0 + u1) // 2
        return (t0, t1, u0, u), (t0, t1, u + 1, u1)
    return ()


def _named(stage: Chosen, shapes: Sequence[Submesh], prices: Prices) -> PlannedStage:
    shape = shapes[stage.shape]
    return PlannedStage(
        first=stage.first,
        last=stage.last,
        submesh=shape,
        first_device=stage.device,
        variant=stage.variant,
        price=prices[stage.first, stage.last, shape][stage.variant],
        transfer_s=stage.transfer_s,
    )
