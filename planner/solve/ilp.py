"""The choice problem as an ILP with equality-marginal edge rows, in PuLP, solved by HiGHS.

Variables x[v,s] in {0,1}     node v takes strategy s
          y[e,s,t] >= 0       edge e = (u, v) sees u at s and v at t

    min  sum cost[v][s] x[v,s] + sum matrix[e][s,t] y[e,s,t]                             (1)
    s.t. sum_s x[v,s] = 1                              for each v                        (2)
         sum_t y[e,s,t] = x[u,s]                       for each e, s                     (3)
         sum_s y[e,s,t] = x[v,t]                       for each e, t                     (4)
         sum over demands d alive at time t of amount[d][s] x[node(d),s] <= limit        for each time t at which one begins    (5)

(3) and (4) as equalities keep the relaxation tight, where McCormick rows y <= x do not (Alpa, OSDI'22 appendix; AutoParallel).
"""

from __future__ import annotations

from math import inf

import numpy as np
import pulp

from planner.solve.problem import Floats, Ints, Problem

__all__ = ["solve_ilp"]


def solve_ilp(problem: Problem, *, seconds: float = inf, upper: float = inf) -> tuple[Ints | None, float, float]:
    """Solve (1)-(5), one thread, so that the same problem always gives the same answer.

    Args:
        upper: cost of some choice; only cheaper choices are searched for.

    Returns:
        (choice or None, its cost, lower bound); no choice and a bound of ``upper`` mean that no cheaper choice exists.
    """
    scale = _scale(problem)
    model = pulp.LpProblem("choice", pulp.LpMinimize)
    terms: list[tuple[pulp.LpVariable, float]] = []
    x: list[list[pulp.LpVariable | None]] = []
    for v, costs in enumerate(problem.costs):
        line: list[pulp.LpVariable | None] = []
        for s, cost in enumerate(costs):
            if not np.isfinite(cost):
                line.append(None)
                continue
            variable = model.add_variable(f"x{v}_{s}", cat=pulp.LpBinary)
            line.append(variable)
            terms.append((variable, float(cost) * scale))
        x.append(line)
        model += pulp.lpSum(variable for variable in line if variable is not None) == 1
    for number, edge in enumerate(problem.edges):
        y: dict[tuple[int, int], pulp.LpVariable] = {}
        for (s, t), price in np.ndenumerate(edge.matrix):
            if np.isfinite(price) and x[edge.u][s] is not None and x[edge.v][t] is not None:
                y[s, t] = model.add_variable(f"y{number}_{s}_{t}", lowBound=0)
                terms.append((y[s, t], float(price) * scale))
        for s, variable in enumerate(x[edge.u]):
            if variable is not None:
                model += pulp.lpSum(y[s, t] for t in range(edge.matrix.shape[1]) if (s, t) in y) == variable
        for t, variable in enumerate(x[edge.v]):
            if variable is not None:
                model += pulp.lpSum(y[s, t] for s in range(edge.matrix.shape[0]) if (s, t) in y) == variable
    for time in sorted({d.start for d in problem.demands}) if problem.limit < inf else ():
        alive = [d for d in problem.demands if d.start <= time < d.stop]
        held = [(x[d.node][s], float(amount) / problem.limit) for d in alive for s, amount in enumerate(d.amount) if amount]
        row: dict[pulp.LpVariable, float] = {}
        for variable, share in held:
            if variable is not None:
                row[variable] = row.get(variable, 0.0) + share
        model += pulp.LpAffineExpression(list(row.items())) <= 1.0
    model += pulp.LpAffineExpression(terms)
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, timeLimit=None if seconds == inf else max(seconds, 0.1))
    status = pulp.LpStatus[model.solve(solver)]
    choice = np.zeros(len(x), dtype=np.int64)
    for v, line in enumerate(x):
        taken = [s for s, variable in enumerate(line) if variable is not None and (variable.value() or 0.0) > 0.5]
        if len(taken) != 1 or status == "Infeasible":
            return None, inf, inf if status == "Infeasible" else -inf
        choice[v] = taken[0]
    value = problem.objective(choice)
    bound = float(model.solverModel.getInfo().mip_dual_bound) / scale
    return choice, value, min(value, bound)


def _scale(problem: Problem) -> float:
    """Brings the largest entries near 1e3, for the solver's tolerances."""
    largest = 0.0
    tables: list[Floats] = [*problem.costs, *(e.matrix for e in problem.edges)]
    for table in tables:
        finite = table[np.isfinite(table)]
        if finite.size:
            largest = max(largest, float(np.abs(finite).max()))
    return 1e3 / largest if largest > 0 else 1.0
