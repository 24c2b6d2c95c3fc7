"""Howard's ratio is the greatest of all cycles, and its certificate proves it."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir.errors import Unsupported
from simulator.steady.cycle_ratio import CycleRatio, max_cycle_ratio
from tests.tiers import examples

Arcs = list[tuple[int, int, int, int]]
"""(src, dst, weight in seconds, tokens)"""


@st.composite
def live_graphs(draw: st.DrawFn) -> tuple[int, Arcs]:
    """Up to 7 nodes with parallel arcs and loops; arcs without tokens only lead upwards, so that every cycle has a token."""
    nodes = draw(st.integers(1, 7))
    node = st.integers(0, nodes - 1)
    drawn = draw(st.lists(st.tuples(node, node, st.integers(0, 9), st.integers(0, 3)), max_size=14))
    return nodes, [(u, v, w, t if u < v else max(t, 1)) for u, v, w, t in drawn]


def solve(nodes: int, arcs: Arcs) -> CycleRatio:
    columns = np.array(arcs, dtype=np.int64).reshape(-1, 4).T
    return max_cycle_ratio(nodes, columns[0], columns[1], columns[2].astype(np.float64), columns[3])


def exhaustive(arcs: Arcs) -> Fraction:
    """The greatest ratio over all simple cycles; where arcs lie in parallel, each of them is tried."""
    between: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for u, v, weight, tokens in arcs:
        between[u, v].append((weight, tokens))
    best = Fraction(0)
    for nodes in nx.simple_cycles(nx.DiGraph(list(between))):
        for chosen in product(*(between[pair] for pair in zip(nodes, nodes[1:] + nodes[:1], strict=True))):
            best = max(best, Fraction(sum(w for w, _ in chosen), sum(t for _, t in chosen)))
    return best


@settings(max_examples=examples(300), deadline=None)
@given(live_graphs())
def test_the_ratio_is_the_greatest_of_all_simple_cycles(graph: tuple[int, Arcs]):
    assert solve(*graph).ratio_s == pytest.approx(float(exhaustive(graph[1])), rel=1e-12)


@settings(max_examples=examples(200), deadline=None)
@given(live_graphs())
def test_the_cycle_closes_and_has_the_ratio(graph: tuple[int, Arcs]):
    nodes, arcs = graph
    cycle_ratio = solve(nodes, arcs)
    if not cycle_ratio.cycle:
        assert cycle_ratio.ratio_s == 0.0
        return
    chosen = [arcs[a] for a in cycle_ratio.cycle]
    assert all(before[1] == after[0] for before, after in zip(chosen, chosen[1:] + chosen[:1], strict=True))
    assert cycle_ratio.ratio_s == sum(a[2] for a in chosen) / sum(a[3] for a in chosen)


@settings(max_examples=examples(200), deadline=None)
@given(live_graphs())
def test_the_potentials_prove_that_no_cycle_is_slower(graph: tuple[int, Arcs]):
    nodes, arcs = graph
    cycle_ratio = solve(nodes, arcs)
    x, rate = cycle_ratio.potential_s, cycle_ratio.rate_s
    for src, dst, weight, tokens in arcs:
        assert rate[dst] >= rate[src] - 1e-9  # a node waits for all that leads to it, so around a cycle the rate is one
        if rate[dst] == pytest.approx(rate[src], rel=1e-9):
            assert x[dst] >= x[src] + weight - rate[dst] * tokens - 1e-9
    assert cycle_ratio.excess_s <= 1e-9
    assert cycle_ratio.ratio_s <= cycle_ratio.upper_bound_s <= cycle_ratio.ratio_s + 1e-7


@settings(max_examples=examples(100), deadline=None)
@given(live_graphs(), st.data())
def test_renaming_the_steps_of_nodes_changes_no_ratio(graph: tuple[int, Arcs], data: st.DataObject):
    nodes, arcs = graph
    shift = data.draw(st.lists(st.integers(-3, 3), min_size=nodes, max_size=nodes))
    moved = [(u, v, w, t + shift[u] - shift[v]) for u, v, w, t in arcs]  # tokens may be negative, their sums are as before
    assert solve(nodes, moved).ratio_s == pytest.approx(solve(nodes, arcs).ratio_s, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e3, 1e12])
def test_the_unit_of_time_does_not_matter(scale: float):
    arcs = [(0, 1, 3, 0), (1, 0, 4, 2), (1, 2, 5, 1), (2, 1, 1, 1), (2, 2, 3, 1)]
    columns = np.array(arcs, dtype=np.int64).T
    cycle_ratio = max_cycle_ratio(3, columns[0], columns[1], columns[2] * scale, columns[3])
    assert cycle_ratio.ratio_s == pytest.approx(3.5 * scale, rel=1e-12)


def test_equal_cycles_do_not_send_the_iteration_round_in_circles():
    # 2,000 nodes, all cycles of ratio 0.1 up to rounding: a ring, chords and loops
    n = 2000
    arcs = [(i, (i + 1) % n, 1, 1) for i in range(n)] + [(i, (i * 7 + 3) % n, 1, 1) for i in range(n)] + [(i, i, 1, 1) for i in range(n)]
    columns = np.array(arcs, dtype=np.int64).T
    cycle_ratio = max_cycle_ratio(n, columns[0], columns[1], columns[2] * 0.1, columns[3])
    assert cycle_ratio.ratio_s == 0.1
    assert cycle_ratio.rounds < 50


def test_a_cycle_without_tokens_is_refused():
    with pytest.raises(Unsupported, match="2 acts and 2 arcs has a cycle without tokens"):
        solve(2, [(0, 1, 5, 0), (1, 0, 5, 0)])
