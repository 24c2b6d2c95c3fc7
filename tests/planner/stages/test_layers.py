"""Layers: repeated blocks by their names, and Alpa's clustering against exhaustive search and against the blocks."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Role
from planner.stages.dag import Flow, Piece, WorkDag
from planner.stages.layers import Layers, block_layers, cluster_layers, cluster_runs, incoming_bytes
from regista.zoo import ZOO


@cache
def gpt(layers: int) -> LogicalGraph:
    return ZOO["gpt"](layers=layers, width=32, heads=2, vocab=64, seq=8, batch=2).graph(1)


RESIDUAL_BYTES = 2 * 8 * 32 * 4


def modules(graph: LogicalGraph, layers: Layers) -> list[set[str]]:
    """The numbered blocks whose ops each layer holds."""
    by_id = {op.id: op for op in graph.ops}
    return [{".".join(by_id[op].module.split(".")[:2]) for op in ops if by_id[op].module.startswith("h.")} for ops in layers.ops]


def test_only_the_residual_crosses_between_the_blocks_of_a_gpt() -> None:
    graph = gpt(4)
    layers = block_layers(graph)
    assert modules(graph, layers) == [set(), {"h.0"}, {"h.1"}, {"h.2"}, {"h.3"}, set()]
    assert [len(border.values) for border in layers.borders] == [1] * 5
    assert [border.forward_bytes for border in layers.borders] == [RESIDUAL_BYTES] * 5


def test_equal_blocks_have_equal_flop() -> None:
    layers = block_layers(gpt(4))
    assert len(set(layers.compute_flop[1:5])) == 1
    assert layers.compute_flop[1] > 0


def test_clustering_finds_the_blocks_without_reading_their_names() -> None:
    graph = gpt(4)
    layers = cluster_layers(graph, 4)
    assert modules(graph, layers) == [{"h.0"}, {"h.1"}, {"h.2"}, {"h.3"}]
    assert [border.forward_bytes for border in layers.borders] == [RESIDUAL_BYTES] * 3


@pytest.mark.parametrize("layers", [block_layers(gpt(4)), cluster_layers(gpt(4), 6)], ids=["blocks", "clusters"])
def test_every_forward_op_is_in_one_layer_and_data_flow_forward(layers: Layers) -> None:
    graph = gpt(4)
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    home = {op: k for k, ops in enumerate(layers.ops) for op in ops}
    assert sorted(home) == sorted(op.id for op in forward)
    assert sum(map(len, layers.ops)) == len(forward)
    makers = graph.producers()
    for op in forward:
        assert all(home[makers[value].id] <= home[op.id] for value in op.inputs if value in makers)


def test_a_graph_without_numbered_modules_is_one_layer() -> None:
    graph = ZOO["convnet"]().graph(1)
    assert not any(part.isdigit() for op in graph.ops for part in op.module.split("."))
    assert len(block_layers(graph).ops) == 1


@st.composite
def dags(draw: st.DrawFn) -> WorkDag:
    count = draw(st.integers(1, 8))
    pieces = tuple(Piece((f"op{p}",), float(draw(st.integers(0, 9)))) for p in range(count))
    flows = []
    for p in range(count - 1):
        readers = draw(st.sets(st.integers(p + 1, count - 1), max_size=3))
        if readers:
            flows.append(Flow((p, *sorted(readers)), float(draw(st.integers(1, 20))), draw(st.sampled_from([False, False, True]))))
    return WorkDag(pieces, tuple((f.members[0], b) for f in flows for b in f.members[1:]), tuple(flows))


@given(dags(), st.integers(1, 4), st.sampled_from([0.1, 0.53, 2.1]))
@settings(max_examples=150, deadline=None)
def test_the_clusters_have_the_least_largest_then_the_least_total_incoming_bytes(dag: WorkDag, num_layers: int, delta: float) -> None:
    count, limit = len(dag.pieces), (1 + delta) * dag.total_flop / num_layers

    def quality(ends: tuple[int, ...]) -> tuple[float, float] | None:
        runs = [(a, b) for a, b in pairwise((0, *ends))]
        if any(sum(piece.compute_flop for piece in dag.pieces[a:b]) > limit * (1 + 1e-9) for a, b in runs):
            return None
        incoming = [incoming_bytes(dag, a, b - 1) for a, b in runs]
        return max(incoming), sum(incoming)

    legal = [q for cuts in combinations(range(1, count), num_layers - 1) if (q := quality((*cuts, count))) is not None]
    found = cluster_runs(dag, num_layers, delta)
    if found is None:
        assert not legal
    else:
        assert len(found) == num_layers and found == sorted(set(found)) and found[-1] == count
        assert quality(tuple(found)) == min(legal)


def test_the_largest_incoming_bytes_come_before_their_total() -> None:
    """Borders cost 5 6 5 1; runs of at most 2 pieces may end at (1, 3), largest 5, total 10, or at (2, 4), largest 6, total 7."""
    flows = tuple(Flow((p, p + 1), size) for p, size in enumerate((5.0, 6.0, 5.0, 1.0)))
    dag = WorkDag(tuple(Piece((f"op{p}",), 1.0) for p in range(5)), tuple((p, p + 1) for p in range(4)), flows)
    assert cluster_runs(dag, 3, 0.2) == [1, 3, 5]


def test_among_equals_the_most_even_flop_is_taken() -> None:
    dag = WorkDag(tuple(Piece((f"op{p}",), 1.0) for p in range(6)), (), ())
    assert cluster_runs(dag, 3, 1.0) == [2, 4, 6]


def test_what_cannot_be_clustered_is_refused_with_the_heaviest_piece() -> None:
    with pytest.raises(Unsupported, match=r"cannot be clustered into 40 layers of at most 1\.00 of the mean"):
        cluster_layers(gpt(4), 40, delta=0.0)
