"""The search methods against exhaustive search and against each other, and what they do with pins and prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from choices import problems
from hypothesis import given, settings
from matrix import roomy_cluster
from torch import nn
from torch.nn.functional import cross_entropy

from planner.frontend import Program
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from planner.search import Method, build_model, search
from planner.search.methods.exhaustive import search_exhaustively
from planner.solve import Edge, Problem, solve_exactly
from planner.solve.bounds.message_passing import Dual
from planner.solve.ilp import solve_ilp
from planner.solve.reduce.elimination import Elimination, eliminate
from planner.stages import assign_stages, prepare
from tests.tiers import examples
from zoo import ZOO


def optimum(problem: Problem) -> float:
    try:
        return search_exhaustively(problem).objective
    except Unsupported:
        return float("inf")


@given(problems())
@settings(max_examples=examples(150))
def test_exact_is_as_good_as_trying_everything(problem: Problem) -> None:
    best = optimum(problem)
    if best == float("inf"):
        with pytest.raises(Unsupported, match="no legal combination"):
            solve_exactly(problem)
    else:
        solution = solve_exactly(problem)
        assert solution.objective == pytest.approx(best, rel=1e-9, abs=1e-15)
        assert solution.gap == 0.0


@given(problems())
@settings(max_examples=examples(60))
def test_the_ilp_is_as_good_as_trying_everything(problem: Problem) -> None:
    choice, objective, bound = solve_ilp(problem)
    best = optimum(problem)
    assert objective == pytest.approx(best, abs=1e-9)
    assert bound <= objective
    assert (choice is None) == (best == float("inf"))


@given(problems())
@settings(max_examples=examples(100))
def test_elimination_and_pruning_keep_the_optimum(problem: Problem) -> None:
    choice = eliminate(problem)
    assert choice is not None
    assert problem.objective(choice) == pytest.approx(optimum(problem), rel=1e-12)
    work = Elimination(problem)
    work.prune()
    work.run(neighbours=2)
    work.prune()
    work.run()
    assert problem.objective(work.expand()) == pytest.approx(optimum(problem), rel=1e-12)


@given(problems())
@settings(max_examples=examples(100))
def test_message_passing_gives_a_bound_that_never_falls_and_drops_nothing_better(problem: Problem) -> None:
    best = optimum(problem)
    dual = Dual(problem)
    last = -np.inf
    for _ in range(4):
        bound = dual.sweep(3, np.inf)
        assert bound >= last - 1e-12
        assert bound <= best + 1e-9
        last = bound
    if best < 1e3:
        dual.sweep(3, best + 1e-6)  # every optimal choice is better than this
        cheapest = search_exhaustively(problem).choice
        assert all(s in alive for s, alive in zip(cheapest, dual.alive_strategies(), strict=True))


def test_a_plain_sum_of_the_best_parts_is_not_taken_for_a_choice() -> None:
    """Frustrated triangle: each edge alone costs 0, all three cannot; the answer is 1 and proven."""
    unequal = np.array([[1.0, 0.0], [0.0, 1.0]])
    problem = Problem(("a", "b", "c"), (np.zeros(2),) * 3, (Edge(0, 1, unequal), Edge(1, 2, unequal), Edge(0, 2, unequal)))
    assert solve_exactly(problem).objective == 1.0
    assert solve_exactly(problem).gap == 0.0


def convolution() -> Program:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return Program(nn.Sequential(*layers), (torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64)), cross_entropy, name="convolution")


SMALL: Mapping[str, Callable[[], Program]] = {
    "mlp": lambda: ZOO["mlp"](depth=1),
    "convnet": ZOO["convnet"],
    "convolution": convolution,
}


@pytest.mark.representatives("mlp-mesh0", "mlp-mesh1")
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param("mlp", (2,), id="mlp-mesh0"),
        pytest.param("mlp", (2, 2), id="mlp-mesh1"),
        pytest.param("convnet", (2,), id="convnet-mesh0"),
        pytest.param("convolution", (2, 2), id="convolution-mesh1"),  # a proof for the whole convnet takes 40 s
    ],
)
def test_exact_equals_o3_and_no_other_method_is_better(name: str, mesh: tuple[int, ...]) -> None:
    program = SMALL[name]()
    graph = program.graph(1)
    ranks = int(np.prod(mesh))
    model = build_model(prepare(graph, assign_stages(graph, 1, ()), 1), mesh, roomy_cluster(ranks), (), 1)
    exact = search(model, Method.EXACT)
    assert exact.gap == 0.0
    for method in (Method.O3, Method.O2, Method.GREEDY) if len(mesh) == 1 else (Method.GREEDY,):
        other = search(model, method)
        assert other.objective >= exact.objective * (1 - 1e-9)
        if method is Method.O3:
            assert other.objective == pytest.approx(exact.objective, rel=1e-9)


def test_a_graph_too_large_to_enumerate_is_refused() -> None:
    problem = Problem(tuple(map(str, range(40))), (np.zeros(3),) * 40, ())
    with pytest.raises(Unsupported, match="too many to enumerate"):
        search_exhaustively(problem)


def test_no_legal_combination_is_refused() -> None:
    problem = Problem(("a", "b"), (np.zeros(1), np.zeros(1)), (Edge(0, 1, np.array([[np.inf]])),))
    with pytest.raises(Unsupported, match="no legal combination"):
        solve_exactly(problem)


def layouts(plan: Plan) -> dict[str, str]:
    return {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states}


def test_a_column_split_is_followed_by_a_row_split() -> None:
    """With the first weight of a pair cut by output features, the second is cut by input features: one all-reduce each way (Megatron-LM)."""
    program = ZOO["mlp"](batch=32, width=64, hidden=128, depth=1)
    options = PlanOptions(pins=("blocks.0.up.weight=S(0)", "input.0=B", "out:blocks.0=B"))
    plan = make_plan(program.graph(1), model="mlp", batch_size=32, cluster=roomy_cluster(2), options=options)
    assert layouts(plan)["blocks.0.down.weight"] == "S(1)"
    assert layouts(plan)["blocks.0.up.bias"] == "S(0)"


def test_the_same_input_gives_the_same_plan() -> None:
    ids = {
        make_plan(ZOO["mlp"]().graph(1), model="mlp", batch_size=32, cluster=roomy_cluster(2), options=PlanOptions()).plan_id
        for _ in range(2)
    }
    assert len(ids) == 1


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_plans_carry_a_proof(mesh: tuple[int, ...]) -> None:
    plan = make_plan(ZOO["mlp"]().graph(1), model="mlp", batch_size=32, cluster=roomy_cluster(4), options=PlanOptions(mesh=mesh))
    assert plan.search.lower_bound_s == plan.search.objective_s > 0
