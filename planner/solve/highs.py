"""The choice problem as an ILP for HiGHS, built from arrays; a memory row is added when a solution violates it.

Variables  x[v,s] in {0,1}    node v takes strategy s
           y[e,P,Q] >= 0      edge e = (u,v) joins class P of u's strategies with class Q of v's

    min  sum cost[v,s] x[v,s] + sum edge_cost[e,P,Q] y[e,P,Q]                                (1)
    s.t. sum_s x[v,s] = 1                                          for each v            (2)
         sum_Q y[e,P,Q] = sum over s in P of x[u,s]                for each e, P         (3)
         sum_P y[e,P,Q] = sum over t in Q of x[v,t]                for each e, Q         (4)
         sum held[t,v,s] x[v,s] <= limit                           for each listed t     (5)  -> HighsIlp.add_times

Two rows of an edge's matrix that differ by a constant are one class: the constant moves to the cost of the strategy.    -> arrays.matrix_classes
(3) and (4) as equalities make the relaxation the local polytope.  Every bound is that of (1)-(5) without some rows (5), so it is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread

import highspy
import numpy as np

from planner.solve.arrays import MatrixClasses
from planner.solve.problem import Floats, Ints, Problem
from planner.solve.time_limit import TimeLimit

__all__ = ["TOLERANCE", "HighsIlp", "IlpOutcome"]

_SCALE_TO = 1e5  # the largest objective coefficient after scaling, because the solver's tolerances are absolute
_FEASIBILITY = 1e-6  # HiGHS's default tolerance for rows and for whole numbers
_MEMORY_TO = 1e3  # the memory limit after scaling
_LOOK_S = 0.25  # how often a solve looks whether it is cancelled


TOLERANCE = 1e-9
"""HiGHS does not distinguish objectives that differ relatively by less than this, so every bound of HiGHS is lowered by it."""


@dataclass(frozen=True, slots=True, eq=False)
class IlpOutcome:
    """choice: within the limit and cheaper than the cutoff, or None.  bound: a lower bound on all choices, or the cutoff if none is cheaper."""

    choice: Ints | None
    bound: float


def _usage_at(problem: Problem, choice: Ints, times: int) -> Floats:
    """The memory held at each time 0 .. times - 1."""
    change = np.zeros(times + 1)
    for d in problem.demands:
        held = d.amount[choice[d.node]]
        change[d.start] += held
        change[d.stop] -= held
    return np.cumsum(change)[:times]


class HighsIlp:
    """One HiGHS model of a problem whose times are 0 .. n - 1 (see crop_times).

    cutoff: only cheaper choices are searched for.  step: objectives differ by a multiple of it (1 for whole costs, else 0).
    """

    def __init__(self, problem: Problem, cutoff: float = np.inf, step: float = 0.0) -> None:
        self.problem, self.cutoff, self.step = problem, cutoff, step
        self.first = np.concatenate([[0], np.cumsum([c.size for c in problem.costs])]).astype(np.int64)
        self.times = max((d.stop for d in problem.demands), default=0)
        self.listed: set[int] = set()
        self.offset = 0.0
        self._pairs: list[tuple[int, int, Ints, Ints, Ints]] = []
        costs = [c.copy() for c in problem.costs]
        num_x = int(self.first[-1])
        edge_costs: list[Floats] = []
        folds = MatrixClasses()
        rows: list[Ints] = [np.repeat(np.arange(len(costs)), [c.size for c in costs])]
        columns: list[Ints] = [np.arange(num_x)]
        values: list[Floats] = [np.ones(num_x)]
        num_rows, num_columns = len(costs), num_x
        for edge in problem.edges:
            of_row, of_column, edge_cost, extra_row, extra_column = folds.of(edge)
            costs[edge.u] = costs[edge.u] + extra_row
            costs[edge.v] = costs[edge.v] + extra_column
            p, q = np.nonzero(np.isfinite(edge_cost))
            edge_costs.append(edge_cost[p, q] - edge_cost[p, q].min(initial=np.inf))
            self.offset += float(edge_cost[p, q].min(initial=np.inf))
            y = num_columns + np.arange(p.size)
            place = np.full(edge_cost.shape, -1)
            place[p, q] = y
            self._pairs.append((edge.u, edge.v, place, of_row, of_column))
            ends = ((edge.u, of_row, p, num_rows), (edge.v, of_column, q, num_rows + edge_cost.shape[0]))
            for node, of, mine, row in ends:
                rows += [row + mine, row + of]
                columns += [y, self.first[node] + np.arange(of.size)]
                values += [np.ones(p.size), -np.ones(of.size)]
            num_rows += edge_cost.shape[0] + edge_cost.shape[1]
            num_columns += p.size
        # Constant terms are removed, because they would cost digits.
        least = [float(c.min()) for c in costs]
        self.offset += float(np.sum(least))
        cost = np.concatenate([*(c - low for c, low in zip(costs, least, strict=True)), *edge_costs])
        # A variable is fixed to 0 if its cost alone, with the least cost of all others, exceeds the cutoff; large costs would cost digits too.
        excluded = ~np.isfinite(cost) | (cost > cutoff - self.offset + TOLERANCE * abs(self.offset))
        cost[excluded] = 0.0
        self.scale = _SCALE_TO / max(float(cost.max(initial=0.0)), 1e-300)
        self.num_x = num_x
        right = np.concatenate([np.ones(len(problem.costs)), np.zeros(num_rows - len(problem.costs))])
        upper = np.where(excluded, 0.0, np.where(np.arange(cost.size) < num_x, 1.0, np.inf))
        self.model = highspy.Highs()  # type: ignore[no-untyped-call]
        self.model.setOptionValue("output_flag", False)
        self.model.setOptionValue("threads", 1)
        self.model.setOptionValue("random_seed", 0)
        self.model.HandleUserInterrupt = True  # makes cancelSolve work
        self.model.passModel(
            _lp(
                cost * self.scale,
                upper,
                right,
                np.concatenate(rows),
                np.concatenate(columns),
                np.concatenate(values),
            )
        )

    def add_times(self, times: Ints) -> None:
        """List rows (5) for these times."""
        new = [int(t) for t in times if int(t) not in self.listed]
        self.listed.update(new)
        held = {t: np.zeros(self.num_x) for t in new}
        for d in self.problem.demands:
            for t in new:
                if d.start <= t < d.stop:
                    held[t][self.first[d.node] : self.first[d.node + 1]] += d.amount
        limit = self.problem.limit
        for t in new:
            at = np.flatnonzero(held[t])
            scale = _MEMORY_TO / (limit or held[t].max(initial=1.0))
            self.model.addRow(-np.inf, _MEMORY_TO if limit else 0.0, at.size, at.astype(np.int32), held[t][at] * scale)

    def held(self, x: Floats) -> Floats:
        """(5) of a relaxed solution at every time."""
        change = np.zeros(self.times + 1)
        for d in self.problem.demands:
            amount = float(d.amount @ x[self.first[d.node] : self.first[d.node + 1]])
            change[d.start] += amount
            change[d.stop] -= amount
        return np.cumsum(change)[: self.times]

    def worst(self, held: Floats, most: int = 12) -> Ints:
        """At most ``most`` times at which the limit is exceeded: of times close to each other, the one with the largest excess."""
        over = held - self.problem.limit * (1 + 1e-9)
        times: list[int] = []
        for t in np.argsort(-over, kind="stable"):
            if over[t] <= 0 or len(times) >= most:
                break
            if int(t) not in self.listed and all(abs(int(t) - other) > self.times // 200 for other in times):
                times.append(int(t))
        return np.array(times, dtype=np.int64)

    def relaxed(self, time_limit: TimeLimit) -> tuple[Floats | None, float]:
        """(x, bound) of the relaxation of (1)-(5): rows (5) are added until x is within the limit, or the bound reaches the cutoff."""
        # Interior point for the first one, then the simplex method from the last basis.
        self.model.setOptionValue("solver", "ipm" if self.model.getNumCol() > 20_000 else "choose")
        bound = -np.inf
        x = None
        while (left := time_limit.remaining_s()) > 0:
            # HiGHS counts all runs of a model against the limit of an LP, but not of a MIP.
            self.model.setOptionValue("time_limit", self.model.getRunTime() + left)
            self._run(time_limit)
            self.model.setOptionValue("solver", "simplex")
            status = self.model.getModelStatus()
            if status == highspy.HighsModelStatus.kInfeasible:
                return None, np.inf
            if status != highspy.HighsModelStatus.kOptimal:
                break
            bound = self.offset + self.model.getInfo().objective_function_value / self.scale
            x = np.array(self.model.getSolution().col_value)[: self.num_x]
            fresh = self.worst(self.held(x))
            if bound >= self.cutoff or not fresh.size:
                return x, bound
            self.add_times(fresh)
        return x, bound

    def solve(self, time_limit: TimeLimit, start: Ints | None = None) -> IlpOutcome:
        """The cheapest choice within the limit that costs less than the cutoff, or the best in time, and a bound.

        Args:
            start: an allowed choice that costs the cutoff, for the solver to begin from.
        """
        cutoff, step = self.cutoff, self.step
        slack = cutoff - self._safe(cutoff) if np.isfinite(cutoff) else 0.0
        x, bound = self.relaxed(time_limit)
        if bound >= cutoff or x is None:
            return IlpOutcome(None, min(self._safe(bound), cutoff))
        self.add_times(self._near(self.held(x)))
        columns = np.arange(self.num_x, dtype=np.int32)
        self.model.changeColsIntegrality(self.num_x, columns, np.full(self.num_x, highspy.HighsVarType.kInteger))
        self.model.setOptionValue("solver", "choose")
        self.model.setOptionValue("mip_rel_gap", TOLERANCE / 2)
        self.model.setOptionValue("mip_abs_gap", 0.9 * step * self.scale)
        if np.isfinite(cutoff) and start is None:
            self.model.setOptionValue("objective_bound", (cutoff - self.offset - max(step / 2, slack / 2)) * self.scale)
        bound = self._safe(bound)
        while (left := time_limit.remaining_s()) > 0:
            if start is not None:
                self._begin_from(start)
            self.model.setOptionValue("time_limit", left)
            self._run(time_limit)
            status, info = self.model.getModelStatus(), self.model.getInfo()
            has_choice = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
            if status == highspy.HighsModelStatus.kInfeasible or (status == highspy.HighsModelStatus.kOptimal and not has_choice):
                return IlpOutcome(None, cutoff if slack < step else self._safe(cutoff))
            bound = max(bound, min(self._safe(self.offset + info.mip_dual_bound / self.scale), cutoff))
            if not has_choice:
                break
            choice = self._rounded()
            held = _usage_at(self.problem, choice, self.times)
            if held.max(initial=0.0) <= self.problem.limit:
                return IlpOutcome(choice if self.problem.objective(choice) < cutoff else None, bound)
            fresh = self.worst(held)
            if fresh.size:
                self.add_times(fresh)
            else:
                self._forbid(choice, int(held.argmax()))
        return IlpOutcome(None, bound)

    def _run(self, time_limit: TimeLimit) -> None:
        """Run the solver in a thread, so that Ctrl-C and a Cancel reach us at once and the solver soon after."""
        thread = Thread(target=self.model.run, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK_S)
                if time_limit.is_cancelled:
                    self.model.cancelSolve()  # type: ignore[no-untyped-call]
        except KeyboardInterrupt:
            self.model.cancelSolve()  # type: ignore[no-untyped-call]
            thread.join(2.0)
            raise

    def _safe(self, bound: float) -> float:
        """Less what the solver's tolerances may hide."""
        return bound - min(TOLERANCE * abs(bound), 10 * _FEASIBILITY / self.scale) if np.isfinite(bound) else bound

    def _begin_from(self, choice: Ints) -> None:
        solution = highspy.HighsSolution()
        value = np.zeros(self.model.getNumCol())
        value[self.first[:-1] + choice] = 1.0
        for u, v, place, of_row, of_column in self._pairs:
            value[place[of_row[choice[u]], of_column[choice[v]]]] = 1.0
        solution.col_value = value
        self.model.setSolution(solution)

    def _rounded(self) -> Ints:
        x = np.array(self.model.getSolution().col_value)[: self.num_x]
        return np.array([int(x[a:b].argmax()) for a, b in zip(self.first, self.first[1:], strict=False)], dtype=np.int64)

    def _forbid(self, choice: Ints, time_: int) -> None:
        """Exclude a choice that satisfies row (5) of a time only within the solver's tolerance, and all choices that hold as much per node."""
        at: list[int] = []
        count = 0
        held = [np.zeros(c.size) for c in self.problem.costs]
        for d in self.problem.demands:
            if d.start <= time_ < d.stop:
                held[d.node] = held[d.node] + d.amount
        for v, amount in enumerate(held):
            if amount.any() and amount.size > 1:
                at += (self.first[v] + np.flatnonzero(amount >= amount[choice[v]])).tolist()
                count += 1
        self.model.addRow(-np.inf, count - 1.0, len(at), np.array(at, dtype=np.int32), np.ones(len(at)))

    def _near(self, held: Floats, most: int = 30) -> Ints:
        """Peaks that nearly reach the limit.  An integral solution often exceeds it there, and a row that is added later restarts the search."""
        inner = np.concatenate([[-np.inf], held, [-np.inf]])
        peaks = np.flatnonzero((held >= inner[:-2]) & (held > inner[2:]) & (held > 0.95 * self.problem.limit))
        return peaks[np.argsort(-held[peaks], kind="stable")][:most]


def _lp(cost: Floats, upper: Floats, right: Floats, rows: Ints, columns: Ints, values: Floats) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = cost.size, right.size
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(cost.size), upper
    lp.row_lower_, lp.row_upper_ = right, right
    order = np.lexsort((rows, columns))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=cost.size))]).astype(np.int32)
    lp.a_matrix_.index_ = rows[order].astype(np.int32)
    lp.a_matrix_.value_ = values[order]
    return lp
