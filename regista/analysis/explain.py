"""Why a Plan is as it is: what other layouts would cost, which links its time goes to, what fills its devices.

The price of an alternative is a min-marginal: the best objective of all plans in which this one node takes it,

    difference(v, s) = min { objective(x) : x_v = s }  -  min objective        >= 0, and 0 for what an optimal plan takes

The objective is what the search minimises: seconds per step, of several stages their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from time import perf_counter

import numpy as np

from planner.ir.errors import RegistaError, Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Role
from planner.ir.plan import Plan
from planner.search import Method, search
from planner.search.model import SearchModel
from planner.solve import Solution
from planner.solve.problem import Ints
from regista.analysis.budget import Holding, Spending, holdings, spending
from regista.analysis.planned import SAME, Retraced, retrace

__all__ = ["Alternative", "Decision", "Explanation", "Wanted", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """layout: of the tensor, or 'inputs -> outputs' of the op.

    objective_s: the best with it, per step; infinite if no plan has it, None if the time was up before it was priced.
    proven: nothing with it is cheaper (else it may be).
    """

    layout: str
    chosen: bool
    objective_s: float | None
    difference_s: float | None
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One tensor or op that chooses.  what: its kind or its target.   size_bytes: of the logical tensor (an op: of its outputs)."""

    name: str
    what: str
    module: str
    size_bytes: int
    chosen: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """gap: of the Plan's search.   best_s: the optimum that differences are measured from, None if nothing was searched.

    note: what could not be explained, and why.   left_out: how many that match the pattern are not shown.
    """

    plan: Plan
    gap: float
    best_s: float | None
    decisions: tuple[Decision, ...]
    left_out: int
    spending: tuple[Spending, ...]
    holdings: tuple[Holding, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which decisions to price.

    op: pattern of op ids, targets and state names.   module: pattern of module paths, what is beneath included.
    most: at most so many, the largest first.   seconds: price alternatives for at most so long.
    """

    op: str | None = None
    module: str | None = None
    most: int = 12
    seconds: float = 60.0


def explain(plan: Plan, wanted: Wanted, graph: LogicalGraph | None = None) -> Explanation:
    """Explain a Plan.

    Args:
        graph: the step it was made from, for a program that no file holds; None: trace the program that the Plan names.

    Raises:
        Unsupported: the pattern matches nothing.
        RegistaError: the program cannot be traced again although a pattern asks about it (without a pattern the note says so).
    """
    search_ = plan.search
    gap = max(0.0, search_.objective_s - search_.lower_bound_s) / max(search_.objective_s, 1e-30)
    best_s, decisions, left_out, note = None, tuple[Decision, ...](), 0, ""
    try:
        retraced = retrace(plan, graph)
    except RegistaError as error:
        if wanted.op is not None or wanted.module is not None:
            raise
        note = f"what other layouts would cost cannot be worked out: {error}"
    else:
        best_s, decisions, left_out, note = _decide(retraced, wanted)
    return Explanation(
        plan=plan,
        gap=gap,
        best_s=best_s,
        decisions=decisions,
        left_out=left_out,
        spending=spending(plan),
        holdings=holdings(plan),
        note=note,
    )


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    what: str
    module: str
    size_bytes: int
    node: int
    ways: tuple[str, ...]


def _decide(retraced: Retraced, wanted: Wanted) -> tuple[float, tuple[Decision, ...], int, str]:
    candidates = list(_candidates(retraced, wanted))
    shown = candidates[: wanted.most]
    ends = perf_counter() + wanted.seconds
    stages = retraced.model.staged.num_stages
    notes = (
        [] if retraced.is_whole else ["parts of the plan's own choice cannot be read from it; the cheapest that agree with it are taken"]
    )
    optimal = retraced.is_optimal
    best = retraced.searched_s
    if not optimal:
        best = min(best, search(retraced.model, Method.EXACT, seconds=wanted.seconds).objective / stages)
    if retraced.searched_s > best * (1 + SAME):
        notes.append(
            f"differences are from the best layouts without a memory limit; the planned ones cost {retraced.searched_s / best - 1:.2%} more"
        )
    decisions, late = [], 0
    for candidate in shown:
        decision = _priced(retraced, candidate, best, optimal, ends)
        late += sum(a.objective_s is None for a in decision.alternatives)
        decisions.append(decision)
    if late:
        notes.append(f"{late} alternatives were not priced within {wanted.seconds:g} s; give more seconds or a narrower pattern")
    return best, tuple(decisions), len(candidates) - len(shown), "; ".join(notes)


def _priced(retraced: Retraced, candidate: _Candidate, best_s: float, optimal: bool, ends: float) -> Decision:
    taken = candidate.ways[int(retraced.choice[candidate.node])]
    alternatives = []
    for way in dict.fromkeys((taken, *candidate.ways)):
        strategies = np.flatnonzero([w == way for w in candidate.ways])
        left_s = ends - perf_counter()
        objective_s: float | None
        if way == taken and optimal:
            objective_s, proven = best_s, True
        elif left_s <= 0:
            objective_s, proven = None, False
        else:
            objective_s, proven = _best_with(retraced.model, candidate.node, strategies, left_s)
        difference_s = None
        if objective_s is not None:
            difference_s = 0.0 if abs(objective_s - best_s) <= SAME * max(best_s, 1e-12) else objective_s - best_s
        alternatives.append(Alternative(layout=way, chosen=way == taken, objective_s=objective_s, difference_s=difference_s, proven=proven))
    rest = sorted(alternatives[1:], key=lambda a: (a.difference_s is None, a.difference_s if a.difference_s is not None else 0.0))
    return Decision(
        name=candidate.name,
        what=candidate.what,
        module=candidate.module,
        size_bytes=candidate.size_bytes,
        chosen=taken,
        alternatives=(alternatives[0], *rest),
    )


def _best_with(model: SearchModel, node: int, strategies: Ints, seconds: float) -> tuple[float | None, bool]:
    """(objective, proven): infinite if no plan takes them, None where the time ended first."""
    began = perf_counter()
    pinned = replace(model, problem=model.problem.allowing({node: strategies}))
    try:
        solution: Solution = search(pinned, Method.EXACT, seconds=seconds)
    except Unsupported:
        return (inf, True) if perf_counter() - began < seconds else (None, False)
    return solution.objective / model.staged.num_stages, solution.gap <= SAME


def _candidates(retraced: Retraced, wanted: Wanted) -> Iterator[_Candidate]:
    """What matches: states by size, then ops in their order.

    Raises:
        Unsupported: nothing does.
    """
    model, graph = retraced.model, retraced.graph
    inputs = {entry.value: entry for entry in model.staged.graph.inputs}
    states = []
    for value, (node, layouts) in model.states.items():
        entry = inputs[value]
        size = graph.values[value].size_bytes
        states.append(_Candidate(entry.name, entry.kind.value, _owner(entry.name), size, node, tuple(map(str, layouts))))
    states.sort(key=lambda c: -c.size_bytes)
    if wanted.op is None and wanted.module is None:
        yield from (c for c in states if c.what == InputKind.PARAMETER.value)
        return
    matched = [c for c in states if _matches(wanted, (c.name,), c.module)]
    for op in model.staged.graph.ops:
        if wanted.module is not None and op.role is not Role.FORWARD:
            continue
        if _matches(wanted, (op.id, op.target), op.module):
            node, strategies = model.ops[op.id]
            size = sum(model.staged.graph.values[v].size_bytes for v in op.outputs if v is not None)
            ways = tuple(f"{_layouts(s.inputs)} -> {_layouts(s.outputs)}" for s in strategies)
            matched.append(_Candidate(op.id, op.target, op.module, size, node, ways))
    if not matched:
        raise Unsupported(_nothing_matches(retraced, wanted, [c.name for c in states]))
    yield from matched


def _layouts(sbps: Sequence[object]) -> str:
    """NdSbps on several axes have commas inside, so brackets tell where one ends."""
    return " ".join(f"[{sbp}]" for sbp in sbps) or "[]"


def _owner(state: str) -> str:
    return state.partition(":")[0].rpartition(".")[0]


def _matches(wanted: Wanted, names: tuple[str, ...], module: str) -> bool:
    if wanted.op is not None:
        return any(fnmatchcase(name, wanted.op) for name in names)
    assert wanted.module is not None, "one of the two is asked for"
    return fnmatchcase(module, wanted.module) or fnmatchcase(module, f"{wanted.module}.*")


def _nothing_matches(retraced: Retraced, wanted: Wanted, states: Sequence[str]) -> str:
    graph = retraced.model.staged.graph
    if wanted.module is not None:
        modules = dict.fromkeys(op.module for op in graph.ops if op.module)
        return f"module pattern {wanted.module!r} matches nothing; modules are like {', '.join(list(modules)[:8])} ..."
    ids = [op.id for op in graph.ops[:4]]
    targets = list(dict.fromkeys(op.target for op in graph.ops))[:4]
    return (
        f"op pattern {wanted.op!r} matches no op and no state; ops are like {', '.join(ids)}, their targets like {', '.join(targets)}, "
        f"states like {', '.join(states[:4])} ..."
    )
