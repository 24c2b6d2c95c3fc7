"""Strategies: what the meshes of a search share changes none of them, and a part is priced as what it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from matrix import roomy_cluster

from planner.cost import compute_dtype, op_work_s
from planner.ir.graph import LogicalGraph
from planner.opset import flop, traffic_bytes
from planner.search.context import rings
from planner.search.layout_costs import LayoutCosts, PartsS
from planner.search.strategies import OpParts, Strategy, StrategySet, StrategySets, relabel
from zoo import ZOO

MESHES = [(2,), (4,), (2, 2), (2, 4), (4, 2), (8,)]


def graph(micro_batches: int, family: str = "gpt") -> LogicalGraph:
    heads = {"heads": 4} if family == "gpt" else {"heads": 4, "kv_heads": 4}
    return ZOO[family](layers=2, width=32, vocab=64, batch=16, seq=16, **heads).graph(micro_batches)


def told(strategies: Sequence[Strategy]) -> list[tuple[object, ...]]:
    return [(s.inputs, s.outputs, s.ring, s.local, s.part.work, s.part.dtype) for s in strategies]


@pytest.mark.parametrize("family", ["gpt", "llama3"])
def test_strategies_of_meshes_and_sizes_that_share_parts_are_those_of_each_alone(family: str) -> None:
    shared = OpParts()
    sets = {mesh: StrategySets(mesh, shared) for mesh in MESHES}
    for micro_batches in (1, 2, 4):
        step = graph(micro_batches, family)
        for mesh in MESHES:
            alone = StrategySets(mesh)
            for op in step.ops:
                mine, its = (sets_of.of(op, step.values).strategies for sets_of in (sets[mesh], alone))
                assert told([s._replace(part=s.part) for s in mine]) == told(its) or _same_but_labels(mine, its, step, op.id)


def _same_but_labels(mine: Sequence[Strategy], its: Sequence[Strategy], step: LogicalGraph, op_id: str) -> bool:
    """Sets are shared by ops that differ in names: each is asked about as the op that it is for."""
    (op,) = (op for op in step.ops if op.id == op_id)
    return [(relabel(s.local, op), s.part.work) for s in mine] == [(relabel(s.local, op), s.part.work) for s in its]


def test_a_strategy_does_the_work_of_its_own_part() -> None:
    step, sets = graph(2), StrategySets((2, 4))
    for op in step.ops:
        for strategy in sets.of(op, step.values).strategies:
            local = strategy.local
            assert strategy.part.work == (flop(local.op, local.types), traffic_bytes(local.op, local.types))
            assert strategy.part.dtype == compute_dtype(op, step.values)


def test_parts_that_meshes_share_have_the_price_of_each_alone() -> None:
    step, parts, parts_s = graph(2), OpParts(), PartsS()
    for mesh in MESHES:
        cluster = roomy_cluster(int(np.prod(mesh)))
        sets, costs = StrategySets(mesh, parts), LayoutCosts(cluster, mesh, parts_s=parts_s)
        for op in step.ops:
            menu = sets.of(op, step.values)
            own = [op_work_s(cluster, s.local.op, s.local.types) for s in menu.strategies]
            assert costs.ops_s(menu).tolist() == own


def test_the_two_steps_of_a_ring_have_their_own_prices_though_their_types_are_the_same() -> None:
    step = graph(1, "llama3")
    attention = next(op for op in step.ops if op.target == "regista.attention")
    menu = StrategySets((2,)).of(attention, step.values)
    around = rings(attention, step.values, menu.strategies, (2,))
    costs = LayoutCosts(roomy_cluster(2), (2,))
    costs.ops_s(menu)
    for strategy in around:
        assert strategy.ring is not None
        first, other = strategy.ring.steps
        assert costs._op_s(first) == op_work_s(costs.cluster, first.part.op, first.part.types)
        assert costs._op_s(other) == op_work_s(costs.cluster, other.part.op, other.part.types)
        assert first.part.op.args != other.part.op.args
    assert around and costs.ops_s(StrategySet(around)).min() > 0
