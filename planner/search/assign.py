"""The choice of a layout for every op, state and delivery of a staged graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from planner.search.bounds.bottleneck import bottleneck_bound
from planner.search.bounds.guided import solve_guided
from planner.search.methods.method import Method, search
from planner.search.model import Assignment, SearchModel
from planner.solve import Problem, Solution
from planner.solve.problem import NotFoundInTime, Watch
from planner.solve.time_limit import NO_LIMIT, TimeLimit

__all__ = ["assign_layouts", "is_long"]

_LONG = 10_000
"""Nodes of a problem with a memory limit above which planner.search.bounds.guided is tried first; the general solver would need minutes."""


def is_long(problem: Problem) -> bool:
    """Whether the search of a problem with a memory limit finds multipliers of its own sooner than its pieces give them."""
    return bool(problem.demands) and len(problem.names) > _LONG


def assign_layouts(
    model: SearchModel,
    *,
    method: Method = Method.EXACT,
    time_limit: TimeLimit = NO_LIMIT,
    watch: Watch | None = None,
    limit_bytes: float = inf,
    memory_bytes: float = inf,
    s_per_byte: Sequence[float] = (),
) -> Assignment:
    """Choose the layouts.

    Args:
        time_limit: of all parts together; once it is up, the search stops with the best choice so far.
        limit_bytes: the limit on the bytes per device that the model counts; a model built without demands counts none.
        memory_bytes: of a device, at least limit_bytes.  The bound holds for all plans within memory_bytes.  If limit_bytes is less, the
            search says nothing about the plans in between, so the bound is 0.
        s_per_byte: per stage, an estimate of the Lagrange multiplier of memory, with which the search begins.  The search of a long model
            begins with multipliers of its own.
        watch: called with every progress; if it is given, an interrupt (Ctrl-C) stops the search with the best choice so far.

    Raises:
        OutOfMemory: no layout fits.   Unsupported: the pins allow no choice.   NotFoundInTime: there was no choice in time.
    """
    if model.problem.demands:
        model = replace(model, problem=replace(model.problem, limit=limit_bytes))
    if not s_per_byte and limit_bytes < inf and is_long(model.problem):
        s_per_byte = (0.0,) * model.staged.num_stages
    solution: Solution | None = None
    multipliers: Sequence[float] = ()
    if s_per_byte and method is Method.EXACT:
        guided = solve_guided(model, s_per_byte, memory_bytes, time_limit=time_limit, watch=watch)
        if guided is not None:
            solution, multipliers = guided[0], tuple(guided[1])
    proven = solution is not None or limit_bytes >= memory_bytes or not model.problem.demands
    if solution is None:
        solution = search(model, method, seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock, watch=watch)
    stages, choice = model.staged.num_stages, solution.choice
    bound_s = solution.lower_bound / stages if proven else 0.0
    objective_s = model.step_s(choice)
    if proven and solution.gap == 0.0 and stages == 1:
        bound_s = objective_s  # equal up to rounding
    if stages > 1 and method is Method.EXACT:
        try:
            other_s, other = bottleneck_bound(model, choice, s_per_byte=multipliers, memory_bytes=memory_bytes, time_limit=time_limit)
        except KeyboardInterrupt:
            if watch is None:
                raise  # without a watch, the caller handles the interrupt
            other_s, other = 0.0, choice  # the choice stays, with the bound that it has
        except NotFoundInTime:
            other_s, other = 0.0, choice  # the time was up before the solver had a choice
        bound_s = max(bound_s, other_s)
        if model.problem.feasible(other) and model.step_s(other) < objective_s:
            choice, objective_s = other, model.step_s(other)
    return model.decode(choice, solution.method, objective_s, min(bound_s, objective_s), model.problem.peak(choice))
