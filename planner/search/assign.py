"""SBP for every op, state and delivery of a staged graph."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from planner.ir.cluster import Cluster
from planner.search.methods import Method, search
from planner.search.model import Assignment, build_model
from planner.search.pins import Pin
from planner.solve import Watch
from planner.stages import Staged

__all__ = ["assign"]


def assign(
    staged: Staged,
    mesh: tuple[int, ...],
    cluster: Cluster,
    pins: Sequence[Pin],
    micro_batches: int,
    *,
    method: Method = Method.EXACT,
    seconds: float = inf,
    watch: Watch | None = None,
    limit_bytes: float = inf,
    in_flight: Sequence[int] = (),
) -> Assignment:
    """Choose the layouts.

    Args:
        mesh: devices per axis inside each stage.
        micro_batches: how often per step the micro-batch part acts.
        seconds: stop by then with the best choice so far.
        limit_bytes, in_flight: as build_model.

    Raises:
        UnknownOp: an op has no rule.   Unsupported: pins that cannot hold, or nothing found in time.
    """
    model = build_model(staged, mesh, cluster, pins, micro_batches, limit_bytes=limit_bytes, in_flight=in_flight)
    solution = search(model, method, seconds=seconds, watch=watch)
    bound_s = solution.lower_bound / staged.num_stages
    objective_s = model.step_s(solution.choice)
    if solution.gap == 0.0 and staged.num_stages == 1:
        bound_s = objective_s  # equal up to rounding
    return model.decode(solution.choice, solution.method, objective_s, min(bound_s, objective_s), model.problem.peak(solution.choice))
