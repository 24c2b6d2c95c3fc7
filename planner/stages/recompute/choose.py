"""The choice as an ILP: the least seconds computed again, within a limit of kept bytes.

Variables  y[o] in {0,1}  op o is computed again;   n[v] >= 0  value v is needed by the backward pass;   k[v] >= 0  value v is kept

    min  sum_o s[o] y[o]                                                                 (3)
    s.t. n[v] >= 1                      for each v that the backward pass reads          (4)
         n[u] >= y[o]                   for each operand u of o                          (5)
         k[v] >= n[v] - y[o]            for each result v of o                           (6)
         y[o] = 0 if o is KEPT,  y[o] >= n[v] if it is AGAIN                             (7)
         sum_v size[v] k[v] <= M                                                         (8)

Without (8) the constraints are those of a minimum cut, whose LP is integral; (8) is one row, so the tree is small.  n and k follow from y.
Values that nobody may need are left out.  Optimal is meant to the solver's tolerance: a millionth of the dearest op and of the largest value.

Torch's partitioner solves a minimum cut, then a
knapsack over the values it would keep, each with the price of its own op alone, and a minimum cut again: (3)-(8) is all of that at once.

Source: Beaumont et al. 2019 and Checkmate (Jain et al. 2020) for the ILP; theirs schedules in time, this one has one moment, the pass's end.
"""

from __future__ import annotations

from dataclasses import replace

import pulp

from planner.ir.errors import Unsupported
from planner.stages.recompute.problem import ForwardOp, Keeping, RecomputeChoice, SavingProblem

__all__ = ["choose_recompute"]


def choose_recompute(problem: SavingProblem, limit_bytes: int, *, time_limit_s: float = 60.0) -> RecomputeChoice:
    """The set of ops whose repetition costs least while at most ``limit_bytes`` are kept at the end of the forward pass.

    Args:
        limit_bytes: M of (8).
        time_limit_s: of the solver; at its end the best choice so far is returned with its bound.

    Raises:
        Unsupported: an op has no price or a negative one, or more must be kept than the limit; the message says the least that is kept.
    """
    for op in problem.ops:
        if not 0.0 <= op.duration_s < float("inf"):
            raise Unsupported(f"op {op.id} takes {op.duration_s} s; a price is a finite number of seconds >= 0")
    if problem.most_bytes <= limit_bytes:
        return _choice(problem, frozenset(), limit_bytes, bound_s=None)
    model = _Model(problem)
    least_bytes = model.least_bytes()
    if least_bytes > limit_bytes:
        raise Unsupported(
            f"at most {limit_bytes:,} bytes may be kept from the forward pass for the backward one, but {least_bytes:,} must be, however much is "
            f"computed again; allow at least {least_bytes:,} of the {problem.most_bytes:,} bytes that are kept where nothing is"
        )
    again, bound_s = model.solve(limit_bytes, time_limit_s)
    return _choice(problem, again, limit_bytes, bound_s)


def _choice(problem: SavingProblem, again: frozenset[str], limit_bytes: int, bound_s: float | None) -> RecomputeChoice:
    """The choice by what is needed of it, and its bound: its own seconds where that is None."""
    repeated, kept, saved_bytes, duration_s = problem.outcome(again)
    bound_s = duration_s if bound_s is None else min(bound_s, duration_s)
    return RecomputeChoice(
        again=repeated, kept=kept, saved_bytes=saved_bytes, limit_bytes=limit_bytes, recomputed_s=duration_s, bound_s=bound_s
    )


