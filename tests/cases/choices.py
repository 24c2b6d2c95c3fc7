"""Random choice problems, small enough to try every choice."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from planner.solve import Edge, Problem


@st.composite
def problems(draw: st.DrawFn, *, most_nodes: int = 7) -> Problem:
    """Random graphs of 2 to 7 nodes with up to 4 strategies; some pairs are forbidden, some nodes are joined twice."""
    extents = draw(st.lists(st.integers(1, 4), min_size=2, max_size=most_nodes))
    price = st.one_of(st.integers(0, 50).map(lambda n: n * 1e-4), st.just(np.inf))
    finite = st.integers(0, 50).map(lambda n: n * 1e-4)
    costs = tuple(np.array(draw(st.lists(finite, min_size=k, max_size=k))) for k in extents)
    edges = []
    for v in range(1, len(extents)):
        for u in draw(st.lists(st.integers(0, v - 1), min_size=1, max_size=3)):
            matrix = np.array(draw(st.lists(price, min_size=extents[u] * extents[v], max_size=extents[u] * extents[v])))
            a, b = (u, v) if draw(st.booleans()) else (v, u)
            edges.append(Edge(a, b, matrix.reshape(extents[a], extents[b])))
    return Problem(tuple(f"n{i}" for i in range(len(extents))), costs, tuple(edges))
