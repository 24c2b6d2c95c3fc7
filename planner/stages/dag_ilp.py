"""Stages as an ILP on the graph itself, which fixes no order of the ops (TePDist's idea, with tighter rows and exact bytes).

Sets       p groups of ops (planner.stages.dag), f flows between them, k = 1..S-1 borders between neighbouring stages
Variables  z[p,k] in {0,1}   group p lies on stage k or later;   stage(p) = sum_k z[p,k]
           c[f,k] >= 0       border k cuts flow f

    min  sum_f bytes[f] sum_k c[f,k]                                                            (1)
    s.t. z[p,k] >= z[p,k+1]                                                                     (2)  stages are nested
         z[b,k] >= z[a,k]                                   for each edge (a, b)                (3)  precedence
         c[f,k] >= z[b,k] - z[a,k]                          for first a, last b of f            (4)  a flow is counted once per border
         Q_low <= sum_p flop[p] (z[p,k] - z[p,k+1]) <= Q    for each stage k                    (5)  balance, Q = (1 + tolerance) total / S

In (4) only the first members of f (no other member precedes them) and the last ones matter; if there is one of each, c is a difference of two z.
Without (5) the problem is S-1 nested minimum cuts, whose LP is integral, so its relaxation is tight.  The relaxation of TePDist's form, one integer
per op with big-M cut flags, is not.  (5) also limits the stages of a group (-> stage_range), which fixes most z.  Q_low = (1 - tolerance) total / S
by default, because an upper bound alone, with a large tolerance and many stages, allows an empty stage.

The best cut along the topological order (planner.stages.linear) is the first solution.  If the LP bound of (1)-(5) equals it, it is optimal and no
tree is searched (as for GPT); otherwise HiGHS continues from it.  A problem with one group per op would have the same optimum.

Sources: TePDist (arXiv 2302.08141), stage ILP;  cuts as closures: Picard 1976, "Maximal closure of a graph".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np
import pulp
from numpy.typing import NDArray

from planner.ir.errors import Unsupported
from planner.stages.dag import Flow, WorkDag, crossing_bytes
from planner.stages.linear import ALMOST_EMPTY, cut_in_order, loosest_needed

__all__ = ["StageCut", "cut_stages", "stage_range"]

_CLOSE = 1e-6  # relative, as the solver's own feasibility tolerance
Reachability = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StageCut:
    """stage: of each group.  cut_bytes, lower_bound_bytes: per step, (1).  stage_flop: of one micro-batch.  method: which method gave it."""

    stage: tuple[int, ...]
    cut_bytes: float
    lower_bound_bytes: float
    stage_flop: tuple[float, ...]
    method: str

    @property
    def imbalance(self) -> float:
        """Largest work of a stage divided by the mean, minus 1."""
        return max(self.stage_flop) * len(self.stage_flop) / sum(self.stage_flop) - 1.0


def cut_stages(
    dag: WorkDag, num_stages: int, *, tolerance: float = 0.08, least: float | None = None, time_limit_s: float = 60.0
) -> StageCut:
    """The cut into stages of balanced work across whose borders the fewest bytes go.

    Args:
        num_stages: S.
        tolerance: no stage has more than (1 + tolerance) times the mean flop.
        least: no stage has less than this share of the mean flop; None: 1 - tolerance.  A smaller share helps if ops are few and heavy.
        time_limit_s: of the tree search; at its end the best cut so far is returned with its lower bound.

    Raises:
        Unsupported: a count or the tolerance is out of range, no cut is balanced so well, or there was none in time.
    """
    if num_stages < 1 or tolerance < 0 or (least is not None and not 0 <= least <= 1):
        raise Unsupported(
            f"{num_stages} stages of tolerance {tolerance:g} and least share {least}; at least 1 stage, a tolerance >= 0 and a share from 0 to 1"
        )
    if dag.total_flop <= 0:
        raise Unsupported("no op of the graph has any flop, so work cannot be balanced; cut by module instead")
    if num_stages == 1:
        return _measured(dag, [0] * len(dag.groups), 1, 0.0, "one stage")
    mean = dag.total_flop / num_stages
    limits = max(1 - tolerance if least is None else least, ALMOST_EMPTY) * mean, (1 + tolerance) * mean
    before, after = _reach(dag)
    first, last = _range(dag, before, after, num_stages, limits)
    if any(a > b for a, b in zip(first, last, strict=True)):
        raise Unsupported(_no_cut(dag, num_stages, tolerance, least))
    start = cut_in_order(dag, num_stages, limits)
    model = _Model(dag, before, num_stages, limits, first, last)
    bound_bytes = model.relaxed_bytes()
    if bound_bytes is None:
        raise Unsupported(_no_cut(dag, num_stages, tolerance, least))
    if start is not None and crossing_bytes(dag, start) <= bound_bytes * (1 + _CLOSE):
        return _measured(dag, start, num_stages, bound_bytes, "order of the trace, proven by the LP")
    improved, better_bytes, proven = model.solve(start, time_limit_s)
    if improved is None and start is None and proven:
        raise Unsupported(_no_cut(dag, num_stages, tolerance, least))
    if improved is None and start is None:
        raise Unsupported(
            f"no cut into {num_stages} stages was found in {time_limit_s:g} s; give more time, a larger tolerance or fewer stages"
        )
    best = min((s for s in (improved, start) if s is not None), key=lambda s: crossing_bytes(dag, s))
    return _measured(dag, best, num_stages, max(bound_bytes, better_bytes), "ILP")


def stage_range(dag: WorkDag, num_stages: int, limits: tuple[float, float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """First and last stage that each group can have if every stage's flop is within ``limits`` (asap, alap).

    A group and its ancestors need so many stages up to its own; the groups that are not its ancestors must have enough flop for the stages after
    it.  The last stage follows likewise from its descendants.
    """
    return _range(dag, *_reach(dag), num_stages, limits)


def _reach(dag: WorkDag) -> tuple[Reachability, Reachability]:
    """before[p, a]: a is p or an ancestor of p; after is its transpose."""
    before = np.eye(len(dag.groups), dtype=bool)
    parents: list[list[int]] = [[] for _ in dag.groups]
    for a, b in dag.edges:
        parents[b].append(a)
    for p, above in enumerate(parents):
        for a in above:
            before[p] |= before[a]
    return before, before.T


def _range(
    dag: WorkDag, before: Reachability, after: Reachability, num_stages: int, limits: tuple[float, float]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    work, (low, high), total = np.array([group.compute_flop for group in dag.groups]), limits, dag.total_flop

    def filled(flop: float) -> int:
        return max(1, ceil(flop / high * (1 - _CLOSE)))

    def fillable(flop: float) -> int:
        return floor((total - flop) / low * (1 + _CLOSE) + _CLOSE)

    first = tuple(max(filled(f) - 1, num_stages - 1 - fillable(f), 0) for f in before @ work)
    last = tuple(min(num_stages - filled(f), fillable(f), num_stages - 1) for f in after @ work)
    return first, last


class _Model:
    """(1)-(5) in PuLP; bytes are divided by the largest flow and flop by the mean stage, so that coefficients lie near 1."""

    def __init__(
        self, dag: WorkDag, before: Reachability, num_stages: int, limits: tuple[float, float], first: Sequence[int], last: Sequence[int]
    ) -> None:
        self._dag, self._num_stages = dag, num_stages
        self._unit = max((flow.size_bytes for flow in dag.flows), default=1.0)
        self._program = pulp.LpProblem("stages", pulp.LpMinimize)
        self._z: dict[tuple[int, int], pulp.LpVariable | float] = {}
        self._terms: dict[pulp.LpVariable, float] = defaultdict(float)
        self._fixed = 0.0
        self._impossible = False
        self._helpers: list[tuple[pulp.LpVariable, tuple[int, ...], int, bool]] = []
        for p in range(len(dag.groups)):
            for k in range(num_stages + 1):
                inside = first[p] < k <= last[p]
                self._z[p, k] = self._program.add_variable(f"z{p}_{k}", cat=pulp.LpBinary) if inside else float(k <= first[p])
            for k in range(first[p] + 1, last[p]):
                self._program += self._z[p, k] >= self._z[p, k + 1]  # (2)
        for a, b in dag.edges:  # (3)
            for k in range(max(first[a], first[b]) + 1, last[a] + 1):
                self._program += self._z[b, k] - self._z[a, k] >= 0
        for flow in dag.flows:
            self._flow(flow, before)
        mean = dag.total_flop / num_stages
        low, high = (limit / mean for limit in limits)
        for k in range(num_stages):  # (5)
            work, settled = [], 0.0
            for p, group in enumerate(dag.groups):
                share = group.compute_flop / mean
                for z, sign in ((self._z[p, k], 1.0), (self._z[p, k + 1], -1.0)):
                    if isinstance(z, float):
                        settled += sign * share * z
                    elif share:
                        work.append((z, sign * share))
            if not work:
                self._impossible |= not low - _CLOSE <= settled <= high + _CLOSE
            else:
                self._program += pulp.LpAffineExpression(work) <= high - settled
                self._program += pulp.LpAffineExpression(work) >= low - settled
        self._program += pulp.LpAffineExpression(list(self._terms.items()))

    def _flow(self, flow: Flow, before: Reachability) -> None:
        """(4) for one flow at every border."""
        firsts = tuple(p for p in flow.members if before[p, list(flow.members)].sum() == 1)
        lasts = tuple(p for p in flow.members if before[list(flow.members), p].sum() == 1)
        weight = flow.size_bytes / self._unit
        for k in range(1, self._num_stages):
            top, bottom = self._extreme(lasts, k, highest=True), self._extreme(firsts, k, highest=False)
            for z, sign in ((top, 1.0), (bottom, -1.0)):
                if isinstance(z, float):
                    self._fixed += sign * weight * z
                else:
                    self._terms[z] += sign * weight

    def _extreme(self, members: tuple[int, ...], k: int, *, highest: bool) -> pulp.LpVariable | float:
        """The largest (smallest) z[p, k] of the members: itself if it is fixed, else an auxiliary variable that equals it in an optimum of (1)."""
        z = {id(v): v for v in (self._z[p, k] for p in members) if not isinstance(v, float)}
        settled = [v for v in (self._z[p, k] for p in members) if isinstance(v, float)]
        if float(highest) in settled:
            return float(highest)
        if not z:
            return settled[0]
        if len(z) == 1:
            return next(iter(z.values()))
        helper = self._program.add_variable(f"e{len(self._helpers)}", lowBound=0, upBound=1)
        self._helpers.append((helper, members, k, highest))
        for v in z.values():
            self._program += helper >= v if highest else helper <= v
        return helper

    def relaxed_bytes(self) -> float | None:
        """The LP bound of (1), minus the solver's tolerance; None if the LP is infeasible."""
        if self._impossible:
            return None
        status = self._program.solve(pulp.HiGHS(mip=False, msg=False, threads=1))
        if pulp.LpStatus[status] != "Optimal":
            return None
        value = 0.0 if not self._terms else float(pulp.value(self._program.objective))
        return max(0.0, (self._fixed + value - 1e-7 * (1 + abs(value))) * self._unit)

    def solve(self, start: Sequence[int] | None, time_limit_s: float) -> tuple[list[int] | None, float, bool]:
        """Tree search from ``start``: (stages or None, lower bound in bytes, whether the search ended before the time limit)."""
        hints = {} if start is None else self._values(start)
        status = self._program.solve(_FromStart(hints, threads=1, gapRel=0.0, timeLimit=time_limit_s, msg=False))
        solved = self._program.solverModel
        proven = pulp.LpStatus[status] != "Not Solved"
        bound_bytes = float((self._fixed + solved.getInfo().mip_dual_bound) * self._unit)
        if not solved.getSolution().value_valid or pulp.LpStatus[status] not in ("Optimal", "Not Solved"):
            return None, max(0.0, bound_bytes) if np.isfinite(bound_bytes) else 0.0, proven
        stage = [0] * len(self._dag.groups)
        for (p, k), z in self._z.items():
            if 0 < k < self._num_stages:
                # PuLP gives no value to a variable without row or cost: a group without work, flows and edges may have any stage.
                stage[p] += round(z if isinstance(z, float) else z.value() or 0.0)
        return stage, max(0.0, bound_bytes), proven

    def _values(self, stage: Sequence[int]) -> dict[str, float]:
        hints = {z.name: float(stage[p] >= k) for (p, k), z in self._z.items() if not isinstance(z, float)}
        for helper, members, k, highest in self._helpers:
            hints[helper.name] = float((max if highest else min)(stage[p] >= k for p in members))
        return hints


