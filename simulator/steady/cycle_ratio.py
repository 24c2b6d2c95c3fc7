"""Maximum cycle ratio by Howard's policy iteration, with a certificate.

(1) period    lambda = max over cycles of (sum of weights / sum of tokens)                               -> max_cycle_ratio()
(2) proof     lambda <= r  if there are potentials x with  x(dst) >= x(src) + w - r t  on every arc of every cycle: summed over a cycle, the
              potentials cancel and  sum w <= r sum t  is left                                           -> CycleRatio.excess_s
(3) policy    each node has one chosen in-arc.  The cycles of the chosen arcs have ratios r; every other node takes the ratio of the cycle that
              leads to it, and x(dst) = x(src) + w - r t.  An in-arc that gives a node a greater ratio, or a greater x at the same ratio, becomes
              the chosen one.  When there is none, the greatest ratio is lambda

Sources: Cochet-Terrasson, Cohen, Gaubert, McGettrick, Quadrat 1998, "Numerical computation of spectral elements in max-plus algebra" (3);
Dasdan 2004, "Experimental analysis of the fastest optimum cycle ratio and mean algorithms"; SEMANTICS 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numba
import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported

__all__ = ["CycleRatio", "max_cycle_ratio"]

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]

MOST_ROUNDS = 1000
"""Howard's iteration needs some tens of rounds; after so many, rounding keeps it from ending."""


@dataclass(frozen=True, slots=True, eq=False)
class CycleRatio:
    """The maximum cycle ratio (1) with its proof.

    ratio_s: of ``cycle``, summed without rounding errors: a lower bound that is reached.
    cycle: arcs, each starting where the one before ends.
    potential_s: x of (2), shape [n]: when each node starts in a schedule that repeats every rate_s.
    rate_s: shape [n], the greatest ratio among the cycles that lead to a node; ratio_s for all nodes of a connected plan.
    excess_s: the most by which an arc breaks (2), from rounding; so the true ratio is at most ratio_s + n excess_s.
    rounds: policies that were tried.
    """

    ratio_s: float
    cycle: tuple[int, ...]
    potential_s: Reals
    rate_s: Reals
    excess_s: float
    rounds: int

    @property
    def upper_bound_s(self) -> float:
        """What the potentials prove (2)."""
        return max(self.ratio_s, float(self.rate_s.max(initial=0.0))) + len(self.potential_s) * self.excess_s


def max_cycle_ratio(num_nodes: int, src: Ints, dst: Ints, weight_s: Reals, tokens: Ints) -> CycleRatio:
    """The period of a live timed marked graph.

    Args:
        num_nodes: n.
        src, dst, weight_s, tokens: shape [m].  Every cycle's tokens sum to more than 0 (simulator.steady.liveness_proof proves it); weights >= 0.

    Returns:
        A ratio of 0 and no cycle if there is no cycle at all.

    Raises:
        Unsupported: a cycle without tokens was met, or rounding keeps the iteration from ending.
    """
    # A node without an in-arc gets an arc to itself that never binds, because every node must have one.
    without_in_arc = np.flatnonzero(np.bincount(dst, minlength=num_nodes) == 0)
    arcs = len(src)
    src, dst = np.concatenate([src, without_in_arc]), np.concatenate([dst, without_in_arc])
    weight_s = np.concatenate([weight_s, np.zeros(len(without_in_arc))])
    tokens = np.concatenate([tokens, np.ones(len(without_in_arc), dtype=np.int64)])
    pointer, order = _by_node(num_nodes, dst)
    scale_s = max(float(weight_s.max(initial=0.0)), 1e-300)
    small = np.int32  # half the memory of int64; a plan has at most 10^7 acts
    chosen_arc, rate_s, potential_s, excess_s, rounds = _howard(
        pointer, src[order].astype(small), dst[order].astype(small), weight_s[order] / scale_s, tokens[order].astype(small), MOST_ROUNDS
    )
    if rounds <= 0:
        raise Unsupported(
            f"the graph of {num_nodes} acts and {arcs} arcs "
            + (
                "has a cycle without tokens, so it is not live and has no period"
                if rounds == 0
                else f"did not settle in {MOST_ROUNDS} rounds"
            )
        )
    cycle = _follow(int(np.argmax(rate_s)), order[chosen_arc], src) if num_nodes else []
    if any(arc >= arcs for arc in cycle):
        cycle = []
    ratio_s = fsum(weight_s[cycle]) / int(tokens[cycle].sum()) if cycle else 0.0
    return CycleRatio(ratio_s, tuple(cycle), potential_s * scale_s, rate_s * scale_s, excess_s * scale_s, rounds)


def _follow(node: int, chosen_arc: Ints, src: Ints) -> list[int]:
    """The cycle at the end of the chosen in-arcs, in the direction of time."""
    seen: dict[int, int] = {}
    arcs: list[int] = []
    while node not in seen:
        seen[node] = len(arcs)
        arcs.append(int(chosen_arc[node]))
        node = int(src[chosen_arc[node]])
    return arcs[seen[node] :][::-1]


