"""Exact solution of parts of a problem, by ILPs over some of its strategies.

candidates   the strategies whose bound exceeds the best bound by at most a share of the gap                   -> PartialIlps._within
part         the ILP over the candidates; if the share is 1, its solution is a proof                           -> PartialIlps._solve_part
region       the ILP over the candidates of some connected nodes, while all others keep their strategies       -> PartialIlps._solve_regions
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import OutOfMemory
from planner.solve.bounds.memory_multipliers import MultiplierAscent
from planner.solve.highs import TOLERANCE, HighsIlp
from planner.solve.limited.incumbent import Incumbent
from planner.solve.limited.region import Regions
from planner.solve.problem import Contradiction, Floats, Ints
from planner.solve.reduce.contract import ReducedProblem, reduce_problem

__all__ = ["PartialIlps"]

_SMALL = 150_000  # edge entries of the largest problem that is solved as one part
_PART = 40_000  # edge entries of the first part
_LARGEST = 130_000  # edge entries above which regions are solved instead of parts
_REGION = 15_000  # edge entries of the first regions
_SHARE = 0.25  # share of the time that one part may take


class PartialIlps:
    """Solves parts and regions, one call after another.   wants_bound: the last call gained little, so that a better bound may help more."""

    def __init__(self, incumbent: Incumbent, reduced: ReducedProblem, ascent: MultiplierAscent) -> None:
        self.incumbent, self.reduced, self.ascent = incumbent, reduced, ascent
        self.time_limit = incumbent.time_limit
        self.dual = ascent.dual
        self.regions = Regions(reduced.problem)
        self.part, self.region = _PART, float(_REGION)
        self.prepare = max(0.5, 1.2 * self.time_limit.elapsed_s() / 4)  # seconds that it takes to set up one more part
        self.wants_bound = False

    def solve_next(self) -> bool:
        """Solve a part or some regions; returns False if the search is done, because the optimum is proven or the time is up."""
        incumbent = self.incumbent
        if self.time_limit.remaining_s() <= self.prepare:
            return False
        excess = self.dual.fixing()
        before = incumbent.objective
        self.wants_bound = False
        if self.part <= _LARGEST or incumbent.choice is None:
            if self._solve_part(excess, self.part):
                return False
            if not incumbent.objective < before:
                self.part *= 3
            return True
        self._solve_regions(excess)
        if incumbent.objective < before - 0.05 * (before - self.ascent.bound):
            self.part = _PART
        else:
            self.wants_bound = True
        return True

    def _solve_part(self, excess: Floats, entries: int) -> bool:
        """Solve a part of about ``entries`` edge entries; returns whether that proved the best choice optimal."""
        incumbent, reduced = self.incumbent, self.reduced
        share, candidates = self._within(excess, entries)
        allowed = reduced.problem.allowing(dict(enumerate(self.dual.per_node(candidates))))
        began_s = self.time_limit.elapsed_s()
        try:
            # Reduction by dominance may remove the best choice, with which the ILP is to begin.
            part = reduce_problem(allowed, dominance=share == 1.0)
        except (Contradiction, OutOfMemory):
            if share < 1.0:
                return False
            if incumbent.choice is None:
                raise
            incumbent.raise_bound(incumbent.objective, "every other choice has a strategy whose own bound exceeds the best objective")
            return True
        core = HighsIlp(part.problem, incumbent.objective, incumbent.step)
        self.prepare = max(0.5, 1.2 * (self.time_limit.elapsed_s() - began_s))
        start = None if incumbent.choice is None or share == 1.0 else part.restricted_choice(_followed(reduced, incumbent.choice))
        seconds = inf if share == 1.0 else max(_SHARE * self.time_limit.seconds, 5.0)
        outcome = core.solve(self.time_limit.part(seconds), start)
        if outcome.choice is not None:
            incumbent.offer(reduced.expand(part.expand(outcome.choice)), "ILP over the strategies that the bounds leave")
        incumbent.stats["parts"] = incumbent.stats.get("parts", 0.0) + 1.0
        incumbent.stats["last_share"] = share
        if share < 1.0:
            return False
        if incumbent.choice is None and outcome.bound == np.inf:
            raise OutOfMemory(f"no choice stays within the limit {incumbent.problem.limit:g} at every time; raise the limit")
        incumbent.raise_bound(
            outcome.bound, "branch and bound (HiGHS) over all strategies that a better choice could take, to 1e-9 of the objective"
        )
        return incumbent.closed()

    def _solve_regions(self, excess: Floats) -> None:
        """Solve regions for a share of the time; their size adapts to the time that each takes."""
        incumbent, dual, entries = self.incumbent, self.dual, self.region
        first = dual.flat.first
        _, candidates = self._within(excess, 1 << 60)
        count = np.add.reduceat(candidates.astype(np.int64), first[:-1])
        regions_limit = self.time_limit.part(0.5 * _SHARE * self.time_limit.seconds)
        while not regions_limit.is_up() and self.time_limit.remaining_s() > 0.5:
            assert incumbent.choice is not None
            choice = _followed(self.reduced, incumbent.choice)
            region = self.regions.draw(excess[first[:-1] + choice], count, int(entries))
            if not region.size:
                break
            local = self.regions.cut_out(region, choice, dual.held(choice), candidates, first)
            part = reduce_problem(local, dominance=False)
            began_s = self.time_limit.elapsed_s()
            now = np.append(choice[region], 0)
            core = HighsIlp(part.problem, local.objective(now), incumbent.step)
            outcome = core.solve(self.time_limit.part(0.05 * self.time_limit.seconds), part.restricted_choice(now))
            if outcome.choice is not None:
                choice[region] = part.expand(outcome.choice)[:-1]
                incumbent.offer(self.reduced.expand(choice), "ILPs over regions")
            incumbent.stats["regions"] = incumbent.stats.get("regions", 0.0) + 1.0
            spent = (self.time_limit.elapsed_s() - began_s) / self.time_limit.seconds
            entries = min(max(entries * (1.1 if spent < 0.01 else 0.8 if spent > 0.03 else 1.0), 1000.0), 1e6)
        self.region = entries

    def _within(self, excess: Floats, entries: int) -> tuple[float, NDArray[np.bool_]]:
        """(share, candidates): the largest share of the gap whose candidates have at most ``entries`` edge entries; 1 if all are few."""
        incumbent, dual = self.incumbent, self.dual
        first = dual.flat.first
        gap = incumbent.objective - self.ascent.bound
        if not np.isfinite(gap):
            gap = float(excess.max()) + 1.0  # no choice fits so far: share 1 stands for all strategies
        held = None if incumbent.choice is None else _followed(self.reduced, incumbent.choice)
        slack = TOLERANCE * abs(incumbent.objective) if np.isfinite(incumbent.objective) else 0.0
        share = 1.0
        while True:
            candidates = excess <= share * gap + slack
            if held is not None:
                candidates[first[:-1] + held] = True
            size = dual.entries(candidates)
            if size <= (max(entries, _SMALL) if share == 1.0 else entries) or share < 1e-9:
                return share, candidates
            share *= 0.7


def _followed(reduced: ReducedProblem, choice: Ints) -> Ints:
    """A choice of the original problem, in the reduced problem; the reduced problem has every choice that the search accepts."""
    restricted = reduced.restricted_choice(choice)
    assert restricted is not None
    return restricted