class _FromStart(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS that begins with a given solution."""

    def __init__(self, hints: Mapping[str, float], **options: object) -> None:
        super().__init__(**options)
        self._hints = hints

    def callSolver(self, lp: pulp.LpProblem) -> None:
        if self._hints:
            columns = {v.index: self._hints[v.name] for v in lp.variables()}
            lp.solverModel.setSolution(len(columns), np.array(list(columns), dtype=np.int32), np.array(list(columns.values())))
        super().callSolver(lp)


def _measured(dag: WorkDag, stage: Sequence[int], num_stages: int, bound_bytes: float, method: str) -> StageCut:
    work = [0.0] * num_stages
    for s, group in zip(stage, dag.groups, strict=True):
        work[s] += group.compute_flop
    cut_bytes = crossing_bytes(dag, stage)
    return StageCut(tuple(stage), cut_bytes, min(cut_bytes, bound_bytes), tuple(work), method)


def _no_cut(dag: WorkDag, num_stages: int, tolerance: float, least: float | None) -> str:
    heaviest = max(dag.groups, key=lambda group: group.compute_flop)
    needed = loosest_needed(dag, num_stages, least)
    way_out = f"a tolerance of {needed:.3g} is enough" if needed is not None else f"there are {len(dag.groups)} groups of ops"
    return (
        f"no cut into {num_stages} stages gives every stage {1 - tolerance if least is None else least:.3g} to {1 + tolerance:.3g} of the mean "
        f"work: the heaviest group of ops ({heaviest.ops[0]}) alone is {heaviest.compute_flop * num_stages / dag.total_flop:.2f} of it; {way_out}, "
        "or use fewer stages"
    )
