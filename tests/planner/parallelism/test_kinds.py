"""Clusters of several kinds of node: each stage has the rates of its own devices, and cuts make the pipeline fastest."""

from __future__ import annotations

import tomllib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator
from planner.cost import AnalyticCost, transfer_s
from planner.ir.cluster import Cluster, cluster_toml, parse_cluster
from planner.ir.errors import InvalidCluster, Unsupported
from planner.ir.graph import Role
from planner.ir.plan import Plan, TaskKind
from planner.ir.text import decode, encode
from planner.parallelism.kinds import least_step_s
from planner.parallelism.make import FoundPlans, PlanOptions, search_plans
from planner.parallelism.shape import Shape
from planner.stages.uneven import fastest_cut
from regista.api import program_of

MODEL = "zoo:gpt?layers=4&width=64&heads=4&vocab=96&seq=16&batch=16"


def text_of(fast: int = 2, slow: int = 2, times: float = 3.0, extra: str = "") -> str:
    def nodes(name: str, devices: int, rate: float) -> str:
        return (
            f'[[nodes]]\nname = "{name}"\ncount = 1\ndevices_per_node = {devices}\n'
            f'device = {{ kind = "{name}", memory_GB = 8.0, compute_GFLOPs = {rate}, memory_bandwidth_GBps = {rate / 4}, act_overhead_us = 1.0 }}\n'
            f"links = {{ node = {{ latency_us = 1.0, bandwidth_GBps = 50.0 }} }}\n"
        )

    between = '[[between]]\nkinds = ["fast", "slow"]\nlatency_us = 4.0\nbandwidth_GBps = 5.0\n'
    return 'schema = 1\nname = "two-kinds"\n' + nodes("fast", fast, 120.0) + nodes("slow", slow, 120.0 / times) + extra + between


def cluster_of(text: str) -> Cluster:
    return parse_cluster(tomllib.loads(text), "c.toml", "c")


def planned(cluster: Cluster, **options: object) -> FoundPlans:
    program = program_of(MODEL)
    return search_plans(
        program.graph,
        model=MODEL,
        batch_size=program.batch_size,
        cluster=cluster,
        options=PlanOptions(**options),  # type: ignore[arg-type]
    )


def blocks(plan: Plan) -> list[int]:
    """Numbered blocks per stage, by the forward tasks' ops."""
    names: dict[str, set[str]] = {}
    for task in plan.tasks:
        if task.kind is TaskKind.FORWARD:
            names.setdefault(task.placement, set()).update(
                op.module.split(".")[1]
                for op in task.body.ops
                if op.module.startswith("h.")  # type: ignore[union-attr]
            )
    return [len(names[placement.id]) for placement in plan.placements]


def simulated_s(plan: Plan) -> float:
    return max(act.end_s for act in simulator.simulate(plan, AnalyticCost(plan.cluster), steps=1).acts)


def test_a_cluster_of_two_kinds_is_what_its_file_says_and_survives_a_plan():
    cluster = cluster_of(text_of(fast=2, slow=4))
    assert cluster.num_devices == 6
    assert [cluster.node_of(rank) for rank in range(6)] == [0, 0, 1, 1, 1, 1]
    assert [cluster.device_of(rank).kind for rank in range(6)] == ["fast"] * 2 + ["slow"] * 4
    assert cluster_of(cluster_toml(cluster)) == cluster
    assert decode(Cluster, encode(cluster)) == cluster


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.split("[[between]]")[0], "no link connects the nodes fast with the nodes slow"),
        (lambda text: text.replace('["fast", "slow"]', '["fast", "quick"]'), "between two different kinds of fast, slow"),
        (lambda text: text.replace('name = "slow"', 'name = "fast"'), "give each kind a name"),
        (lambda text: text.split('[[nodes]]\nname = "slow"')[0], "1 kind of node"),
        (lambda text: text.replace("bandwidth_GBps = 5.0", "bandwidth_GBps = 0.0"), "bandwidth_GBps = 0; >= 0 and > 0"),
        (lambda text: text.replace("count = 1", "count = 1.5"), r"number 1: \[topology\] nodes = 1.5; a whole number"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_with_what_is_wrong(change, says: str):  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidCluster, match=says):
        cluster_of(change(text_of()))


