"""TePDist's O3: one ILP over the cones of the whole graph.

A cone is a root (a node with several readers or several operands) with the chains that lead to it; for every strategy of the roots the best
way through a chain is found by min-plus products, and the ILP chooses among the roots.
"""

from __future__ import annotations

from math import inf
from time import perf_counter

from planner.ir.errors import Unsupported
from planner.search.model import SearchModel
from planner.solve import Solution
from planner.solve.ilp import solve_ilp
from planner.solve.reduce.elimination import Elimination
from planner.solve.without_limit import NO_CHOICE

__all__ = ["search_o3"]


def search_o3(model: SearchModel, *, seconds: float = inf) -> Solution:
    """Raises Unsupported: no choice is allowed, or there was none in time."""
    began = perf_counter()
    problem = model.problem
    work = Elimination(problem)
    work.run(neighbours=2)
    core, nodes = work.core()
    proof = "min-plus products"
    bound = 0.0
    if nodes:
        core_choice, _, bound = solve_ilp(core, seconds=seconds)
        if core_choice is None:
            raise Unsupported(f"{NO_CHOICE}; or give the ILP more than {seconds:g} s")
        choice = work.expand(zip(nodes, core_choice, strict=True))
        proof = "branch and bound over cones"
    else:
        choice = work.expand()
    objective = problem.objective(choice)
    if objective == inf:
        raise Unsupported(NO_CHOICE)
    bound += work.constant
    return Solution(
        choice=choice,
        objective=objective,
        lower_bound=objective if bound >= objective * (1 - 1e-9) else bound,
        seconds=perf_counter() - began,
        method="o3",
        proof=proof,
        stats={"nodes": float(len(problem.names)), "core_nodes": float(len(nodes))},
    )