class _Model:
    """(3)-(8) in PuLP; bytes are divided by the largest value and seconds by the dearest op, so that coefficients lie near 1."""

    def __init__(self, problem: SavingProblem) -> None:
        self._problem = problem
        self._ops = _reachable(problem)
        self._size = max(problem.size_bytes.values(), default=1) or 1
        self._dearest_s = max((op.duration_s for op in self._ops), default=1.0) or 1.0
        self._program = pulp.LpProblem("recompute", pulp.LpMinimize)
        self._again: dict[str, pulp.LpVariable] = {}
        self._least: frozenset[str] = frozenset()
        kept = self._constrain()
        self._saved = pulp.LpAffineExpression([(k, problem.size_bytes[v] / self._size) for v, k in kept.items()])

    def _constrain(self) -> dict[str, pulp.LpVariable]:
        made = [v for op in self._ops for v in op.outputs]
        needed = {v: self._program.add_variable(f"n{i}", float(v in self._problem.read), 1.0) for i, v in enumerate(made)}  # (4)
        kept: dict[str, pulp.LpVariable] = {}
        for i, op in enumerate(self._ops):
            if op.keeping is Keeping.KEPT:
                kept.update((v, needed[v]) for v in op.outputs)
                continue
            free = op.keeping is Keeping.AGAIN  # then y follows from n
            again = self._program.add_variable(f"y{i}", 0.0, 1.0, pulp.LpContinuous if free else pulp.LpBinary)
            self._again[op.id] = again
            for value in dict.fromkeys(op.inputs):
                if value in needed:
                    self._program += needed[value] >= again  # (5)
            for j, value in enumerate(op.outputs):
                if free:
                    self._program += again >= needed[value]  # (7)
                else:
                    kept[value] = self._program.add_variable(f"k{i}_{j}", 0.0, 1.0)
                    self._program += kept[value] >= needed[value] - again  # (6)
        return kept

    def least_bytes(self) -> int:
        """The fewest bytes that any choice keeps: (8) minimised, which is a minimum cut."""
        self._program.setObjective(self._saved)
        self._program.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0))
        self._least = self._chosen()
        return self._problem.outcome(self._least)[2]

    def solve(self, limit_bytes: int, time_limit_s: float) -> tuple[frozenset[str], float]:
        """The ops computed again, and a lower bound in seconds; after least_bytes()."""
        best, bounds_s, dearest_s = self._least, [], self._dearest_s
        for attempt in range(_ATTEMPTS):
            self._program.setObjective(self._repeated_s() / dearest_s)
            if not attempt:
                self._program.addConstraint(self._saved <= limit_bytes / self._size, "limit")  # (8)
            self._program.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, timeLimit=time_limit_s))
            bounds_s.append(float(self._program.solverModel.getInfo().mip_dual_bound) * dearest_s - _TOLERANCE * dearest_s)
            if not self._program.solverModel.getSolution().value_valid:
                break
            again = self._chosen()
            saved_bytes = self._problem.outcome(again)[2]
            if saved_bytes <= limit_bytes:
                best = min(best, again, key=lambda chosen: self._problem.outcome(chosen)[3])
                cheap_s = [op.duration_s for op in self._ops if 0 < op.duration_s < _CHEAP * dearest_s]
                if not cheap_s:
                    break
                self._settle(
                    best, _CHEAP * dearest_s
                )  # the solver does not see what is so cheap beside the dearest: once more, among these
                dearest_s = max(cheap_s)
            else:
                excess = (saved_bytes - limit_bytes) / self._size  # within the solver's tolerance only
                self._program.constraints["limit"].constant += excess
        return best, max(0.0, bounds_s[0])

    def _repeated_s(self) -> pulp.LpAffineExpression:
        return pulp.LpAffineExpression([(self._again[op.id], op.duration_s) for op in self._ops if op.id in self._again])

    def _settle(self, again: frozenset[str], least_s: float) -> None:
        """Ops that take so long stay as they are."""
        for op in self._ops:
            if op.id in self._again and op.keeping is Keeping.CHOSEN and op.duration_s >= least_s:
                self._again[op.id].setInitialValue(float(op.id in again))
                self._again[op.id].fixValue()

    def _chosen(self) -> frozenset[str]:
        return frozenset(op for op, y in self._again.items() if (y.varValue or 0.0) > 0.5)


def _reachable(problem: SavingProblem) -> tuple[ForwardOp, ...]:
    """The ops that some choice needs again or keeps, with those of their results that may be needed."""
    needed = set(problem.read)
    ops = []
    for op in reversed(problem.ops):
        wanted = tuple(v for v in op.outputs if v in needed)
        if wanted:
            ops.append(replace(op, outputs=wanted))
            if op.keeping is not Keeping.KEPT:
                needed.update(op.inputs)
    return tuple(reversed(ops))


_ATTEMPTS = 5
"""Solutions tried: again after one that keeps some bytes more than the limit, within the solver's tolerance, and among ever cheaper ops."""

_CHEAP, _TOLERANCE = 1e-3, 1e-6
"""Of the dearest op: what is settled apart, and what the solver's answer may be from the best; the bound is lowered by it."""
