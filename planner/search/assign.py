"""The choice of a layout for every op, state and delivery of a staged graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from planner.search.bounds.bottleneck import ROUNDS, bottleneck_bound
from planner.search.bounds.guided import solve_guided
from planner.search.methods.method import Method, search
from planner.search.model import Assignment, SearchModel, Standing, Taken
from planner.solve import Problem, Solution
from planner.solve.problem import Ints, NotFoundInTime, Watch
from planner.solve.time_limit import NO_LIMIT, TimeLimit

__all__ = ["FoundLayouts", "find_layouts", "is_long"]

_LONG = 10_000
"""Nodes of a problem with a memory limit above which planner.search.bounds.guided is tried first; the general solver would need minutes."""


def is_long(problem: Problem) -> bool:
    """Whether the search of a problem with a memory limit finds multipliers of its own sooner than its pieces give them."""
    return bool(problem.demands) and len(problem.names) > _LONG


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundLayouts:
    """A choice of layouts, with a bound that may be raised.

    objective_s: its step in seconds.   bound_s: no choice within ``memory_bytes`` of a device takes less.
    multipliers: per stage, the price of memory that gave the bound; empty: memory does not bind, or was not searched so.
    """

    model: SearchModel
    choice: Ints
    method: str
    objective_s: float
    bound_s: float
    multipliers: Sequence[float]
    memory_bytes: float

    @classmethod
    def standing(cls, model: SearchModel, standing: Standing, memory_bytes: float) -> FoundLayouts:
        """An earlier choice, of which nothing is proven on this problem."""
        return cls(
            model=model,
            choice=standing.choice,
            method=Method.EXACT.value,
            objective_s=model.step_s(standing.choice),
            bound_s=0.0,
            multipliers=standing.multipliers,
            memory_bytes=memory_bytes,
        )

    def bounded_by_bottleneck(
        self, time_limit: TimeLimit = NO_LIMIT, *, watch: Watch | None = None, gap: float = 0.0, rounds: int = ROUNDS
    ) -> FoundLayouts:
        """The same with the bound of its slowest stages (planner.search.bounds.bottleneck), or the choice that this bound found, if it is quicker.

        Args:
            watch: if it is given, an interrupt (Ctrl-C) leaves the bound as it is.   gap: share of the step that may stay unproven.
            rounds: most multipliers of memory that are tried.
        """
        model = self.model
        try:
            other_s, other = bottleneck_bound(
                model,
                self.choice,
                s_per_byte=self.multipliers,
                memory_bytes=self.memory_bytes,
                time_limit=time_limit,
                enough_s=self.objective_s * (1 - gap),
                rounds=rounds,
            )
        except KeyboardInterrupt:
            if watch is None:
                raise  # without a watch, the caller handles the interrupt
            return self
        except NotFoundInTime:  # the time was up before the solver had a choice
            return self
        found = replace(self, bound_s=max(self.bound_s, other_s))
        if model.problem.feasible(other) and (step_s := model.step_s(other)) < self.objective_s:
            return replace(found, choice=other, objective_s=step_s)
        return found

    def assignment(self, before: Taken | None = None) -> Assignment:
        """The choice as layouts of every op, state and delivered value, and their routes.   before: as in SearchModel.decode."""
        held_bytes = self.model.problem.peak(self.choice)
        return self.model.decode(self.choice, self.method, self.objective_s, min(self.bound_s, self.objective_s), held_bytes, before)


def find_layouts(
    model: SearchModel,
    *,
    method: Method = Method.EXACT,
    time_limit: TimeLimit = NO_LIMIT,
    watch: Watch | None = None,
    limit_bytes: float = inf,
    memory_bytes: float = inf,
    s_per_byte: Sequence[float] = (),
    by_bottleneck: bool = True,
    standing: Standing | None = None,
) -> FoundLayouts:
    """Choose the layouts.

    Args:
        time_limit: of all parts together; once it is up, the search stops with the best choice so far.
        limit_bytes: the limit on the bytes per device that the model counts; a model built without demands counts none.
        memory_bytes: of a device, at least limit_bytes.  The bound holds for all plans within memory_bytes.  If limit_bytes is less, the
            search says nothing about the plans in between, so the bound is 0.
        s_per_byte: per stage, an estimate of the Lagrange multiplier of memory, with which the search begins.  The search of a long model
            begins with multipliers of its own.
        watch: called with every progress; if it is given, an interrupt (Ctrl-C) stops the search with the best choice so far.
        standing: an earlier choice, with which the search of a long model begins.
        by_bottleneck: also bound the slowest stages, where stages are searched exactly; the search's own objective weighs all stages alike.

    Raises:
        OutOfMemory: no layout fits.   Unsupported: the pins allow no choice.   NotFoundInTime: there was no choice in time.
    """
    if model.problem.demands:
        model = replace(model, problem=replace(model.problem, limit=limit_bytes))
    if not s_per_byte and limit_bytes < inf and is_long(model.problem):
        s_per_byte = (0.0,) * model.staged.num_stages if standing is None else standing.multipliers or (0.0,) * model.staged.num_stages
    solution: Solution | None = None
    multipliers: Sequence[float] = ()
    if s_per_byte and method is Method.EXACT:
        known = None if standing is None else standing.choice
        guided = solve_guided(model, s_per_byte, memory_bytes, time_limit=time_limit, watch=watch, known=known)
        if guided is not None:
            solution, multipliers = guided[0], tuple(guided[1])
    proven = solution is not None or limit_bytes >= memory_bytes or not model.problem.demands
    if solution is None:
        solution = search(model, method, seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock, watch=watch)
    stages = model.staged.num_stages
    bound_s = solution.lower_bound / stages if proven else 0.0
    objective_s = model.step_s(solution.choice)
    if proven and solution.gap == 0.0 and stages == 1:
        bound_s = objective_s  # equal up to rounding
    found = FoundLayouts(
        model=model,
        choice=solution.choice,
        method=solution.method,
        objective_s=objective_s,
        bound_s=bound_s,
        multipliers=multipliers,
        memory_bytes=memory_bytes,
    )
    return found.bounded_by_bottleneck(time_limit, watch=watch) if by_bottleneck and stages > 1 and method is Method.EXACT else found
