"""Exact solution of parts of a problem: all that can still be better, what looks best, or one region after another.

kept      the strategies whose bound exceeds the best bound by less than a share of the gap             -> PartialIlps._within
part      the ILP over the strategies kept; with the whole gap it is a proof                            -> PartialIlps._solve_part
region    a connected piece over the strategies kept, the rest as in the best choice                    -> PartialIlps._solve_regions
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

_SMALL = 150_000  # edge entries of a problem that the ILP may take whole
_PART = 40_000  # edge entries of the first part
_LARGEST = 130_000  # edge entries of the last part that is not all
_REGION = 15_000  # edge entries of the first regions
_TURN = 0.25  # share of the time that one part may take


class PartialIlps:
    """Turns of solving parts.   wants_bound: the last turn gained little, so that a better bound might help more."""

    def __init__(self, incumbent: Incumbent, reduced: ReducedProblem, ascent: MultiplierAscent) -> None:
        self.incumbent, self.reduced, self.ascent = incumbent, reduced, ascent
        self.time_limit = incumbent.time_limit
        self.dual = ascent.dual
        self.regions = Regions(reduced.problem)
        self.part, self.region = _PART, float(_REGION)
        self.prepare = max(0.5, 1.2 * self.time_limit.elapsed_s() / 4)  # seconds that it takes to set up one more part
        self.wants_bound = False

    def turn(self) -> bool:
        """One part or some regions; False if the part was all that could be better and is solved, or the time is up."""
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
        """A part of about ``entries`` edge entries; says whether it was all that could be better, and it was solved."""
        incumbent, reduced = self.incumbent, self.reduced
        share, kept = self._within(excess, entries)
        allowed = reduced.problem.allowing(dict(enumerate(self.dual.per_node(kept))))
        began_s = self.time_limit.elapsed_s()
        try:
            # A part without dominance still holds the best choice, to begin from.
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
        seconds = inf if share == 1.0 else max(_TURN * self.time_limit.seconds, 5.0)
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
        """Regions for a while, at the size that suits the time."""
        incumbent, dual, entries = self.incumbent, self.dual, self.region
        first = dual.flat.first
        _, kept = self._within(excess, 1 << 60)
        count = np.add.reduceat(kept.astype(np.int64), first[:-1])
        turn = self.time_limit.part(0.5 * _TURN * self.time_limit.seconds)
        while not turn.is_up() and self.time_limit.remaining_s() > 0.5:
            assert incumbent.choice is not None
            choice = _followed(self.reduced, incumbent.choice)
            region = self.regions.draw(excess[first[:-1] + choice], count, int(entries))
            if not region.size:
                break
            local = self.regions.cut_out(region, choice, dual.held(choice), kept, first)
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
        """The largest share of the gap, and the strategies within it, that leave few enough edge entries; all of it if that is small anyway."""
        incumbent, dual = self.incumbent, self.dual
        first = dual.flat.first
        gap = incumbent.objective - self.ascent.bound
        if not np.isfinite(gap):
            gap = float(excess.max()) + 1.0  # nothing within the limit is known: then all strategies, or those nearest to the bound
        held = None if incumbent.choice is None else _followed(self.reduced, incumbent.choice)
        slack = TOLERANCE * abs(incumbent.objective) if np.isfinite(incumbent.objective) else 0.0
        share = 1.0
        while True:
            kept = excess <= share * gap + slack
            if held is not None:
                kept[first[:-1] + held] = True
            size = dual.entries(kept)
            if size <= (max(entries, _SMALL) if share == 1.0 else entries) or share < 1e-9:
                return share, kept
            share *= 0.7


def _followed(reduced: ReducedProblem, choice: Ints) -> Ints:
    """In the reduced problem; every choice that was taken came from there."""
    restricted = reduced.restricted_choice(choice)
    assert restricted is not None
    return restricted
