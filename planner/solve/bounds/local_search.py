"""Local search: single moves, which change one node's strategy at a time, and the fusion of two choices.

Single moves lower either the Lagrangian, for any choice, or the objective within the limit, for a choice that fits.  Fusion takes each connected
component of nodes in which two choices differ from one of them: first where cost per byte falls most, until the memory is full.

The cost of strategy s at node v, if all other nodes keep theirs, is   theta_v(s) + sum over edge ends h of v of
edge_cost_h(class of s, class of the neighbour's strategy).
"""

from __future__ import annotations

import numba
import numpy as np

from planner.solve.bounds.message_passing import Dual
from planner.solve.problem import Ints

__all__ = ["fuse_choices", "improve_at_multipliers", "improve_within_limit"]


def improve_at_multipliers(dual: Dual, choice: Ints, rounds: int = 20) -> Ints:
    """Move single nodes until none lowers the Lagrangian at the dual's present multipliers.  The result may exceed the limit."""
    settled: Ints = _settle(choice.copy(), rounds, dual.theta, dual.flat)
    return settled


def improve_within_limit(dual: Dual, choice: Ints, rounds: int = 20) -> Ints:
    """Move single nodes until none lowers the objective within the limit.  ``choice`` must be within it, and so is the result."""
    held = dual.held(choice)
    moved: Ints = _descend(choice.copy(), held, dual.problem.limit, rounds, dual.flat, dual.holds)
    return moved


def fuse_choices(dual: Dual, cheap: Ints, small: Ints) -> Ints:
    """A fusion of two choices within the limit, improved by single moves.

    The nodes at which the two differ form connected components.  Taking one component from the other choice changes the objective by an amount
    that does not depend on the other components.  So they are taken one after another, in order of the objective they save for the memory
    they need (at the dual's present multipliers).   [fusion moves, Lempitsky et al. 2010]

    Args:
        cheap: any choice.   small: a choice within the limit.

    Returns:
        A choice within the limit that costs at most as much as ``small``.
    """
    paid = np.where(dual.alive, dual.theta - dual.flat.cost, 0.0)
    best, least = small, dual.objective(small)
    for base, other in ((cheap, small), (small, cheap)):
        if np.isfinite(dual.objective(base)):
            mixed = _fuse(base.copy(), other, paid, dual.held(base), dual.problem.limit, dual.flat, dual.holds)
            if dual.held(mixed).max(initial=0.0) <= dual.problem.limit:
                mixed = improve_within_limit(dual, mixed)
                if (value := dual.objective(mixed)) < least:
                    best, least = mixed, value
    return best


@numba.njit(cache=True)
def _components(base, other, f):  # type: ignore[no-untyped-def]
    """(nodes at which the choices differ, component after component;  the position at which each component begins)."""
    nodes = f.first.size - 1
    seen = base == other
    members, starts = np.empty(nodes, dtype=np.int64), np.zeros(nodes + 1, dtype=np.int64)
    count = components = 0
    for v in range(nodes):
        if seen[v]:
            continue
        seen[v] = True
        members[count] = v
        done, count = count, count + 1
        while done < count:
            for j in range(f.begin[members[done]], f.begin[members[done] + 1]):
                w = f.other[f.near[j]]
                if not seen[w]:
                    seen[w] = True
                    members[count] = w
                    count += 1
            done += 1
        components += 1
        starts[components] = count
    return members[:count], starts[: components + 1]


@numba.njit(cache=True)
def _change(members, base, other, f):  # type: ignore[no-untyped-def]
    """The change of the objective if these nodes, a whole component, take ``other`` instead of ``base``."""
    total = 0.0
    for v in members:
        total += f.cost[f.first[v] + other[v]] - f.cost[f.first[v] + base[v]]
        for j in range(f.begin[v], f.begin[v + 1]):
            h = f.near[j]
            w = f.other[h]
            if base[w] != other[w] and w < v:
                continue  # in the component too, and counted at w
            far = f.num[h ^ 1]
            new = f.edge_cost[f.at[h] + f.classes[f.of[h] + other[v]] * far + f.classes[f.of[h ^ 1] + other[w]]]
            if new == np.inf:
                return np.inf
            total += new - f.edge_cost[f.at[h] + f.classes[f.of[h] + base[v]] * far + f.classes[f.of[h ^ 1] + base[w]]]
    return total


