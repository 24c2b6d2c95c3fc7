"""TePDist's O2: cones, critical nodes, segments; one small problem per head and tail strategy of a segment, and a DP over the segments.

    best[i][t] = min over h of  best[i-1][h] + cost of segment i with its tail at t, given the choices that led to h

A critical node is a forward node through which every path of the forward pass leads.  A backward node belongs to the segment of its forward
node.  Edges between segments that do not lead through the critical node (a gradient, a tied weight) are charged when the later segment is solved,
so the result need not be an optimum, and the method gives no bound.
"""

from __future__ import annotations

from math import inf
from time import perf_counter

import numpy as np

from planner.ir.errors import Unsupported
from planner.ir.graph import Role
from planner.search.model import SearchModel
from planner.solve import Solution, solve_exactly
from planner.solve.problem import Ints

__all__ = ["search_o2"]

SEGMENTS = 4


def search_o2(model: SearchModel, *, segments: int = SEGMENTS, seconds: float = inf) -> Solution:
    """Raises Unsupported: no combination of the segments' choices is allowed, or the time is up."""
    began = perf_counter()
    problem = model.problem
    position = _positions(model)
    borders = _borders(model, position, segments)
    segment_of = np.searchsorted([position[b] for b in borders], position, side="left")
    paths: dict[int, tuple[float, Ints]] = {0: (0.0, np.full(len(problem.costs), -1, dtype=np.int64))}
    solved = 0
    for number in range(len(borders) + 1):
        members = np.flatnonzero(segment_of == number)
        tail = borders[number] if number < len(borders) else None
        longer_paths: dict[int, tuple[float, Ints]] = {}
        for cost, path in paths.values():
            segment = problem.conditioned(members, path)
            for t in range(len(problem.costs[tail])) if tail is not None else (0,):
                if perf_counter() - began > seconds:
                    raise Unsupported(f"method o2 did not finish in {seconds:g} s: it solves a problem per head and tail; use 'exact'")
                solved += 1
                try:
                    solution = solve_exactly(
                        segment if tail is None else segment.allowing({int(np.searchsorted(members, tail)): np.array([t])})
                    )
                except Unsupported:
                    continue
                reached = cost + solution.objective
                if t not in longer_paths or reached < longer_paths[t][0]:
                    extended = path.copy()
                    extended[members] = solution.choice
                    longer_paths[t] = (reached, extended)
        if not longer_paths:
            raise Unsupported("method o2: the choices of earlier segments leave a later one none that is allowed; use 'exact'")
        paths = longer_paths
    choice = min(paths.values(), key=lambda p: p[0])[1]
    return Solution(
        choice=choice,
        objective=problem.objective(choice),
        lower_bound=0.0,
        seconds=perf_counter() - began,
        method="o2",
        proof="none: segments are chosen one after another",
        stats={"segments": float(len(borders) + 1), "problems": float(solved)},
    )


def _positions(model: SearchModel) -> Ints:
    """Per node, its position along the forward pass: that of its forward op, or of the nearest node that has one."""
    position = np.full(len(model.problem.costs), -1, dtype=np.int64)
    place: dict[str, int] = {}
    for number, op in enumerate(model.staged.graph.ops):
        if op.role is Role.FORWARD:
            place[op.id] = number
    for op in model.staged.graph.ops:
        if op.id in place:
            position[model.ops[op.id][0]] = place[op.id]
        elif op.forward_of is not None and op.forward_of in place:
            position[model.ops[op.id][0]] = place[op.forward_of]
    around: list[list[int]] = [[] for _ in position]
    for edge in model.problem.edges:
        around[edge.u].append(edge.v)
        around[edge.v].append(edge.u)
    queue = [int(v) for v in np.flatnonzero(position >= 0)]
    for v in queue:
        for n in around[v]:
            if position[n] < 0:
                position[n] = position[v]
                queue.append(n)
    position[position < 0] = 0
    return position


def _borders(model: SearchModel, position: Ints, segments: int) -> list[int]:
    """Critical nodes at which the forward pass is divided into ``segments`` about equally long parts."""
    forward = {model.ops[op.id][0] for op in model.staged.graph.ops if op.role is Role.FORWARD}
    states = {node for node, _ in model.states.values()}
    made = {value for op in model.staged.graph.ops if op.role is Role.FORWARD for value in op.outputs if value}
    forward |= {node for (value, _), (node, _) in model.deliveries.items() if value in made}
    last = int(position.max()) + 1
    passes = np.zeros(last + 2, dtype=np.int64)
    for edge in model.problem.edges:
        if edge.u in forward and edge.v in forward and not {edge.u, edge.v} & states:
            low, high = sorted((int(position[edge.u]), int(position[edge.v])))
            if high - low > 1:
                passes[low + 1] += 1
                passes[high] -= 1
    bypassed = np.cumsum(passes)
    at: dict[int, int] = {}
    for node in sorted(forward):
        place = int(position[node])
        if bypassed[place] == 0 and len(model.problem.costs[node]) > 1:
            at.setdefault(place, node)
    critical = [at[place] for place in sorted(at)][1:-1]
    if len(critical) < segments:
        return critical
    return [critical[round(i * len(critical) / segments)] for i in range(1, segments)]
