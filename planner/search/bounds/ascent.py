"""The Lagrangian relaxation of memory in a long model, with one multiplier per stage: the price of a byte there, in units of the objective.

    bound(y)  =  min over x of  objective(x) + sum_s y_s held_s(x)   -   memory sum_s y_s                                     (1)  -> StageRelaxation.at

The problem is reduced once, as far as holds at all multipliers, and one Dual serves all rounds: its messages stay, so a round takes a few sweeps.

Stages hardly depend on each other, so each stage's multiplier is searched by itself.  Two choices bracket it: the one of the largest multiplier at
which too much was held, and the one of the smallest at which all fitted.  As a function of y each costs  cost + y held,  and the next y is where
these two lines meet: there the bound of the stage is highest unless a third choice lies below.                             (2)  -> Brackets.next
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported
from planner.solve import Problem, solve_exactly
from planner.solve.bounds.local_search import improve_at_multipliers
from planner.solve.bounds.message_passing import Dual
from planner.solve.problem import Floats, Ints
from planner.solve.reduce.contract import reduce_problem
from planner.solve.time_limit import NO_LIMIT, TimeLimit
from planner.solve.without_limit import NO_CHOICE

__all__ = ["Brackets", "Relaxed", "StageRelaxation", "ascend"]

_SWEEPS, _MOST_SWEEPS = 5, 30
_RISE = 1e-4
"""Sweeps at given multipliers end when so many raise the bound by less than this share."""
_FIRST = 0.1
"""The first multiplier of a stage charges this share of the stage's cost for all of its memory."""
_HARDLY = 3e-4
"""A round that raises the bound by less than this share does so in vain."""
_INSIDE = 0.02
"""Share of a bracket that the next multiplier keeps from its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """What is known at given multipliers.

    bound: (1), or less: the objective of no choice within memory is less.   times: at which each stage is charged [stages].
    choice: of the reduced problem, nearly the cheapest at the multipliers.
    held: bytes on each stage's devices at its two times [stages, 2].   cost: part of the objective on each stage [stages].
    """

    multipliers: Floats
    times: Ints
    bound: float
    choice: Ints
    held: Floats
    cost: Floats


class StageRelaxation:
    """A problem of a model in stages under (1).

    Args:
        problem: with demands at the times 2 s and 2 s + 1 for stage s; one of them is charged, the first until ``charge_fuller``.
        stage_of: the stage of each node.   memory_bytes: of a device.
    """

    def __init__(self, problem: Problem, stage_of: Ints, stages: int, memory_bytes: float) -> None:
        # What holds at all multipliers is done once; a few rounds on all strategies take less time than it takes to find the dominated ones.
        self.reduced = reduce_problem(problem, dominance=False, crop=False)
        self.stages, self.memory_bytes = stages, memory_bytes
        self._dual = Dual(self.reduced.problem)
        self._times = 2 * np.arange(stages)
        self._stage_of = np.append(stage_of[np.asarray(self.reduced.alive, dtype=np.int64)], 0)

    def at(self, multipliers: Floats, time_limit: TimeLimit = NO_LIMIT) -> Relaxed:
        """The relaxation at one multiplier per stage, each 0 or more.

        Raises:
            Unsupported: no choice is free of forbidden entries.   NotFoundInTime: none was found in time.
        """
        dual, limit = self._dual, self.reduced.problem.limit
        charged = np.zeros(2 * self.stages)
        charged[self._times] = multipliers
        charged = charged[: dual.times]
        dual.charge(charged)
        bound = last = -np.inf
        for _ in range(_MOST_SWEEPS // _SWEEPS):
            bound = max(bound, dual.sweep(_SWEEPS))
            if bound == np.inf:
                raise Unsupported(NO_CHOICE)
            if bound - last <= _RISE * abs(bound) or time_limit.is_up():
                break
            last = bound
        choice = improve_at_multipliers(dual, dual.decode())
        if not np.isfinite(dual.objective(choice)):  # messages that have not settled contradict each other
            prices = {t: float(y) for t, y in enumerate(charged) if y > 0}
            exact = solve_exactly(
                self.reduced.problem.charged(prices), seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock, gap=_RISE
            )
            choice, bound = exact.choice, max(bound, exact.lower_bound - (sum(prices.values()) * limit if prices else 0.0))
        paid = float(charged.sum())
        held = np.zeros(2 * self.stages)
        held[: dual.times] = dual.held(choice)
        return Relaxed(
            multipliers=multipliers,
            times=self._times,
            bound=bound - (paid * (self.memory_bytes - limit) if paid else 0.0),
            choice=choice,
            held=held.reshape(self.stages, 2),
            cost=self._cost(choice),
        )

    def charge_fuller(self, relaxed: Relaxed) -> None:
        """Charge from now on, per stage, the time at which this choice holds more; of equal ones the first."""
        self._times = 2 * np.arange(self.stages) + (relaxed.held[:, 1] > relaxed.held[:, 0])

    def charged_bytes(self, relaxed: Relaxed) -> Floats:
        """Bytes of a choice on each stage at the stage's charged time, as ``charge_fuller`` set it."""
        return np.asarray(relaxed.held.ravel()[self._times])

    def expand(self, relaxed: Relaxed) -> Ints:
        """The choice of the whole problem."""
        return self.reduced.expand(relaxed.choice)

    def _cost(self, choice: Ints) -> Floats:
        """The objective by stage; an edge between stages is at one of them."""
        f = self._dual.flat
        left, right = f.other[1::2], f.other[0::2]
        of_left, of_right = f.classes[f.of[0::2] + choice[left]], f.classes[f.of[1::2] + choice[right]]
        edges = f.edge_cost[f.at[0::2] + of_left * f.num[1::2] + of_right]
        nodes = f.cost[f.first[:-1] + choice]
        by_stage = np.bincount(self._stage_of, nodes, self.stages) + np.bincount(self._stage_of[left], edges, self.stages)
        return np.asarray(by_stage, dtype=np.float64)


