"""Attention over a long sequence that is cut: the ways are found by the search, send what theory says, and are refused where nothing divides."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from planner.cost.clusters import preset
from planner.ir.cluster import Cluster
from planner.ir.collective import sent_bytes
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing, Fragment, Plan
from planner.ir.sbp import Split
from planner.parallelism.make import PlanOptions, make_plan
from planner.parallelism.memory import SearchMemory
from planner.search import build_model
from planner.search.context import Context
from planner.search.formulation import repriced
from planner.stages import prepare
from planner.validate import validate
from zoo import ZOO

LAYERS, HEADS, KEY_HEADS, WIDTH, ROWS = 2, 32, 8, 4096, 131_072
BF16 = 2


def long_plan(devices: int, context: Context | None = None, *, heads: int = HEADS, key_heads: int = KEY_HEADS, rows: int = ROWS) -> Plan:
    """A Llama of one sample, on one axis of H100."""
    width = WIDTH // HEADS * heads
    sizes = {"layers": LAYERS, "width": width, "heads": heads, "kv_heads": key_heads, "hidden": 3 * width, "vocab": 32_000}
    source = ZOO["llama3"](**sizes, batch=1, seq=rows, dtype="bf16")
    options = PlanOptions(mesh=(devices,), context=context)
    plan = make_plan(source.graph(1), model="llama3", batch_size=1, cluster=preset(f"h100-sxm:{devices // 8}"), options=options)
    validate(plan, source)
    return plan


def sent_in_passes(plan: Plan) -> float:
    """Bytes that a device sends in the forward and the backward part, beside losses and gradients of parameters."""
    total = 0.0
    for task in plan.tasks:
        body = task.body
        if isinstance(body, Boxing) and (".fwd" in task.id or ".bwd" in task.id):
            (parts,) = plan.placements[0].mesh
            held = [plan.regst[read.regst].tensors[read.index].local_bytes(plan.placements[0]) for read in task.reads]
            total += sent_bytes(body.collective, sum(held) * (parts if isinstance(body.src[0], Split) else 1), parts)
    return total


def attended(plan: Plan) -> set[str]:
    return {op.target for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops if "attention" in op.target}


def closed_form(way: Context, devices: int, heads: int = HEADS, key_heads: int = KEY_HEADS) -> float:
    """Of all layers, and of the embedding, whose table is cut by features: an all-to-all each way."""
    queries, keys = (ROWS * WIDTH // HEADS * number * BF16 for number in (heads, key_heads))
    return LAYERS * way.sent_bytes(queries, keys, devices) + 2 * queries * (devices - 1) / devices**2


@pytest.mark.parametrize(
    ("devices", "heads", "way"),
    [
        (8, (32, 8), Context.HEADS),
        pytest.param(8, (12, 12), Context.RING, marks=pytest.mark.thorough),
        pytest.param(16, (32, 8), Context.GATHERED, marks=pytest.mark.thorough),
        pytest.param(64, (32, 8), Context.GATHERED, marks=pytest.mark.thorough),
    ],
)
def test_a_long_sequence_is_cut_by_the_search_and_sends_what_theory_says(devices: int, heads: tuple[int, int], way: Context) -> None:
    """8 heads of keys on 8 devices: an all-to-all over heads; 12 heads: none divides, and many keys go around; few keys are gathered."""
    plan = long_plan(devices, heads=heads[0], key_heads=heads[1])
    assert sent_in_passes(plan) == closed_form(way, devices, *heads)
    assert plan.search.objective_s == plan.search.lower_bound_s


@pytest.mark.thorough
def test_the_way_that_is_asked_for_is_taken_and_costs_no_less_than_the_one_found() -> None:
    found = long_plan(8)
    for way in (Context.GATHERED, Context.RING):
        asked = long_plan(8, way)
        assert sent_in_passes(asked) == closed_form(way, 8)
        assert asked.search.objective_s > found.search.objective_s
        assert asked.options["context"] == way.value and "context" not in found.options


def test_a_sequence_shorter_than_its_parts_is_refused_with_the_numbers() -> None:
    with pytest.raises(Unsupported, match=r"context gathered cuts its 4 rows on mesh 8, and no axis divides them"):
        long_plan(8, Context.GATHERED, rows=4)


def test_fewer_heads_than_parts_are_refused_with_the_numbers() -> None:
    with pytest.raises(Unsupported, match=r"context heads cuts its 4 heads on mesh 8, and no axis divides them"):
        long_plan(8, Context.HEADS, heads=4, key_heads=4, rows=16)


def test_what_travels_around_a_ring_takes_the_seconds_of_each_cluster_whoever_was_asked_before() -> None:
    """Searches of one memory share the seconds of ops by device and mesh; planted: a ring's were among them."""
    memory, mesh = SearchMemory(), (16,)
    source = ZOO["llama3"](layers=1, width=256, heads=2, kv_heads=2, hidden=64, vocab=64, batch=1, seq=ROWS, dtype="bf16")
    graph, cluster = source.graph(1), preset("h100-sxm:2")
    assert cluster.nic is not None
    slower = replace(cluster, nic=replace(cluster.nic, bandwidth_bytes_per_s=cluster.nic.bandwidth_bytes_per_s / 100))
    staged = prepare(graph, {op.id: 0 for op in graph.ops}, 1)

    def least_s(there: Cluster, known: SearchMemory) -> float:
        model = build_model(staged, mesh, there, (), 1, context=Context.RING, tools=known.tools(there, mesh))
        ops = [op.id for op in staged.graph.ops if op.target == "regista.attention"]
        return max(float(model.problem.costs[model.ops[op][0]].min()) for op in ops)

    here = [least_s(there, memory) for there in (cluster, slower)]
    assert here == [least_s(there, SearchMemory()) for there in (cluster, slower)]
    assert here[0] < here[1]
    tools = memory.tools(cluster, mesh)
    assert repriced(build_model(staged, mesh, cluster, (), 1, context=Context.RING, tools=tools), memory.tools(slower, mesh), inf) is None
