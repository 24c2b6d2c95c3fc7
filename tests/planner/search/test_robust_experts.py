"""The search under a load of experts: what it prices higher, that nothing else changes, and that it then chooses otherwise."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from mixtures import EXPERTS, EXPERTS_CUT, ROWS, load_of, mixture, plan_under
from traffic import cluster, layouts

from planner.cost import axis_boxing_s
from planner.cost.routing import ExpertLoad
from planner.ir.actors.verify import verify
from planner.ir.collective import Collective
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.files import load_plan, save_plan
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp, Split
from planner.parallelism.make import PlanOptions, make_plan
from planner.parallelism.proof.covered import covered_text
from planner.search import build_model
from planner.search.layout_costs import LayoutCosts
from planner.search.routed import exchange_times, op_times
from planner.search.strategies import StrategySets
from planner.stages import Staged, assign_stages, prepare
from planner.stages.experts import expert_ops
from regista.analysis.planned import retrace
from zoo import ZOO

ZIPF = load_of("zipf:1.2")


def staged(graph: LogicalGraph) -> Staged:
    return prepare(graph, assign_stages(graph, 1, ()), 1)


def test_work_of_experts_is_the_products_with_their_parameters_both_ways_and_what_lies_between() -> None:
    """Of two layers; parameters, gradients of these, and dispatch and combine are none of it."""
    graph = staged(ZOO["moe"](layers=4, width=32, heads=2, experts=4, hidden=64, vocab=32, batch=16, seq=4).graph(1)).graph
    found, by_id = expert_ops(graph), {op.id: op for op in graph.ops}
    for layer, module in enumerate(("h.1.mlp", "h.3.mlp")):
        own = [by_id[name] for name, work in found.ops.items() if work.layer == layer]
        assert {op.module for op in own} == {module}
        assert sorted(op.target for op in own) == sorted(
            ["aten.bmm.default"] * 6 + ["aten.relu.default", "aten.threshold_backward.default"]
        ), "two products forward, four backward"
    assert {(work.experts, work.rows) for work in found.ops.values()} == {(4, 32)}
    gradients = {op.inputs[0] for op in graph.ops if op.outputs and op.outputs[0] in graph.gradients.values()}
    assert not gradients & set(found.travelling)
    dense = staged(ZOO["gpt2"](layers=1, width=16, heads=2, vocab=32, batch=2, seq=4).graph(1)).graph
    assert not expert_ops(dense).ops


def test_exchanges_move_tokens_that_are_known_to_be_on_their_way() -> None:
    plan = plan_under("uniform", EXPERTS_CUT)
    exchanges = {task.id for task in plan.tasks if isinstance(task.body, Boxing) and task.body.collective is Collective.ALL_TO_ALL}
    assert len(exchanges) == 4 and exchanges <= {work.task for work in plan.experts}


@pytest.mark.thorough
def test_a_load_makes_cut_experts_dearer_by_the_busiest_ranks_and_changes_no_other_price() -> None:
    graph = staged(mixture().graph(1))
    even, loaded = (build_model(graph, (2, 2), cluster(4), (), 1, load=load).problem for load in (None, ZIPF))
    known, sets = expert_ops(graph.graph).ops, StrategySets((2, 2))
    by_id = {op.id: op for op in graph.graph.ops}
    for name, before, after in zip(even.names, even.costs, loaded.costs, strict=True):
        work = known.get(name)
        if work is None:
            assert np.array_equal(before, after)
            continue
        for strategy, was, now in zip(sets.of(by_id[name], graph.graph.values).strategies, before, after, strict=True):
            lies = strategy.inputs[work.operand].entries
            parts = 2 ** sum(entry == Split(0) for entry in lies)
            rows = ROWS // 2 ** sum(entry == Split(work.row_dim) for entry in lies)
            times = ZIPF.busiest(EXPERTS, EXPERTS * rows // 2, parts)
            assert now == pytest.approx(was * max(times, 1)) and (parts > 1) == (times > 1.01)


def test_all_to_alls_of_tokens_on_their_way_move_the_busiest_ranks_bytes_and_all_other_boxing_its_own() -> None:
    graph, mesh = staged(mixture().graph(1)).graph, (4,)
    times = exchange_times(graph, expert_ops(graph), mesh, ZIPF)
    even, loaded = LayoutCosts(cluster(4), mesh), LayoutCosts(cluster(4), mesh, exchanged=times)
    apart, rows, whole = (NdSbp.parse(text) for text in ("S(0)", "S(1)", "B"))
    tokens = next(type_ for type_ in times if type_.shape == (EXPERTS, 16, ROWS // 16, 64))
    busiest = ZIPF.busiest(EXPERTS, EXPERTS * ROWS // 2, 4)
    more_s, even_s = (axis_boxing_s(cluster(4), mesh, 0, Collective.ALL_TO_ALL, share * tokens.size_bytes) for share in (busiest, 1.0))
    assert busiest > 1.5 and more_s > even_s
    assert loaded.boxing_s(tokens, apart, rows) - even.boxing_s(tokens, apart, rows) == pytest.approx(more_s - even_s)
    assert loaded.boxing_s(tokens, apart, whole) == even.boxing_s(tokens, apart, whole)
    other = tokens.with_shape((EXPERTS, 16, ROWS // 16, 32))
    assert loaded.boxing_s(other, apart, rows) == even.boxing_s(other, apart, rows)


def test_under_skew_experts_are_cut_inside_and_the_plan_is_better_than_one_that_cuts_them_apart() -> None:
    """With even loads experts lie apart and tokens travel; at 1.9 times the even load it is quicker to give every device a quarter of each expert."""
    even, robust, apart = plan_under("uniform"), plan_under("zipf:1.2"), plan_under("zipf:1.2", EXPERTS_CUT)
    assert layouts(even)["h.1.mlp.w_in"] == "S(0)"
    assert (layouts(robust)["h.1.mlp.w_in"], layouts(robust)["h.1.mlp.w_out"]) == ("S(2)", "S(1)")
    assert robust.search.lower_bound_s == robust.search.objective_s < apart.search.objective_s
    assert plan_under(None).search.objective_s < even.search.objective_s < robust.search.objective_s
    said = "at quantile 0.9 of the busiest rank's load under routing zipf:1.2, top 2, dropless"
    assert said in covered_text(robust) and "quantile" not in covered_text(plan_under(None))


def test_no_factor_is_below_one_even_if_a_capacity_leaves_the_busiest_rank_less_than_the_even_load() -> None:
    """All tokens want one expert with room for the even load: the busiest rank of four has half of its places."""
    load = ExpertLoad(routing=load_of("histogram:1,0,0,0,0,0,0,0").routing, top_k=1, capacity_factor=1.0)
    assert load.busiest(8, 1024, 4) == 0.5
    graph = staged(mixture().graph(1)).graph
    known = expert_ops(graph).ops
    op = next(op for op in graph.ops if op.id in known)
    assert {op_times(known[op.id], s, (4,), load) for s in StrategySets((4,)).of(op, graph.values).strategies} == {1.0}


def test_a_plan_without_a_routing_is_the_plan_of_before_and_one_with_a_routing_is_read_back(tmp_path: object) -> None:
    plain, routed = plan_under(None), plan_under("uniform")
    assert not plain.experts and "routing" not in plain.options
    path = f"{tmp_path}/plan.json"
    save_plan(routed, path)
    assert load_plan(path) == routed and prod(routed.placements[0].mesh) == 4


def test_what_a_routed_plan_records_is_enough_to_state_its_search_anew() -> None:
    """As whatif, explain and diff do."""
    plan = plan_under("zipf:1.2")
    retraced = retrace(plan, mixture().graph(1))
    assert retraced.is_whole and retraced.is_optimal and retraced.options.load == ZIPF


def test_work_of_experts_that_a_plan_cannot_have_is_refused() -> None:
    plan = plan_under("uniform")
    first, *others = plan.experts
    for wrong, says in (
        ({"task": "nobody"}, "of task 'nobody', which it does not have"),
        ({"axes": (7,)}, "axes are of the mesh"),
        ({"experts": 1}, "every part has an expert"),
        ({"rows": 0}, "0 places per expert"),
        ({"flop": -1}, "-1 flop"),
    ):
        with pytest.raises(InvalidPlan, match=says):
            verify(replace(plan, experts=(replace(first, **wrong), *others)))
    with pytest.raises(InvalidPlan, match="do not say how tokens are routed"):
        verify(replace(plan, options={name: text for name, text in plan.options.items() if name != "routing"}))


def test_a_routing_that_does_not_fit_the_model_is_refused_before_the_search() -> None:
    def planned(name: str, load: ExpertLoad, **sizes: int) -> None:
        source = ZOO[name](vocab=32, batch=2, **sizes)
        make_plan(source.graph(1), model=name, batch_size=2, cluster=cluster(2), options=PlanOptions(mesh=(2,), load=load))

    with pytest.raises(Unsupported, match="for a model without layers of experts"):
        planned("gpt2", ZIPF, layers=1, width=16, heads=2, seq=4)
    with pytest.raises(Unsupported, match="histogram of 2 experts for a layer of 4"):
        planned("moe", load_of("histogram:1,2"), layers=2, width=16, heads=2, experts=4, hidden=16, seq=4)
    with pytest.raises(Unsupported, match="fewer tokens than experts"):
        planned("moe", load_of("uniform", top_k=4), layers=2, width=16, heads=2, experts=4, hidden=16, seq=2)
