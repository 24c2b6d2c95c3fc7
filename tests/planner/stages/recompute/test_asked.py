"""The ops that blocks, attention or a share mean, against what the staged graph then keeps."""

from __future__ import annotations

import pytest

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import flop
from planner.stages.copies import copy_into_regions
from planner.stages.recompute.asked import ops_again, recompute_of, saving_problem
from planner.stages.recompute.problem import Keeping
from zoo import ZOO


def kept_bytes(graph: LogicalGraph, again: frozenset[str]) -> int:
    """Of the values that the backward part reads from the forward part, when these ops are copied."""
    staged, _ = copy_into_regions(graph, {op.id: 0 for op in graph.ops}, again)
    made = {v for op in staged.ops if op.role is Role.FORWARD for v in op.outputs if v}
    return sum(
        staged.values[v].size_bytes for v in made.intersection(v for op in staged.ops if op.role is Role.BACKWARD for v in op.inputs)
    )


def gpt() -> LogicalGraph:
    return ZOO["gpt"](layers=3, width=32, heads=2, vocab=64, batch=4, seq=16, optimizer="sgd").graph(1)


def test_the_staged_graph_keeps_exactly_what_the_choice_says() -> None:
    graph = gpt()

    def op_s(op: Op) -> float:
        return float(flop(op, graph.values))

    problem = saving_problem(graph, op_s)
    assert kept_bytes(graph, frozenset()) == problem.most_bytes
    assert ops_again(graph, "", op_s).ops == ops_again(graph, "100%", op_s).ops - {
        op.id for op in problem.ops if op.keeping is Keeping.AGAIN
    }
    before = problem.most_bytes
    for share in ("90%", "60%", "40%"):
        again = ops_again(graph, share, op_s)
        kept = kept_bytes(graph, again.ops)
        assert kept <= float(share[:-1]) / 100 * problem.most_bytes
        assert kept < before
        assert again.told.startswith(f"{kept:,} of {problem.most_bytes:,} bytes kept")
        before = kept
    scores = ops_again(graph, "attention", op_s).ops
    by_id = {op.id: op.target for op in graph.ops}
    assert sorted(by_id[op] for op in scores).count("aten.matmul.default") == 6
    assert kept_bytes(graph, scores) == problem.outcome(scores)[2] < problem.most_bytes


def test_batch_norm_is_computed_again_whole_or_not_at_all() -> None:
    """A mean kept and the rest computed again was rounded as parts are, where the forward pass had rounded as the kernel does."""
    graph = ZOO["resnet50"](batch=2, image=32, layers=14, width=8).graph(1)
    problem = saving_problem(graph, lambda op: float(flop(op, graph.values)) + 1.0)
    wholes = [op for op in problem.ops if len(op.parts) > 1 and op.keeping is Keeping.CHOSEN]
    assert len(wholes) == sum(op.role is Role.FORWARD and op.target == "aten.rsqrt.default" for op in graph.ops) + 1  # and the log softmax
    for share in ("80%", "50%", "35%"):
        again = ops_again(graph, share, lambda op: float(flop(op, graph.values)) + 1.0).ops
        assert again
        for whole in wholes:
            assert again.isdisjoint(whole.parts) or again.issuperset(whole.parts)
        assert kept_bytes(graph, again) <= float(share[:-1]) / 100 * problem.most_bytes


@pytest.mark.parametrize("text", ["some", "-5%", "101%", "60", "%", "6o%", ""])
def test_what_nobody_can_ask_for_is_refused_with_what_can_be(text: str) -> None:
    with pytest.raises(Unsupported, match=f"recompute '{text}': ask for auto, none, blocks, attention, selective, or the share"):
        recompute_of(text)


def test_a_share_below_what_must_be_kept_is_refused_with_the_least() -> None:
    graph = gpt()
    with pytest.raises(Unsupported, match=r"at most 0 bytes may be kept .* allow at least [\d,]+ of the [\d,]+ bytes"):
        ops_again(graph, "0%", lambda op: 1.0)


def test_a_router_is_no_attention() -> None:
    """From the softmax of a mixture's router the way went through its linear layer up to the attention before it: 363 ops too many of 403."""
    graph = ZOO["moe"](layers=2, width=32, heads=2, vocab=64, batch=4, seq=16).graph(1)
    found = ops_again(graph, "attention", lambda op: 1.0).ops
    assert sum(op.target == "aten._softmax.default" and op.id not in found for op in graph.ops if op.role is Role.FORWARD) > 0
    assert {op.module for op in graph.ops if op.id in found} == {"h.0.attn", "h.1.attn"}


def test_attention_of_one_op_is_refused_with_the_way_out() -> None:
    graph = ZOO["mlp"](depth=2, width=8, hidden=8, batch=4).graph(1)
    with pytest.raises(Unsupported, match=r"no softmax between two products of several ops.*Ask for a share"):
        ops_again(graph, "attention", lambda op: 1.0)
