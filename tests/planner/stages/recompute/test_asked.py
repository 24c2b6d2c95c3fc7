"""The ops that a share or attention means, against what the staged graph then keeps."""

from __future__ import annotations

import pytest

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import flop
from planner.stages.copies import copy_into_regions
from planner.stages.recompute.asked import ops_again, stage_problem
from zoo import ZOO


def kept_bytes(graph: LogicalGraph, again: frozenset[str]) -> int:
    """Of the values that the backward part reads from the forward part, when these ops are copied."""
    staged, _ = copy_into_regions(graph, {op.id: 0 for op in graph.ops}, again)
    made = {v for op in staged.ops if op.role is Role.FORWARD for v in op.outputs if v}
    return sum(
        staged.values[v].size_bytes for v in made.intersection(v for op in staged.ops if op.role is Role.BACKWARD for v in op.inputs)
    )


def test_the_staged_graph_keeps_exactly_what_the_choice_says() -> None:
    graph = ZOO["gpt"](layers=2, width=32, heads=2, vocab=64, batch=4, seq=16, optimizer="sgd").graph(1)
    stage = {op.id: 0 for op in graph.ops}

    def op_s(op: Op) -> float:
        return float(flop(op, graph.values))

    problem = stage_problem(graph, stage, 0, op_s)
    assert kept_bytes(graph, frozenset()) == problem.most_bytes
    before = problem.most_bytes
    for share in ("90%", "60%", "40%"):
        again = ops_again(graph, stage, share, op_s)
        kept = kept_bytes(graph, again)
        assert kept == problem.outcome(again)[2] <= float(share[:-1]) / 100 * problem.most_bytes
        assert kept < before
        before = kept
    scores = ops_again(graph, stage, "attention", op_s)
    by_id = {op.id: op.target for op in graph.ops}
    assert sorted(by_id[op] for op in scores).count("aten.matmul.default") == 4
    assert kept_bytes(graph, scores) == problem.outcome(scores)[2] < problem.most_bytes
    with pytest.raises(Unsupported, match="recompute 'some'"):
        ops_again(graph, stage, "some", op_s)
