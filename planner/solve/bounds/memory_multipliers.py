"""Lagrange multipliers on the memory limit, by cutting planes; message passing solves the inner problem.

Every choice x is a plane that bounds the dual function from above.  The highest point below all planes gives the next multipliers:

    max z   s.t.   z <= objective(x) + sum_t lam_t (held_t(x) - limit)      for each x so far,      lam >= 0           (1)  -> CuttingPlanes.top

A time enters (1) when the convex combination of choices that is optimal in (1) exceeds the limit at that time.  The next multipliers are taken
between the best ones so far and the top, which damps their oscillation.   [Kelley 1960; in-out separation, Ben-Ameur and Neto 2007]
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np

from planner.solve.bounds.local_search import improve_at_multipliers
from planner.solve.bounds.message_passing import Dual
from planner.solve.problem import Floats, Ints, Problem

__all__ = ["MultiplierAscent", "CuttingPlanes"]

_SHARES = (
    0.4,
    0.1,
    0.8,
    0.03,
    0.4,
    0.2,
)  # of the way to the top: short steps raise the bound, long ones move the messages out of local optima


class CuttingPlanes:
    """The planes of (1) over ``times`` times.  No multiplier exceeds ``cap``, in units of the objective per limit."""

    def __init__(self, times: int, limit: float, cap: float) -> None:
        self.times, self.limit, self.cap = times, limit, cap
        self.objectives: list[float] = []
        self.over: list[Floats] = []  # (held - limit) / limit of each choice
        self.active: list[int] = []

    def add(self, objective: float, held: Floats) -> None:
        """Add the plane of a choice."""
        self.objectives.append(objective)
        self.over.append(held / self.limit - 1.0)

    def top(self) -> tuple[float, Floats]:
        """(z, multipliers per unit of memory) at the highest point of all planes."""
        over = np.array(self.over)
        while True:
            z, multipliers, mix = self._solve(over)
            held = mix @ over
            fresh = self._broken(held)
            if not fresh:
                full = np.zeros(self.times)
                full[self.active] = multipliers / self.limit
                return z, full
            self.active += fresh

    def _broken(self, held: Floats) -> list[int]:
        broken: list[int] = []
        for t in np.argsort(-held, kind="stable")[:2000]:
            if held[t] <= 1e-6 or len(broken) == 8:
                break
            if int(t) not in self.active and all(abs(int(t) - other) > self.times // 200 for other in broken):
                broken.append(int(t))
        return broken

    def _solve(self, over: Floats) -> tuple[float, Floats, Floats]:
        """(z, multiplier of each active time, weight of each choice)."""
        scale = 1e3 / max(max(abs(o) for o in self.objectives), 1e-300)
        rows, columns = len(self.objectives), len(self.active) + 1
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, rows
        cost = np.zeros(columns)
        cost[-1] = -1.0
        lp.col_cost_ = cost
        lp.col_lower_ = np.concatenate([np.zeros(columns - 1), [-np.inf]])
        lp.col_upper_ = np.concatenate([np.full(columns - 1, self.cap * scale), [np.inf]])
        lp.row_lower_ = np.full(rows, -np.inf)
        lp.row_upper_ = np.array(self.objectives) * scale
        matrix = np.concatenate([-over[:, self.active], np.ones((rows, 1))], axis=1)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = (np.arange(rows + 1) * columns).astype(np.int32)
        lp.a_matrix_.index_ = np.tile(np.arange(columns), rows).astype(np.int32)
        lp.a_matrix_.value_ = matrix.reshape(-1)
        model = highspy.Highs()  # type: ignore[no-untyped-call]
        model.setOptionValue("output_flag", False)
        model.setOptionValue("threads", 1)
        model.passModel(lp)
        model.run()
        solution = model.getSolution()
        value = np.array(solution.col_value)
        return float(value[-1]) / scale, value[:-1] / scale, np.abs(np.array(solution.row_dual))


class MultiplierAscent:
    """Raises the bound of the Lagrangian relaxation step by step, and returns the choices of each step, some of which are within the limit."""

    def __init__(self, problem: Problem, begin: Sequence[Ints] = ()) -> None:
        """begin: choices to begin with, one within the limit last."""
        dual = self.dual = Dual(problem)
        self._first_choices = list(begin)
        self.bound = -np.inf
        self.ceiling = np.inf
        self.multipliers = np.zeros(dual.times)
        self.messages = dual.messages.copy()
        self.steps = 0
        self.stalled = 0
        self._planes: CuttingPlanes | None = None

    def step(self) -> list[Ints]:
        """Try new multipliers; returns choices, most of them improved by single moves at these multipliers."""
        if self._planes is None:
            return self._begin(self.dual)
        if not self._planes.objectives:  # every choice so far has a forbidden entry
            self.stalled += 1
            return []
        self.ceiling, top = self._planes.top()
        share = _SHARES[self.steps % len(_SHARES)]
        return self._try(self.multipliers + share * (top - self.multipliers), self._planes)

    def smallest(self) -> list[Ints]:
        """Choices at multipliers so large that memory outweighs cost, after few sweeps."""
        r = self.dual
        cost = 1.0 + float(np.abs(r.flat.cost).sum())
        r.charge(np.full(r.times, cost / r.problem.limit if r.problem.limit else cost))
        r.sweep(3)
        decoded = [r.decode(forward) for forward in (True, False)]
        return [improve_at_multipliers(r, choice) for choice in decoded] + decoded

    def finish(self) -> None:
        """Restore the best multipliers and their messages, and sweep until the bound hardly rises."""
        r = self.dual
        r.charge(self.multipliers)
        r.messages[:] = self.messages
        last = -np.inf
        for _ in range(20):
            self._note(r.sweep(10))
            if self.bound - last < 1e-7 * abs(self.bound):
                break
            last = self.bound

    def _begin(self, r: Dual) -> list[Ints]:
        """The first step: without multipliers, then at growing multipliers until a choice is within the limit, or six times."""
        last = -np.inf
        for _ in range(15):
            bound = r.sweep(10)
            if bound - last < 1e-6 * abs(bound):
                break
            last = bound
        self._note(bound)
        choices = [improve_at_multipliers(r, r.decode(forward)) for forward in (True, False)]
        choices += [improve_at_multipliers(r, choice) for choice in self._first_choices] + self._first_choices
        cost = min(abs(r.objective(c)) for c in choices)
        if not np.isfinite(cost):
            cost = abs(bound) + 1.0
        planes = self._planes = CuttingPlanes(r.times, r.problem.limit, 100 * cost)
        multipliers = np.zeros(r.times)
        for _ in range(6):
            held = r.held(choices[-1])
            if held.max(initial=0.0) <= r.problem.limit:
                break
            multipliers[int(held.argmax())] += 10 * cost / r.problem.limit
            r.charge(multipliers)
            r.sweep(20)
            choices.append(improve_at_multipliers(r, r.decode(False)))
        for choice in choices:
            self._learn(choice, planes)
        r.charge(self.multipliers)
        r.messages[:] = self.messages
        return choices

    def _try(self, multipliers: Floats, planes: CuttingPlanes) -> list[Ints]:
        r = self.dual
        r.charge(multipliers)
        if self.stalled % 2:
            r.messages[:] = self.messages  # otherwise those of the last try stay
        last = -np.inf
        for _ in range(15):
            bound = r.sweep(10)
            rise = bound - last
            if rise < max(0.006 * (self.ceiling - bound), 1e-7 * abs(bound)):
                break
            last = bound
        self.steps += 1
        before = self.bound
        self._note(bound)
        self.stalled = 0 if self.bound > before + 1e-6 * abs(before) else self.stalled + 1
        choices = [improve_at_multipliers(r, r.decode(forward)) for forward in (True, False)]
        for choice in choices:
            self._learn(choice, planes)
        return choices

    def _note(self, bound: float) -> None:
        if bound > self.bound:
            self.bound, self.multipliers = bound, self.dual.multipliers.copy()
            self.messages = self.dual.messages.copy()

    def _learn(self, choice: Ints, planes: CuttingPlanes) -> None:
        objective = self.dual.objective(choice)
        if np.isfinite(objective):
            planes.add(objective, self.dual.held(choice))
