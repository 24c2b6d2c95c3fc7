"""The ILP against exhaustive search, and what it does with pins and prices."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import roomy_cluster

from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.ir.sbp import B, P, S, Sbp
from planner.make import PlanOptions, make_plan
from planner.search.axis_ilp import AxisProblem, Node, Use, solve_axis
from regista.zoo import ZOO

STATES: tuple[Sbp, ...] = (B, S(0), P)


def exhaustive_s(problem: AxisProblem) -> float:
    """The best objective by trying everything; boxing is paid once per (group, leaves, needs)."""
    best = float("inf")
    names = [node.id for node in problem.nodes]
    for pick in product(*(range(len(node.price_s)) for node in problem.nodes)):
        choice = dict(zip(names, pick, strict=True))
        total_s = sum(node.price_s[choice[node.id]] for node in problem.nodes)
        paid: dict[tuple[str, Sbp, Sbp], float] = {}
        for use in problem.uses:
            pair = use.leaves[choice[use.producer]], use.needs[choice[use.consumer]]
            paid[use.group, *pair] = use.price_s.get(pair, float("inf"))
        best = min(best, total_s + sum(paid.values()))
    return best


@st.composite
def problems(draw: st.DrawFn) -> AxisProblem:
    """Random DAGs of 2 to 5 nodes with up to 3 strategies, some pairs forbidden, values with several readers."""
    price = st.integers(0, 50).map(lambda n: n * 1e-4)
    nodes = tuple(Node(f"n{i}", tuple(draw(st.lists(price, min_size=1, max_size=3)))) for i in range(draw(st.integers(2, 5))))
    uses = []
    for reader in range(1, len(nodes)):
        for maker in draw(st.sets(st.integers(0, reader - 1), min_size=1, max_size=2)):
            leaves = tuple(draw(st.sampled_from(STATES)) for _ in nodes[maker].price_s)
            needs = tuple(draw(st.sampled_from(STATES)) for _ in nodes[reader].price_s)
            uses.append((maker, reader, leaves, needs))
    prices = {(a, b): 0.0 if a == b else draw(price) for a in STATES for b in STATES}
    made: dict[int, tuple[Sbp, ...]] = {}
    found = []
    for maker, reader, leaves, needs in uses:
        leaves = made.setdefault(maker, leaves)  # a value leaves its producer in one layout, whoever reads it
        found.append(Use(f"n{maker}", f"n{reader}", f"v{maker}", leaves, needs, prices))
    return AxisProblem(nodes, tuple(found))


@given(problems())
@settings(max_examples=60, deadline=None)
def test_the_ilp_is_as_good_as_trying_everything(problem: AxisProblem) -> None:
    solution = solve_axis(problem)
    assert solution.objective_s == pytest.approx(exhaustive_s(problem), abs=1e-9)
    assert solution.lower_bound_s <= solution.objective_s + 1e-12


def test_no_legal_combination_is_refused() -> None:
    use = Use("a", "b", "v", (P,), (S(0),), {})
    with pytest.raises(Unsupported, match="no legal combination"):
        solve_axis(AxisProblem((Node("a", (1.0,)), Node("b", (1.0,))), (use,)))


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


def test_one_axis_plans_carry_a_tight_bound() -> None:
    plan = make_plan(ZOO["mlp"]().graph(1), model="mlp", batch_size=32, cluster=roomy_cluster(2), options=PlanOptions())
    assert plan.search.lower_bound_s == pytest.approx(plan.search.objective_s, rel=1e-6)
