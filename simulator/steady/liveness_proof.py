"""Liveness without playing (SEMANTICS 4.1): a Plan is live iff every cycle of its marked graph carries a token.

(1) cycle    take away every act that waits for no other over an arc without tokens, and repeat; what is left at the end, if anything, holds
             a cycle without tokens                                                                              -> token_free_cycle()
(2) way out  more blocks only move arcs to later acts, so liveness is monotone in every quota, and with n blocks (n per step)
             every quota arc carries a token: the smallest quota that helps is found by bisection                     -> way_out()

Source: Commoner, Holt, Even, Pnueli 1971, "Marked directed graphs": live iff each directed circuit is marked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numba
import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import DeadLock
from planner.ir.plan import Plan, RegstKind
from planner.ir.protocols import CostModel
from simulator.steady.cycle_text import describe_cycle
from simulator.steady.graph import ArcKind, Ints, MarkedGraph, OrderPolicy, marked_graph

__all__ = ["check_live", "is_live", "token_free_cycle", "way_out"]


class _NoPrices:
    """Acts and messages take no time; whether a Plan is live does not depend on it."""

    id = "no prices"

    def act_s(self, plan: Plan, task: object, rank: int) -> float:
        return 0.0

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


_NO_PRICES: CostModel = _NoPrices()


def check_live(plan: Plan) -> None:
    """Refuse a Plan that would dead-lock, before it runs.

    All ranks of a placement behave alike, so the graph holds one of them.

    Raises:
        DeadLock: names the cycle, and the smallest quota that alone would break it.
    """
    graph = marked_graph(plan, _NO_PRICES, folded=True, order_policy=OrderPolicy.NONE)
    cycle = token_free_cycle(graph)
    if cycle is None:
        return
    remedy = way_out(graph)
    if remedy is None:
        advice = "no quota breaks it, so the stream orders or the edges themselves contradict each other; change the order of a stream named here"
    else:
        advice = " and ".join(f"raise the quota of regst {r} from {plan.regst[r].quota} to {q}" for r, q in remedy.items())
    raise DeadLock(
        f"the plan is not live (SEMANTICS 4.1): a cycle of {len(cycle)} waits without a token, so none of these acts ever starts: "
        f"{describe_cycle(graph, cycle, acts=True)}; the way out: {advice}"
    )


def is_live(graph: MarkedGraph) -> bool:
    """Whether every cycle carries a token."""
    return not _stuck(graph)[1].any()


def token_free_cycle(graph: MarkedGraph) -> tuple[int, ...] | None:
    """(1) The arcs of a short cycle whose tokens sum to 0 or less, in the direction of time; None if the graph is live."""
    arcs, left = _stuck(graph)
    return _short_cycle(graph, arcs) if left.any() else None


def _stuck(graph: MarkedGraph) -> tuple[Ints, NDArray[np.bool_]]:
    """Arcs without tokens between acts that never start, and which acts those are."""
    tokens = graph.tokens
    if tokens.min(initial=0) < 0:
        tokens = _shifted(graph.num_nodes, graph.src, graph.dst, tokens)
    without_tokens = np.flatnonzero(tokens <= 0)
    left = _unpeeled(graph.num_nodes, graph.src[without_tokens], graph.dst[without_tokens])
    return without_tokens[left[graph.src[without_tokens]] & left[graph.dst[without_tokens]]], left


def way_out(graph: MarkedGraph) -> Mapping[str, int] | None:
    """(2) Quotas that make the Plan live: the Regst that alone suffices with the fewest added bytes, else several, else None."""
    plan = graph.plan
    if is_live(graph):
        return {}
    sufficient = {name: _sufficient_quota(graph, name) for name in _on_cycles(graph)}
    alone = []
    for name, most in sufficient.items():
        if is_live(graph.with_quotas({name: most})):
            quota = _smallest(graph, name, most)
            added = (quota - plan.regst[name].quota) * plan.block_bytes(plan.regst[name])
            alone.append((added, quota, name))
    if alone:
        _, quota, name = min(alone)
        return {name: quota}
    if not sufficient or not is_live(graph.with_quotas(sufficient)):
        return None
    # No Regst is on all cycles: give each its sufficient quota, then take back what is not needed, the largest blocks first.
    chosen = dict(sufficient)
    for name in sorted(sufficient, key=lambda r: -plan.block_bytes(plan.regst[r])):
        chosen[name] = _smallest(graph.with_quotas(chosen), name, sufficient[name], least=plan.regst[name].quota)
    return {name: quota for name, quota in chosen.items() if quota > plan.regst[name].quota}


def _sufficient_quota(graph: MarkedGraph, name: str) -> int:
    """The quota at which every quota arc of the Regst carries a token."""
    regst = graph.plan.regst[name]
    assert regst.producer is not None
    producer = graph.plan.task[regst.producer]
    per_block = next(port.acts_per_block for port in producer.produces if port.regst == name)
    return max(regst.quota, producer.acts // per_block)


def _smallest(graph: MarkedGraph, name: str, most: int, least: int | None = None) -> int:
    """The smallest quota that makes the graph live, by bisection; ``most`` is known to be enough."""
    low, high = (graph.plan.regst[name].quota if least is None else least), most
    while low < high:
        middle = (low + high) // 2
        if is_live(graph.with_quotas({name: middle})):
            high = middle
        else:
            low = middle + 1
    return high


def _on_cycles(graph: MarkedGraph) -> tuple[str, ...]:
    """Regsts with a quota arc that carries no token and lies among acts that never start; more blocks of other Regsts change nothing."""
    arcs, _ = _stuck(graph)
    names = [graph.plan.regsts[place] for place in np.unique(graph.regst[arcs[graph.kind[arcs] == ArcKind.QUOTA]]).tolist()]
    return tuple(regst.id for regst in names if regst.kind is not RegstKind.STATE)


def _short_cycle(graph: MarkedGraph, arcs: Ints) -> tuple[int, ...]:
    """A shortest cycle through one of the first nodes of a cycle among ``arcs``, each node of which has an in-arc there."""
    into: dict[int, list[int]] = {}
    out: dict[int, list[int]] = {}
    for arc in arcs.tolist():
        into.setdefault(int(graph.dst[arc]), []).append(arc)
        out.setdefault(int(graph.src[arc]), []).append(arc)
    node, seen = int(graph.dst[arcs[0]]), dict[int, None]()
    while node not in seen:
        seen[node] = None
        node = int(graph.src[into[node][0]])
    on_cycle = list(seen)[list(seen).index(node) :]
    cycles = [_around(start, out, graph.dst) for start in on_cycle[:64]]
    return min((cycle for cycle in cycles if cycle), key=len)


def _around(start: int, out: Mapping[int, list[int]], dst: Ints) -> tuple[int, ...]:
    """A shortest path from a node back to it, by breadth-first search; empty if there is none."""
    reached: dict[int, tuple[int, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for arc in out.get(node, ()):
            there = int(dst[arc])
            if there == start:
                return (*reached[node], arc)
            if there not in reached:
                reached[there] = (*reached[node], arc)
                queue.append(there)
    return ()


def _unpeeled(num_nodes: int, src: Ints, dst: Ints) -> NDArray[np.bool_]:
    """(1) Which nodes lie on a cycle of these arcs or after one."""
    order = np.argsort(src, kind="stable")
    pointer = np.zeros(num_nodes + 1, dtype=np.int64)
    pointer[1:] = np.cumsum(np.bincount(src, minlength=num_nodes))
    waits = np.bincount(dst, minlength=num_nodes).astype(np.int64)
    _peel(pointer, dst[order], waits)
    return np.asarray(waits > 0)


@numba.njit(cache=True)
def _peel(pointer, dst, waits):  # type: ignore[no-untyped-def]
    """Take away nodes that wait for none until there is none; ``waits`` is left with the waits of the others."""
    n = len(waits)
    stack = np.empty(n, dtype=np.int64)
    depth = 0
    for v in range(n):
        if waits[v] == 0:
            stack[depth] = v
            depth += 1
    while depth > 0:
        depth -= 1
        v = stack[depth]
        for a in range(pointer[v], pointer[v + 1]):
            waits[dst[a]] -= 1
            if waits[dst[a]] == 0:
                stack[depth] = dst[a]
                depth += 1


@numba.njit(cache=True)
def _shifted(n, src, dst, tokens):  # type: ignore[no-untyped-def]
    """Tokens with the same sum on every cycle and, where that is possible, none below 0: the steps of each node are counted from another start."""
    shift = np.zeros(n, dtype=np.int64)
    for _ in range(n):
        changed = False
        for a in range(len(src)):
            if shift[src[a]] + tokens[a] < shift[dst[a]]:
                shift[dst[a]] = shift[src[a]] + tokens[a]
                changed = True
        if not changed:
            break
    return tokens + shift[src] - shift[dst]
