"""One mesh axis at a time: an ILP over SBP signatures with equality-marginal edge rows.

Sets      o ops and state tensors (nodes), s strategies of a node, e = (u -> v) uses of a value, p / c the value's SBP at producer / consumer
Variables x[o,s] in {0,1}     node o takes strategy s
          y[e,p,c] >= 0       the value of e leaves as p and is needed as c
          w[g,p,c] >= 0       boxing p -> c is paid once for all uses g of the same value on the same stage

    min  sum x[o,s] t[o,s] + sum w[g,p,c] b[g,p,c]                                     (1) -> solve_axis
    s.t. sum_s x[o,s] = 1                                         for each o           (2)
         sum_c y[e,p,c] = sum of x[u,s] over s that give p        for each e, p        (3)  producer's marginal
         sum_p y[e,p,c] = sum of x[v,s] over s that need c        for each e, c        (4)  consumer's marginal
         w[g,p,c] >= y[e,p,c]                                     for each e in g      (5)  only where g has several uses

(3) and (4) as equalities keep the relaxation tight, where McCormick rows y <= x do not (reference: Alpa, OSDI'22 appendix; AutoParallel).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulp

from planner.ir.errors import Unsupported
from planner.ir.sbp import Sbp

__all__ = ["AxisProblem", "AxisSolution", "Node", "Use", "solve_axis"]


@dataclass(frozen=True, slots=True)
class Node:
    """``price_s[s]`` for each strategy."""

    id: str
    price_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A value goes from ``producer`` to ``consumer``; ``leaves[s]`` and ``needs[s]`` are its SBP under their strategies.

    group: uses of one value by consumers of one stage share their boxing.  price_s[p, c]: seconds per step; a missing pair is forbidden.
    """

    producer: str
    consumer: str
    group: str
    leaves: tuple[Sbp, ...]
    needs: tuple[Sbp, ...]
    price_s: Mapping[tuple[Sbp, Sbp], float]


@dataclass(frozen=True, slots=True)
class AxisProblem:
    nodes: tuple[Node, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class AxisSolution:
    """Chosen strategy per node, and how good it is."""

    choice: Mapping[str, int]
    objective_s: float
    lower_bound_s: float


_WAY_OUT = "the pins contradict each other or cut something that must stay whole; remove a pin or choose another mesh"
_SCALE = 1e6  # seconds -> microseconds: keeps coefficients near 1 for the solver's tolerances


def solve_axis(problem: AxisProblem, *, time_limit_s: float = 60.0) -> AxisSolution:
    """Solve (1)-(5) with HiGHS through PuLP, one thread, so that the same problem always gives the same answer.

    Raises:
        Unsupported: the pins leave no legal combination, or nothing was found in time.
    """
    fixed = {n.id: 0 for n in problem.nodes if len(n.price_s) == 1}
    model = pulp.LpProblem("sbp", pulp.LpMinimize)
    x: dict[tuple[str, int], pulp.LpVariable] = {}
    terms: list[tuple[pulp.LpVariable, float]] = []
    constant_s = 0.0
    for number, node in enumerate(problem.nodes):
        if node.id in fixed:
            constant_s += node.price_s[0]
            continue
        for s, price_s in enumerate(node.price_s):
            x[node.id, s] = model.add_variable(f"x{number}_{s}", cat=pulp.LpBinary)
            # The index-ordered addend breaks ties the same way on every machine.
            terms.append((x[node.id, s], price_s * _SCALE + 1e-7 * s))
        model += pulp.lpSum(x[node.id, s] for s in range(len(node.price_s))) == 1
    by_group: dict[str, list[Use]] = defaultdict(list)
    for use in problem.uses:
        by_group[use.group].append(use)
    number = 0
    for uses in by_group.values():
        shared: dict[tuple[Sbp, Sbp], pulp.LpVariable] = {}
        for use in uses:
            leaves, needs = tuple(dict.fromkeys(use.leaves)), tuple(dict.fromkeys(use.needs))
            if len(leaves) == 1 and len(needs) == 1 and (leaves[0], needs[0]) in use.price_s and len(uses) == 1:
                constant_s += use.price_s[leaves[0], needs[0]]
                continue
            if all(use.price_s.get((p, c), -1.0) == 0.0 for p in leaves for c in needs):
                continue
            y: dict[tuple[Sbp, Sbp], pulp.LpVariable] = {}
            for p in leaves:
                for c in needs:
                    if (p, c) in use.price_s:
                        y[p, c] = model.add_variable(f"y{number}", lowBound=0)
                        number += 1
            if not y:
                raise Unsupported(
                    f"no legal combination: {use.producer} gives {_names(leaves)}, {use.consumer} needs {_names(needs)}; {_WAY_OUT}"
                )
            for p in leaves:
                model += pulp.lpSum(y[p, c] for c in needs if (p, c) in y) == _marginal(x, fixed, use.producer, use.leaves, p)
            for c in needs:
                model += pulp.lpSum(y[p, c] for p in leaves if (p, c) in y) == _marginal(x, fixed, use.consumer, use.needs, c)
            for pair, variable in y.items():
                price_s = use.price_s[pair]
                if price_s <= 0.0:
                    continue
                if len(uses) == 1:
                    terms.append((variable, price_s * _SCALE))
                    continue
                if pair not in shared:
                    shared[pair] = model.add_variable(f"w{number}", lowBound=0)
                    number += 1
                    terms.append((shared[pair], price_s * _SCALE))
                model += shared[pair] >= variable
    model += pulp.LpAffineExpression(terms)
    if not terms:
        return AxisSolution(dict.fromkeys((n.id for n in problem.nodes), 0), constant_s, constant_s)
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, timeLimit=time_limit_s)
    status = model.solve(solver)
    values = {key: variable.value() for key, variable in x.items()}
    if pulp.LpStatus[status] not in ("Optimal", "Not Solved") or any(v is None for v in values.values()):
        raise Unsupported(f"no legal combination of SBP signatures was found (solver: {pulp.LpStatus[status]}); {_WAY_OUT}")
    choice = dict(fixed)
    for (node_id, s), value in values.items():
        if value > 0.5:
            choice[node_id] = s
    objective_s = float(constant_s + pulp.value(model.objective) / _SCALE)
    # Without a binary variable the model is an LP, solved to optimality, and HiGHS keeps no branch-and-bound bound.
    bound_s = constant_s + model.solverModel.getInfo().mip_dual_bound / _SCALE if x else objective_s
    return AxisSolution(choice, objective_s, min(objective_s, float(bound_s)))


def _marginal(
    x: Mapping[tuple[str, int], pulp.LpVariable], fixed: Mapping[str, int], node: str, states: Sequence[Sbp], state: Sbp
) -> pulp.LpAffineExpression | float:
    if node in fixed:
        return 1.0 if states[0] == state else 0.0
    return pulp.lpSum(x[node, s] for s, found in enumerate(states) if found == state)


def _names(states: Sequence[Sbp]) -> str:
    return "|".join(map(str, states))