def test_sites_in_a_row_are_reached_through_each_other():
    third = (
        '[[nodes]]\nname = "far"\ncount = 1\ndevices_per_node = 2\n'
        'device = { kind = "far", memory_GB = 8.0, compute_GFLOPs = 10.0, memory_bandwidth_GBps = 5.0 }\n'
        "links = { node = { latency_us = 1.0, bandwidth_GBps = 50.0 } }\n"
        '[[between]]\nkinds = ["slow", "far"]\nlatency_us = 100.0\nbandwidth_GBps = 1.0\n'
    )
    link = cluster_of(text_of(extra=third)).pair_link("fast", "far")
    assert (link.latency_s, link.bandwidth_bytes_per_s) == (pytest.approx(104e-6), 1e9)


def test_all_senders_share_the_link_between_two_kinds():
    cluster = cluster_of(text_of())
    assert transfer_s(cluster, (0, 1), (2, 3), 10**6) == pytest.approx(4e-6 + 2 * 10**6 / 5e9)
    assert transfer_s(cluster, (0,), (2,), 10**6) == pytest.approx(4e-6 + 10**6 / 5e9)


def test_a_stage_of_two_kinds_is_refused_with_the_stages_that_are_not():
    with pytest.raises(Unsupported, match=r"1 stages of 6 devices .* 2 of fast, 4 of slow: .* among 3, 6"):
        planned(cluster_of(text_of(fast=2, slow=4)), stages=1)


@given(st.data())
def test_the_fastest_cut_is_the_best_of_all_cuts(data):  # type: ignore[no-untyped-def]
    stages = data.draw(st.integers(1, 4))
    size = data.draw(st.integers(stages, 8))
    m = data.draw(st.integers(1, 6))
    seconds = np.array(
        data.draw(st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=stages, max_size=stages)), float
    )

    crossing = np.array(
        data.draw(st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=stages - 1, max_size=stages - 1)), float
    )
    crossing = crossing.reshape(stages - 1, size)

    def step_s(cut: tuple[int, ...]) -> float:
        borders = [0, *cut, size]
        sent = [0.0, *(float(crossing[i, place]) for i, place in enumerate(cut)), 0.0]
        each = [sent[i] + sent[i + 1] + seconds[i, a:b].sum() for i, (a, b) in enumerate(zip(borders[:-1], borders[1:], strict=True))]
        return float(sum(each) + (m - 1) * max(each))

    best = min(step_s(cut) for cut in combinations(range(1, size), stages - 1))
    assert step_s(tuple(fastest_cut(seconds, m, crossing))) == pytest.approx(best)


def test_the_slow_kind_gets_fewer_blocks_and_the_simulated_step_is_faster_than_the_even_cut():
    cluster = cluster_of(text_of())
    balanced = planned(cluster, stages=2, micro_batches=8, mesh=(2,)).plan
    even = planned(cluster, stages=2, micro_batches=8, mesh=(2,), cuts=("h.2",)).plan
    assert blocks(even) == [2, 2]
    assert blocks(balanced) == [3, 1]
    assert simulated_s(even) / simulated_s(balanced) > 1.3
    assert balanced.search.objective_s < even.search.objective_s


@pytest.mark.thorough
def test_an_act_takes_the_time_of_its_own_device():
    cluster = cluster_of(text_of(times=4.0))
    plan = planned(cluster, stages=2, micro_batches=8, mesh=(2,), cuts=("h.2",)).plan
    cost = AnalyticCost(cluster)
    for stage, part in enumerate(cluster.parts):
        alone = AnalyticCost(part)
        for task in plan.tasks:
            if task.kind is TaskKind.FORWARD and plan.ranks_of(task)[0] == 2 * stage:
                assert cost.act_s(plan, task, 2 * stage) == alone.act_s(plan, task, 2 * stage)


@pytest.mark.thorough
def test_the_bound_from_ops_is_below_every_plan_and_the_search_finds_the_best_shape():
    cluster = cluster_of(text_of())
    found = planned(cluster, stages=None, micro_batches=8).plan
    program = program_of(MODEL)
    graph = program.graph(8)
    assert found.search.lower_bound_s <= found.search.objective_s
    for shape in (Shape(2, 8, (2,)), Shape(4, 8, (1,))):
        fixed = planned(cluster, stages=shape.stages, micro_batches=8, mesh=shape.mesh).plan
        assert least_step_s(graph, cluster, shape) <= fixed.search.objective_s
        assert found.search.objective_s <= fixed.search.objective_s * 1.01
    assert any(op.role is Role.BACKWARD for op in graph.ops)