@numba.njit(cache=True)
def _by_node(n, end):  # type: ignore[no-untyped-def]
    """Arcs in the order of one of their ends: those of node v are arcs[pointer[v] : pointer[v + 1]]."""
    pointer = np.zeros(n + 1, dtype=np.int64)
    for a in range(len(end)):
        pointer[end[a] + 1] += 1
    pointer = np.cumsum(pointer)
    place = pointer[:-1].copy()
    arcs = np.empty(len(end), dtype=np.int64)
    for a in range(len(end)):
        arcs[place[end[a]]] = a
        place[end[a]] += 1
    return pointer, arcs


@numba.njit(cache=True)
def _spread(out_pointer, out_arcs, src, dst, weight, tokens, chosen_arc, rate, x, near, queue, queued):  # type: ignore[no-untyped-def]
    """Each node that can be reached from one with a greater rate takes that rate and the arc that leads to it, the greatest rate first; in place."""
    n = len(rate)
    top = rate.max()
    filled = 0
    for sweep in range(2):
        for v in range(n):
            if (rate[v] >= top - near) == (sweep == 0):
                queue[filled] = v
                queued[v] = 1
                filled += 1
    head, waiting = 0, filled
    while waiting > 0:
        u = queue[head]
        head = head + 1 if head + 1 < n else 0
        waiting -= 1
        queued[u] = 0
        for k in range(out_pointer[u], out_pointer[u + 1]):
            a = out_arcs[k]
            v = dst[a]
            if rate[v] < rate[u] - near:
                rate[v] = rate[u]
                x[v] = x[u] + weight[a] - rate[u] * tokens[a]
                chosen_arc[v] = a
                if queued[v] == 0:
                    tail = head + waiting
                    queue[tail if tail < n else tail - n] = v
                    queued[v] = 1
                    waiting += 1


@numba.njit(cache=True)
def _howard(pointer, src, dst, weight, tokens, most_rounds):  # type: ignore[no-untyped-def]
    """(3) on arcs sorted by dst.  Returns chosen in-arcs, rates, potentials, excess, rounds (0: a cycle without tokens; -1: too many)."""
    n = len(pointer) - 1
    out_pointer, out_arcs = _by_node(n, src)
    chosen_arc = np.empty(n, dtype=np.int64)
    rate = np.zeros(n)
    if n == 0:
        return chosen_arc, rate, rate, 0.0, 1
    x = np.zeros(n)
    for v in range(n):
        best = pointer[v]
        for a in range(pointer[v], pointer[v + 1]):
            if weight[a] - tokens[a] > weight[best] - tokens[best]:  # weights are at most 1 here, and so is a loop's ratio
                best = a
        chosen_arc[v] = best
    state = np.empty(n, dtype=np.int64)
    stack = np.empty(n, dtype=np.int64)
    excess = 0.0
    for rounds in range(1, most_rounds + 1):
        # Rates and potentials along the chosen in-arcs.
        state[:] = -1
        for start in range(n):
            if state[start] != -1:
                continue
            depth, v = 0, start
            while state[v] == -1:
                state[v] = start
                stack[depth] = v
                depth += 1
                v = src[chosen_arc[v]]
            if state[v] == start:  # a new cycle, from v's place on the stack to its end
                total, count, u = 0.0, 0, v
                while True:
                    total += weight[chosen_arc[u]]
                    count += tokens[chosen_arc[u]]
                    u = src[chosen_arc[u]]
                    if u == v:
                        break
                if count <= 0:
                    return chosen_arc, rate, x, excess, 0
                rate[v] = total / count
                state[v] = -2  # keeps its potential of the last round: chains are compared on one scale
            while depth > 0:
                depth -= 1
                u = stack[depth]
                if state[u] != -2:
                    a = chosen_arc[u]
                    rate[u] = rate[src[a]]
                    x[u] = x[src[a]] + weight[a] - rate[u] * tokens[a]
                state[u] = -2
        # A greater rate spreads over all that it leads to, at once: the greatest first.
        top = rate.max()
        near = 1e-12 * max(top, 1e-300)
        _spread(out_pointer, out_arcs, src, dst, weight, tokens, chosen_arc, rate, x, near, stack, state)
        # Better arcs.  A better potential counts at once, so one sweep in the order of the nodes carries it all along a chain; a cycle of the
        # arcs chosen then still has at least the rate it is compared with.
        better = False
        one_rate = rate.min() >= top - near
        margin = 1e-13 * max(1.0, top, np.abs(x).max())
        excess = 0.0
        for v in range(n):
            best, chosen = x[v], -1
            for a in range(pointer[v], pointer[v + 1]):
                if one_rate or rate[src[a]] >= rate[v] - near:
                    reached = x[src[a]] + weight[a] - rate[v] * tokens[a]
                    if reached > best:
                        best, chosen = reached, a
            if best > x[v] + margin:
                x[v] = best
                chosen_arc[v] = chosen
                better = True
            else:
                excess = max(excess, best - x[v])
        if not better:
            return chosen_arc, rate, x, excess, rounds
    return chosen_arc, rate, x, excess, -1
