"""Exact search finds the optimum of every model of the zoo: two other ways to it agree, no quicker method beats it, and it repeats itself."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import cache
from math import prod

import numpy as np
import pytest

from experiments.optimality import CUT, cut_model, small_cluster
from planner.parallelism.make import PlanOptions, make_plan
from planner.search import Method, search
from planner.search.methods.exhaustive import search_exhaustively
from planner.search.model import SearchModel
from planner.solve import Edge, Problem, Solution
from planner.solve.ilp import solve_ilp
from planner.solve.problem import Ints
from zoo import ZOO

TWO_AXES = ("dlrm", "wide_deep", "mlp", "alexnet", "vgg19")


@cache
def problem_of(model: str, mesh: tuple[int, ...]) -> SearchModel:
    return cut_model(model, mesh)[0]


@cache
def exact(model: str, mesh: tuple[int, ...]) -> Solution:
    return search(problem_of(model, mesh), Method.EXACT)


def test_every_model_of_the_zoo_is_cut() -> None:
    assert set(CUT) == set(ZOO)


CASES = [(model, (2,)) for model in CUT] + [(model, (2, 2)) for model in TWO_AXES]


@pytest.mark.representatives("mlp-mesh2", "gpt-mesh8")
@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_exact_is_proven_and_equals_the_ilp_over_cones(model: str, mesh: tuple[int, ...]) -> None:
    optimum, other = exact(model, mesh), search(problem_of(model, mesh), Method.O3)
    assert optimum.gap == 0.0
    assert other.objective == pytest.approx(optimum.objective, rel=1e-9)
    assert problem_of(model, mesh).problem.objective(optimum.choice) == optimum.objective


@pytest.mark.representatives("mlp")
@pytest.mark.parametrize("model", ["dlrm", "wide_deep", "mlp", "alexnet", "vgg19", "unet"])
def test_exact_equals_the_ilp_of_the_whole_problem(model: str) -> None:
    """The oracle that shares nothing with exact but the problem: no node is eliminated and no strategy dropped before."""
    _, objective, bound = solve_ilp(problem_of(model, (2,)).problem)
    assert exact(model, (2,)).objective == pytest.approx(objective, rel=1e-9)
    assert bound == pytest.approx(objective, rel=1e-6)


@pytest.mark.representatives("mlp", "gpt")
@pytest.mark.parametrize("model", CUT)
def test_greedy_and_o2_are_never_better_than_exact(model: str) -> None:
    best = exact(model, (2,)).objective
    for method in (Method.GREEDY, Method.O2):
        assert search(problem_of(model, (2,)), method).objective >= best * (1 - 1e-9)


def window(problem: Problem, choice: Ints, rng: random.Random) -> tuple[Problem, list[int]]:
    """Some connected nodes, up to 100000 choices of them, with all others held at ``choice``."""
    around: dict[int, set[int]] = {v: set() for v in range(len(problem.costs))}
    for edge in problem.edges:
        around[edge.u].add(edge.v)
        around[edge.v].add(edge.u)
    members = [rng.randrange(len(problem.costs))]
    while border := sorted({n for v in members for n in around[v]} - set(members)):
        node = rng.choice(border)
        if prod(len(problem.costs[v]) for v in (*members, node)) > 100_000:
            break
        members.append(node)
    at = {v: i for i, v in enumerate(members)}
    costs = [problem.costs[v].copy() for v in members]
    edges = []
    for edge in problem.edges:
        if edge.u in at and edge.v in at:
            edges.append(Edge(at[edge.u], at[edge.v], edge.matrix))
        elif edge.u in at:
            costs[at[edge.u]] += edge.matrix[:, choice[edge.v]]
        elif edge.v in at:
            costs[at[edge.v]] += edge.matrix[choice[edge.u]]
    return Problem(tuple(problem.names[v] for v in members), tuple(costs), tuple(edges)), members


@pytest.mark.representatives("mlp-mesh0")
@pytest.mark.parametrize(("model", "mesh"), [("mlp", (2,)), ("gpt", (2,)), ("convnet", (2,)), ("mlp", (2, 2)), ("vgg19", (2, 2))])
def test_no_choice_of_a_few_neighbours_improves_the_exact_one(model: str, mesh: tuple[int, ...]) -> None:
    """Whole graphs have 10^28 choices and more, so 20 neighbourhoods of each are enumerated."""
    problem, choice = problem_of(model, mesh).problem, exact(model, mesh).choice
    rng = random.Random(0)
    for _ in range(20):
        part, members = window(problem, choice, rng)
        held = part.objective(np.array([choice[v] for v in members]))
        assert search_exhaustively(part).objective == pytest.approx(held, rel=1e-9)


def plan_id(model: str) -> str:
    program = ZOO[model](**CUT[model])
    plan = make_plan(
        program.graph(1), model=model, batch_size=program.batch_size, cluster=small_cluster(4), options=PlanOptions(mesh=(2, 2))
    )
    return plan.plan_id


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_the_same_input_gives_the_same_plan_here_and_in_another_process(model: str) -> None:
    """Another process hashes strings differently: what depends on the order of a set would show."""
    script = f"from tests.planner.search.test_optimality import plan_id; print(plan_id({model!r}))"
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True, timeout=120)
    assert plan_id(model) == plan_id(model) == there.stdout.split()[-1]