@dataclass(slots=True)
class Brackets:
    """Per stage what was found at the largest multiplier that was too small, and at the smallest that was not; rows: multiplier, cost, bytes."""

    stages: int
    too_small: Floats = field(init=False)
    large_enough: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.too_small, self.large_enough = np.full((3, self.stages), -1.0), np.full((3, self.stages), np.inf)

    def note(self, relaxed: Relaxed, charged: Floats, full: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Take what was found.

        Args:
            charged: bytes at the times that are charged.   full: stages that hold too much.

        Returns:
            Stages at which it is the new lower end, and those at which it is the new upper one.
        """
        row = np.array([relaxed.multipliers, relaxed.cost, charged])
        lower = full & (relaxed.multipliers >= self.too_small[0])
        upper = ~full & (relaxed.multipliers <= self.large_enough[0])
        self.too_small = np.where(lower, row, self.too_small)
        self.large_enough = np.where(upper, row, self.large_enough)
        return lower, upper

    def next(self, relaxed: Relaxed, full: NDArray[np.bool_], first: float) -> Floats:
        """(2); while a stage has one end only, a larger or smaller multiplier.   first: the first above 0, if all are 0."""
        y = relaxed.multipliers
        bracketed = (self.too_small[0] >= 0) & np.isfinite(self.large_enough[0])
        larger = np.where(y > 0, 2.0 * y, y.max() / 4 or first)
        following = np.where(full, larger, 0.4 * y)
        for s in map(int, np.flatnonzero(bracketed)):
            (low, cheap, much), (high, dear, little) = self.too_small[:, s], self.large_enough[:, s]
            middle, margin = (low + high) / 2, _INSIDE * (high - low)
            meet = (dear - cheap) / (much - little) if much > little else middle
            following[s] = meet if low + margin <= meet <= high - margin else middle
        return following


def ascend(
    relaxation: StageRelaxation,
    begin: Floats,
    limit_bytes: float,
    rounds: int,
    time_limit: TimeLimit = NO_LIMIT,
    patience: int | None = None,
) -> Iterator[tuple[Relaxed, NDArray[np.bool_], NDArray[np.bool_]]]:
    """Rounds of (1) at multipliers by (2), from ``begin`` on; stages may hold ``limit_bytes``.

    Args:
        patience: end after so many rounds in turn that hardly raise the bound; None: after ``rounds`` alone.

    Returns:
        What was found; the stages at which it is the best so far that holds too much, and the best that does not.

    Raises:
        Unsupported, NotFoundInTime: as StageRelaxation.at().
    """
    brackets, multipliers = Brackets(relaxation.stages), begin
    best, in_vain = -np.inf, 0
    for number in range(rounds):
        if time_limit.is_up() or in_vain == patience:
            break
        relaxed = relaxation.at(multipliers, time_limit)
        if number == 0:
            relaxation.charge_fuller(relaxed)
        full: NDArray[np.bool_] = np.asarray((relaxed.held > limit_bytes).any(axis=1))
        in_vain = 0 if relaxed.bound - best > _HARDLY * abs(relaxed.bound) else in_vain + 1
        best = max(best, relaxed.bound)
        yield relaxed, *brackets.note(relaxed, relaxation.charged_bytes(relaxed), full)
        multipliers = brackets.next(relaxed, full, _FIRST * max(relaxed.bound, float(relaxed.cost.sum())) / relaxation.stages / limit_bytes)
