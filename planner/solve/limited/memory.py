"""The best choice within a memory limit: a bound and a choice are improved alternately until they meet or the time is up.

    1  without the limit      if times are few: the exact optimum, which is a bound, and the answer if it fits             without_limit
    2  reduce                 exactly: the reduced problem has the same optimum                                            reduce/contract
       least memory           if times are few: the choice that holds least is the first choice, or proves that none fits  without_limit
    3  raise the bound        multipliers of memory and messages along edges raise a bound and propose choices             bounds
    4  solve a part           an ILP over the strategies whose bound exceeds the best bound by less than a threshold       partial_ilps
                              threshold = the gap: no better choice has another strategy, so the solution is a proof
                              threshold < the gap: the solution may be a better choice, which reduces the gap

Every choice is checked against the original problem, at every time, before it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import perf_counter

import numpy as np

from planner.solve.bounds.local_search import fuse_choices, improve_within_limit
from planner.solve.bounds.memory_multipliers import MultiplierAscent
from planner.solve.limited.incumbent import Incumbent
from planner.solve.limited.partial_ilps import PartialIlps
from planner.solve.problem import Ints, NotFoundInTime, Problem, Solution, Watch
from planner.solve.reduce.contract import ReducedProblem, reduce_problem
from planner.solve.reduce.times import out_of_memory
from planner.solve.time_limit import NO_LIMIT, Clock, TimeLimit
from planner.solve.without_limit import solve_exactly

__all__ = ["least_demand", "least_peak", "solve_within"]

_PATIENCE_S = 60.0
"""Seconds of a search that is given no limit of its own."""
_FEW = 64  # with more times, the messages of step 3 give as good bounds sooner than exact solutions do
_FREE = 0.5  # share of the time that the solution without the limit may take, because it yields no choice that fits
_ASCENT = 0.25  # share of the remaining time that the first ascent may take
_POOL = 16  # choices, the latest first, that are fused with the best one
_STALLED = 9  # steps without a better bound that end the ascent


def solve_within(
    problem: Problem,
    *,
    seconds: float = inf,
    clock: Clock = perf_counter,
    watch: Watch | None = None,
    gap: float = 0.0,
    few_times: int = _FEW,
) -> Solution:
    """The best choice within the limit that was found in ``seconds``, and a lower bound.  Stops early at a proof.

    Args:
        seconds: no part of the search begins after so many, by ``clock``; if infinite, the search takes at most a minute.
        watch: called with every better choice or bound.  If it is given, an interrupt (Ctrl-C, or a KeyboardInterrupt that it raises) stops
            the search as the end of the time does.
        gap: the search stops at a Solution.gap that is at most this.
        few_times: with at most so many times the search begins with two exact solutions, of steps 1 and 2; the optimum does not depend on it.

    Raises:
        OutOfMemory: no choice stays within the limit; the message says how much memory is needed at least, if the search has computed it.
        Unsupported: forbidden entries leave no choice.   NotFoundInTime: no choice within the limit was found in time.
        KeyboardInterrupt: before any choice was found.
    """
    incumbent = Incumbent(problem, TimeLimit(_PATIENCE_S if seconds == inf else seconds, clock), watch, gap)
    search = _Search(incumbent, few_times)
    try:
        search.run()
    except KeyboardInterrupt:
        incumbent.watch = None
        if watch is None or not search.has_choice():
            raise  # without a watch, the caller handles the interrupt
        incumbent.stats["interrupted"] = 1.0
    if incumbent.choice is None:
        raise NotFoundInTime(
            f"no choice within the limit {problem.limit:g} was found in {incumbent.time_limit.seconds:g} s "
            f"(no choice costs less than {incumbent.bound:g}); allow more time or raise the limit",
            incumbent.bound,
        )
    return incumbent.solution(incumbent.choice)


class _Search:
    """The steps on one problem."""

    def __init__(self, incumbent: Incumbent, few_times: int) -> None:
        self.incumbent, self.few_times, self.time_limit = incumbent, few_times, incumbent.time_limit
        self.reduced: ReducedProblem | None = None
        self.ascent: MultiplierAscent | None = None
        self.pool: list[Ints] = []

    def run(self) -> None:
        incumbent = self.incumbent
        if len(_times(incumbent.problem)) <= self.few_times and self._without_limit():
            return
        if self.time_limit.is_up():
            return
        reduced = self.reduced = reduce_problem(incumbent.problem)
        small = reduced.problem
        incumbent.stats |= {
            "nodes": float(len(small.costs) - 1),
            "edges": float(len(small.edges)),
            "strategies": float(sum(c.size for c in small.costs) - 1),
            "edge_entries": float(sum(e.matrix.size for e in small.edges)),
        }
        if len(small.costs) == 1:
            incumbent.offer(reduced.expand(np.zeros(1, dtype=np.int64)), "reduction")
            incumbent.raise_bound(incumbent.objective, "the reductions, which are exact, left a single choice")
            return
        if self.time_limit.is_up():
            return
        begin = self._least(reduced) if len(_times(small)) <= self.few_times else []
        ascent = self.ascent = MultiplierAscent(small, begin)
        self.ascend(_ASCENT * self.time_limit.remaining_s())
        if self.time_limit.is_up():
            return
        parts = PartialIlps(incumbent, reduced, ascent)
        while not incumbent.closed() and parts.solve_next():
            if parts.wants_bound and ascent.stalled < _STALLED:
                self.ascend(0.1 * self.time_limit.seconds)

    def _without_limit(self) -> bool:
        """Step 1.  Returns whether the optimum without the limit is within it."""
        incumbent, part = self.incumbent, self.time_limit.part(_FREE * self.time_limit.seconds)
        try:
            free = solve_exactly(incumbent.problem.without_limit(), seconds=part.seconds, clock=part.clock)
        except NotFoundInTime as error:
            incumbent.raise_bound(error.lower_bound, "exact without the limit: message passing, which the time ended")
            return False
        incumbent.raise_bound(free.lower_bound, f"exact without the limit: {free.proof}")
        return incumbent.offer(free.choice, "exact without the limit, which it keeps")

    def _least(self, reduced: ReducedProblem) -> list[Ints]:
        """The choice of the reduced problem that holds least, or the best of the time; an empty list if there was none in time."""
        try:
            least = least_demand(reduced.problem, seconds=_FREE * self.time_limit.remaining_s(), clock=self.time_limit.clock)
        except NotFoundInTime:
            return []
        if not reduced.problem.feasible(least):
            _refuse(reduced.problem, least, self.time_limit)
        self.incumbent.offer(reduced.expand(least), "the choice that holds least")
        return [least]

    def ascend(self, seconds: float) -> None:
        """Step 3, until the bound stalls, or for so many seconds."""
        incumbent, ascent, reduced = self.incumbent, self.ascent, self.reduced
        assert ascent is not None
        assert reduced is not None
        text = "memory prices and messages along the edges (a Lagrange and TRW-S bound)"
        part = self.time_limit.part(seconds)
        while not part.is_up() and ascent.stalled < _STALLED and not incumbent.closed():
            self._take(ascent.step())
            incumbent.raise_bound(ascent.bound - 1e-11 * abs(ascent.bound), text)
        if self.time_limit.is_up():
            return
        ascent.finish()
        incumbent.raise_bound(ascent.bound - 1e-11 * abs(ascent.bound), text)

    def has_choice(self) -> bool:
        """Whether the search has a choice; if not, it first tries those at the largest multipliers."""
        if self.incumbent.choice is None and self.ascent is not None:
            self._take(self.ascent.smallest())
        return self.incumbent.choice is not None

    def _take(self, choices: Sequence[Ints]) -> None:
        """Offer choices of the reduced problem: improved by single moves if they fit, and fused with the best choice so far."""
        incumbent, reduced, ascent = self.incumbent, self.reduced, self.ascent
        assert ascent is not None
        assert reduced is not None
        dual = ascent.dual
        for choice in choices:
            if dual.held(choice).max(initial=0.0) <= reduced.problem.limit:
                incumbent.offer(reduced.expand(improve_within_limit(dual, choice)), "messages with memory prices, then single moves")
        self.pool = [*choices, *self.pool][:_POOL]
        best = None if incumbent.choice is None else reduced.restricted_choice(incumbent.choice)
        if best is None:
            return
        for choice in self.pool:
            best = fuse_choices(dual, choice, best)
        if dual.objective(best) < incumbent.objective:
            incumbent.offer(reduced.expand(best), "the best pieces of several choices, then single moves")


def least_demand(problem: Problem, *, seconds: float = inf, clock: Clock = perf_counter, gap: float = 0.0) -> Ints:
    """The cheapest of the choices whose sum over all times of what they hold is least; after ``seconds``, the best choice so far.

    Raises:
        NotFoundInTime: there was no choice in time.
    """
    scale = sum(float(c[np.isfinite(c)].max()) for c in problem.costs) + 1e-9
    largest = sum(float(d.amount.max()) for d in problem.demands) or 1.0
    weight = 1e6 * scale / largest
    return solve_exactly(problem.charged(dict.fromkeys(_times(problem), weight)), seconds=seconds, clock=clock, gap=gap).choice


def least_peak(problem: Problem, time_limit: TimeLimit = NO_LIMIT, *, gap: float = 0.0) -> float:
    """A lower bound on the peak of every choice: the least that any choice holds at the time at which ``least_demand`` holds most.

    What is proven when the time is up is less, at least 0; with ``gap``, up to so large a share less.
    """
    if not problem.demands:
        return 0.0
    if time_limit.is_up():
        return 0.0
    try:
        least = least_demand(problem, seconds=time_limit.remaining_s(), clock=time_limit.clock, gap=gap)
    except NotFoundInTime:
        return 0.0
    t = max(_times(problem), key=lambda t: _held_at(problem, least, t))
    return max(_least_at(problem.cost_free(), t, time_limit, gap=gap), 0.0)


def _refuse(problem: Problem, least: Ints, time_limit: TimeLimit) -> None:
    """Raises OutOfMemory if every choice exceeds the limit at one of the times at which ``least`` exceeds it."""
    legal = problem.cost_free()
    for t in _times(problem):
        if _held_at(problem, least, t) > problem.limit and not time_limit.is_up():
            need = _least_at(legal, t, time_limit)
            if need > problem.limit:
                raise out_of_memory(need, problem.limit)


def _least_at(legal: Problem, t: int, time_limit: TimeLimit, *, gap: float = 0.0) -> float:
    """A lower bound on what any choice holds at a time, of a problem without costs."""
    try:
        return solve_exactly(legal.charged({t: 1.0}), seconds=time_limit.remaining_s(), clock=time_limit.clock, gap=gap).lower_bound
    except NotFoundInTime as error:
        return error.lower_bound


def _held_at(problem: Problem, choice: Ints, t: int) -> float:
    return sum(float(d.amount[choice[d.node]]) for d in problem.demands if d.start <= t < d.stop)


def _times(problem: Problem) -> list[int]:
    """Times that include the peak of every choice."""
    return sorted({d.start for d in problem.demands})