@numba.njit(cache=True)
def _fuse(base, other, paid, held, limit, f, demands):  # type: ignore[no-untyped-def]
    members, starts = _components(base, other, f)
    count = starts.size - 1
    gain, weight, ratio = np.zeros(count), np.zeros(count), np.zeros(count)
    for p in range(count):
        nodes = members[starts[p] : starts[p + 1]]
        gain[p] = -_change(nodes, base, other, f)
        for v in nodes:
            weight[p] += paid[f.first[v] + other[v]] - paid[f.first[v] + base[v]]
    now = base.copy()
    over = held.size > 0 and held.max() > limit
    if over:  # free memory first, where a unit of it costs least
        for p in range(count):
            ratio[p] = -gain[p] / max(-weight[p], 1e-300) if weight[p] < 0.0 else np.inf
        for p in np.argsort(ratio):
            if ratio[p] == np.inf or held.max() <= limit:
                break
            for v in members[starts[p] : starts[p + 1]]:
                _move(v, other[v], now, held, demands)
            gain[p] = 0.0
        if held.max() > limit:
            return now
    for p in range(count):
        ratio[p] = -gain[p] / max(weight[p], 1e-300) if gain[p] > 0.0 else np.inf
    for p in np.argsort(ratio):
        if ratio[p] == np.inf:
            break
        for v in members[starts[p] : starts[p + 1]]:
            _move(v, other[v], now, held, demands)
        if held.size > 0 and held.max() > limit:
            for v in members[starts[p] : starts[p + 1]]:
                _move(v, base[v], now, held, demands)
    return now


@numba.njit(cache=True)
def _costs_of(v, choice, theta, f, out):  # type: ignore[no-untyped-def]
    a = f.first[v]
    k = f.first[v + 1] - a
    for s in range(k):
        out[s] = theta[a + s]
    for j in range(f.begin[v], f.begin[v + 1]):
        h = f.near[j]
        far, c = f.num[h ^ 1], f.of[h]
        b = f.at[h] + f.classes[f.of[h ^ 1] + choice[f.other[h]]]
        for s in range(k):
            out[s] += f.edge_cost[b + f.classes[c + s] * far]


@numba.njit(cache=True)
def _settle(choice, rounds, theta, f):  # type: ignore[no-untyped-def]
    out = np.empty(f.cost.size)
    for _ in range(rounds):
        moved = False
        for v in range(f.first.size - 1):
            _costs_of(v, choice, theta, f, out)
            best = choice[v]
            for s in range(f.first[v + 1] - f.first[v]):
                if out[s] < out[best]:
                    best = s
            if best != choice[v]:
                choice[v] = best
                moved = True
        if not moved:
            break
    return choice


@numba.njit(cache=True)
def _fits(v, s, choice, held, limit, demands, delta):  # type: ignore[no-untyped-def]
    """Whether the choice stays within the limit if v moves to s.  ``delta`` is all zero before and after the call."""
    low, high = held.size, 0
    for i in range(demands.by_node[v], demands.by_node[v + 1]):
        change = demands.amounts[demands.amount_at[i] + s] - demands.amounts[demands.amount_at[i] + choice[v]]
        if change != 0.0:
            low, high = min(low, demands.start[i]), max(high, demands.stop[i])
            for t in range(demands.start[i], demands.stop[i]):
                delta[t] += change
    fits = True
    for t in range(low, high):
        if delta[t] > 0.0 and held[t] + delta[t] > limit:
            fits = False
        delta[t] = 0.0
    return fits


@numba.njit(cache=True)
def _move(v, s, choice, held, demands):  # type: ignore[no-untyped-def]
    for i in range(demands.by_node[v], demands.by_node[v + 1]):
        change = demands.amounts[demands.amount_at[i] + s] - demands.amounts[demands.amount_at[i] + choice[v]]
        if change != 0.0:
            for t in range(demands.start[i], demands.stop[i]):
                held[t] += change
    choice[v] = s


@numba.njit(cache=True)
def _descend(choice, held, limit, rounds, f, demands):  # type: ignore[no-untyped-def]
    out = np.empty(f.cost.size)
    delta = np.zeros(held.size)
    for _ in range(rounds):
        moved = False
        for v in range(f.first.size - 1):
            _costs_of(v, choice, f.cost, f, out)
            best = choice[v]
            for s in range(f.first[v + 1] - f.first[v]):
                if out[s] < out[best] and _fits(v, s, choice, held, limit, demands, delta):
                    best = s
            if best != choice[v]:
                _move(v, best, choice, held, demands)
                moved = True
        if not moved:
            break
    return choice
