"""'regista explain': prices of alternatives are min-marginals, memory adds up to the planned bytes, and what cannot be told is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import TINY, Command, commands, files_of

import regista.api as api
from planner.frontend import Program
from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import Cluster
from planner.ir.errors import Mismatch
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from planner.search.methods.exhaustive import search_exhaustively
from planner.solve import Edge, Problem, solve_exactly
from regista.analysis.budget import Use, holdings, memory, spending
from regista.analysis.explain import Wanted, explain
from regista.analysis.planned import options_of, retrace
from regista.clusters import resolve_cluster

GPT = "zoo:gpt?layers=1&width=16&heads=2&vocab=32&batch=4&seq=4"
DGX = resolve_cluster("dgx-a100:1")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """Plans of several shapes and methods, made once."""
    return {
        "one axis": api.plan(TINY, "local:2"),
        "two axes": api.plan(GPT, slow(DGX), mesh=(2, 4)),
        "pipeline": api.plan(TINY, "local:2", stages=2, mesh=(1,), micro_batches=4),
        "greedy": api.plan(GPT, slow(DGX), mesh=(8,), method="greedy"),
    }


def slow(cluster: Cluster) -> Cluster:
    """A device so slow that tiny tensors are worth splitting."""
    device = replace(cluster.device, rate_flop_per_s=1e7, rates=(), memory_bandwidth_bytes_per_s=1e8, kernels="")
    return replace(cluster, device=device)


SHAPES = ("one axis", "two axes", "pipeline", "greedy")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_tells_the_choice_it_was_made_from(plans: dict[str, Plan], shape: str) -> None:
    """Everything but the choice is thrown away by lowering; the Plan shows enough to find one of the same cost."""
    retraced = retrace(plans[shape])
    assert retraced.is_whole
    assert retraced.model.step_s(retraced.choice) == pytest.approx(plans[shape].search.objective_s, rel=1e-9)
    names = {entry.value: entry.name for entry in retraced.model.staged.graph.inputs}
    chosen = {names[value]: str(layouts[retraced.choice[node]]) for value, (node, layouts) in retraced.model.states.items()}
    layouts_of_plan = {s.name: str(plans[shape].regst[s.regst].tensors[s.index].sbp) for s in plans[shape].states}
    assert chosen == {name: layouts_of_plan[name] for name in chosen}


@pytest.mark.parametrize("shape", SHAPES)
def test_options_read_from_a_plan_plan_it_again(plans: dict[str, Plan], shape: str) -> None:
    plan = plans[shape]
    options = options_of(plan)
    again = api.plan(
        plan.model,
        plan.cluster,
        stages=options.stages,
        mesh=options.mesh,
        micro_batches=options.micro_batches,
        pins=options.pins,
        cuts=options.cuts,
        quotas=options.quotas,
        bucket_bytes=options.bucket_bytes,
        method=options.method.value,
    )
    assert again.plan_id == plan.plan_id


@pytest.mark.representatives("one axis")
@pytest.mark.parametrize("shape", ["one axis", "two axes", "pipeline"])
def test_of_an_optimal_plan_the_chosen_layout_costs_nothing_more_and_no_other_costs_less(plans: dict[str, Plan], shape: str) -> None:
    explanation = explain(plans[shape], Wanted(most=4))
    assert retrace(plans[shape]).is_optimal
    assert len(explanation.decisions) == 4
    for decision in explanation.decisions:
        chosen = [a for a in decision.alternatives if a.chosen]
        assert [a.layout for a in chosen] == [decision.chosen]
        assert chosen[0].difference_s == 0.0
        assert all(a.difference_s is not None and a.difference_s >= 0.0 for a in decision.alternatives)
        assert len({a.layout for a in decision.alternatives}) == len(decision.alternatives)


def test_the_price_of_an_alternative_is_the_optimum_with_it_fixed(plans: dict[str, Plan]) -> None:
    plan = plans["one axis"]
    retraced = retrace(plan)
    explanation = explain(plan, Wanted(op="blocks.0.up.weight"))
    (decision,) = explanation.decisions
    node, layouts = next(retraced.model.states[i.value] for i in retraced.model.staged.graph.inputs if i.name == decision.name)
    assert len(decision.alternatives) == len(layouts) == 3
    assert any(a.difference_s for a in decision.alternatives)
    for alternative in decision.alternatives:
        place = [str(layout) for layout in layouts].index(alternative.layout)
        fixed = solve_exactly(pinned(retraced.model.problem, node, place))
        assert alternative.objective_s == pytest.approx(fixed.objective, rel=1e-9)
        assert alternative.difference_s == pytest.approx(fixed.objective - plan.search.objective_s, abs=1e-15)


def pinned(problem: Problem, node: int, strategy: int) -> Problem:
    """The node has but one strategy, said in another way than the one under test."""
    costs = [c if v != node else c[strategy : strategy + 1] for v, c in enumerate(problem.costs)]
    edges = []
    for edge in problem.edges:
        matrix = edge.matrix
        if edge.u == node:
            matrix = matrix[strategy : strategy + 1]
        if edge.v == node:
            matrix = matrix[:, strategy : strategy + 1]
        edges.append(replace(edge, matrix=matrix))
    return replace(problem, costs=tuple(costs), edges=tuple(edges))


def test_restricting_a_problem_keeps_the_optimum_among_what_is_left() -> None:
    rng = np.random.default_rng(0)
    problem = Problem(
        ("a", "b", "c"), tuple(rng.random(3) for _ in range(3)), (Edge(0, 1, rng.random((3, 3))), Edge(1, 2, rng.random((3, 3))))
    )
    for strategy in range(3):
        kept = problem.allowing({1: np.array([strategy])})
        best = search_exhaustively(kept)
        assert best.choice[1] == strategy
        assert best.objective == pytest.approx(search_exhaustively(pinned(problem, 1, strategy)).objective)


def test_of_a_plan_that_is_not_optimal_differences_are_from_the_optimum(plans: dict[str, Plan]) -> None:
    plan = plans["greedy"]
    explanation = explain(plan, Wanted(most=2))
    assert explanation.best_s is not None
    assert explanation.best_s < plan.search.objective_s
    assert "the planned ones cost" in explanation.note
    assert all(a.difference_s is not None and a.difference_s >= 0.0 for d in explanation.decisions for a in d.alternatives)
    assert all(min(a.difference_s or 0.0 for a in d.alternatives) == 0.0 for d in explanation.decisions)


def test_a_module_pattern_prices_its_states_and_forward_ops(plans: dict[str, Plan]) -> None:
    explanation = explain(plans["one axis"], Wanted(module="blocks.*", most=100))
    names = {decision.name for decision in explanation.decisions}
    assert {"blocks.0.up.weight", "blocks.1.down.bias"} <= names
    ops = [decision for decision in explanation.decisions if decision.what.startswith("aten.")]
    assert ops
    assert all(decision.module.startswith("blocks.") for decision in explanation.decisions)
    assert all("->" in decision.chosen for decision in ops)
    assert explanation.left_out == 0
    assert explain(plans["one axis"], Wanted(module="blocks.*", most=3)).left_out == len(explanation.decisions) - 3


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_by_use_adds_up_to_the_planned_bytes(plans: dict[str, Plan], shape: str) -> None:
    plan = plans[shape]
    planned = device_bytes(plan)
    for place, uses in memory(plan).items():
        assert {planned[rank] for rank in plan.placement[place].ranks} == {sum(uses.values())}
    assert holdings(plan)[0].total_bytes == max(planned.values())
    assert all(0 < holding.live_bytes <= holding.total_bytes for holding in holdings(plan))
    assert sum(uses[Use.PARAMETERS] for uses in memory(plan).values()) > 0


def test_the_seconds_of_a_link_are_those_of_its_tasks(plans: dict[str, Plan]) -> None:
    plan = plans["two axes"]
    spent = spending(plan)
    communicating = {task.id for task in plan.tasks if task.kind.is_communication}
    assert {s.task for s in spent if s.moves} == communicating
    assert {s.axis for s in spent if s.moves} <= {0, 1}
    assert all(s.link == ("-" if s.what == "local" else "node") for s in spent if s.moves)
    assert any(s.link == "node" for s in spent)
    assert [s.time_s for s in spent] == sorted((s.time_s for s in spent), reverse=True)


def in_python() -> Program:
    torch.manual_seed(0)
    return Program(torch.nn.Linear(4, 4), (torch.randn(4, 4), torch.randn(4, 4)), loss=torch.nn.functional.mse_loss, optimizer="sgd")


def test_of_a_program_of_python_only_the_plan_is_explained_and_that_is_said(tmp_path: Path, command: Command) -> None:
    program = in_python()
    plan = api.plan(program, "local:2")
    explanation = explain(plan, Wanted())
    assert explanation.decisions == ()
    assert "which no file holds" in explanation.note
    assert explain(plan, Wanted(), program.graph(1)).decisions
    save_plan(plan, str(tmp_path / "p.json"))
    assert "note: what other layouts would cost cannot be worked out" in command("explain", tmp_path / "p.json").out
    refused = command("explain", tmp_path / "p.json", "--op", "weight")
    assert (refused.code, refused.out) == (2, "")
    assert "which no file holds" in refused.err


def test_another_program_under_the_same_name_is_not_explained(plans: dict[str, Plan]) -> None:
    with pytest.raises(Mismatch, match="the ops, the optimizer's numbers or torch's version have changed"):
        retrace(plans["one axis"], api.program_of(GPT).graph(1))


def test_json_holds_what_the_tables_show(command: Command, tmp_path: Path) -> None:
    assert command("plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json").code == 0
    document = command("explain", tmp_path / "p.json", "--top", "2", "--json").json
    assert document["gap"] == 0.0
    assert [len(d["alternatives"]) > 1 for d in document["decisions"]] == [True, True]
    assert set(document["memory"]["s0"]) == {use.value for use in Use} | {"total", "live", "device", "binds"}
    assert document["memory"]["s0"]["total"] == document["planned_bytes"]["0"]
    shown = command("explain", tmp_path / "p.json", "--top", "2").out
    assert document["decisions"][0]["name"] in shown
    assert "(chosen)" in shown
    assert "memory per device" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--op", "nothing*"], r"op pattern 'nothing\*' matches no op and no state; ops are like .* states like blocks"),
        (["--module", "nothing"], "module pattern 'nothing' matches nothing; modules are like blocks"),
        (["--op", "a", "--module", "b"], "not allowed with"),
        (["--top", "0"], "at least 1 is needed"),
        (["--seconds", "0"], "a finite number above 0"),
    ],
)
def test_a_bad_pattern_is_refused_with_what_there_is(command: Command, tmp_path: Path, arguments: list[str], says: str) -> None:
    assert command("plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json").code == 0
    before = files_of(tmp_path)
    ran = command("explain", tmp_path / "p.json", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert re.search(says, ran.err), ran.err
    assert files_of(tmp_path) == before


def test_a_plan_that_recomputes_tells_its_choice_too() -> None:
    graph = api.program_of(GPT).graph(1)
    options = PlanOptions(mesh=(8,), recompute=True)
    plan = make_plan(graph, model=GPT, batch_size=4, cluster=slow(DGX), options=options)
    assert options_of(plan).recompute is True
    assert retrace(plan).is_optimal


@pytest.mark.thorough
def test_a_plan_whose_mesh_was_searched_tells_its_choice_too() -> None:
    plan = api.plan(GPT, slow(DGX), mesh=None)
    retraced = retrace(plan)
    assert retraced.is_whole
    assert retraced.options.mesh == plan.placements[0].mesh
    explanation = explain(plan, Wanted(most=1))
    assert explanation.decisions[0].alternatives[0].difference_s == 0.0
