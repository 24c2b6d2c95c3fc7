"""One core for both kinds of problem: few times and thousands of times, interrupts, fused choices, repeated layers, and the ILP against PuLP's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir.errors import OutOfMemory, Unsupported
from planner.solve.bounds.local_search import _change, _components, fuse_choices
from planner.solve.bounds.message_passing import Dual
from planner.solve.highs import HighsIlp
from planner.solve.ilp import solve_ilp
from planner.solve.limited import memory
from planner.solve.limited.memory import least_demand, solve_within
from planner.solve.problem import Contradiction, Demand, Edge, Problem, Progress
from planner.solve.reduce.contract import reduce_in_place, reduce_problem
from planner.solve.reduce.elimination import Elimination
from planner.solve.time_limit import TimeLimit
from tests.planner.solve.small import best_by_trying, random_problem
from tests.tiers import examples


def layered(layers: int, times: int, limit: float) -> Problem:
    """Per layer two joined nodes, fast and large (0 s, 2) or slow and small (1 s, 1); a third node, with nothing to choose, holds the layers apart."""
    costs, edges, demands = [], [], []
    same = np.array([[0.0, 5.0], [5.0, 0.0]])
    for i in range(layers):
        costs += [np.array([0.0, 1.0]), np.array([0.0, 0.0]), np.array([0.5])]
        edges += [Edge(3 * i, 3 * i + 1, same), Edge(3 * i + 1, 3 * i + 2, np.zeros((2, 1)))]
        edges += [Edge(3 * i + 2, 3 * i + 3, np.zeros((1, 2)))] if i + 1 < layers else []
        demands += [Demand(3 * i + n, t, t + 1, np.array([2.0, 1.0])) for t in range(times) for n in (0, 1)]
    return Problem(tuple(f"n{v}" for v in range(3 * layers)), tuple(costs), tuple(edges), tuple(demands), limit)


@given(st.integers(0, 100_000), st.sampled_from([0.0, 0.2, 0.6, 1.0]), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_within_any_limit_the_best_choice_is_found_and_proven(seed: int, limit: float, many: bool) -> None:
    """The same answer whether times are few enough to begin with exact solutions, or not."""
    problem = random_problem(seed, nodes=5, limit=limit, whole=seed % 2 == 0)
    best = best_by_trying(problem)
    few_times = 0 if many and problem.demands else 64
    if best == np.inf:
        with pytest.raises((Unsupported, OutOfMemory)):
            solve_within(problem, seconds=600, few_times=few_times)
        return
    solution = solve_within(problem, seconds=600, few_times=few_times)
    assert not (few_times == 0 and solution.proof.startswith("exact without the limit"))
    assert problem.feasible(solution.choice)
    assert solution.objective == problem.objective(solution.choice) == pytest.approx(best)
    assert solution.lower_bound == pytest.approx(best)


@given(st.integers(0, 100_000), st.sampled_from([0.1, 0.4, 2.0]))
@settings(max_examples=examples(50), deadline=None)
def test_the_ilp_in_arrays_has_the_optimum_of_the_one_in_pulp(seed: int, limit: float) -> None:
    try:
        problem = reduce_problem(random_problem(seed, nodes=6, limit=limit, forbidden=0.05), dominance=False, eliminate=False).problem
    except (Contradiction, OutOfMemory):
        return
    choice, objective, _ = solve_ilp(problem)
    outcome = HighsIlp(problem).solve(TimeLimit(20))
    assert (outcome.choice is None) == (choice is None)
    if outcome.choice is not None:
        assert problem.feasible(outcome.choice)
        assert problem.objective(outcome.choice) == pytest.approx(objective)
        assert outcome.bound == pytest.approx(objective)


@given(st.integers(0, 100_000))
@settings(max_examples=examples(80), deadline=None)
def test_a_fused_choice_fits_and_is_no_dearer_than_the_one_that_fits(seed: int) -> None:
    problem = random_problem(seed, nodes=8, limit=0.5, functional=0.0)
    rng = np.random.default_rng(seed)
    first, second = (np.array([rng.integers(c.size) for c in problem.costs]) for _ in range(2))
    if not problem.feasible(second) or not np.isfinite(problem.objective(second)):
        return
    fused = fuse_choices(Dual(problem), first, second)
    assert problem.feasible(fused)
    assert problem.objective(fused) <= problem.objective(second) + 1e-9


def test_each_component_in_which_two_choices_differ_changes_the_objective_by_itself() -> None:
    problem = layered(10, 1, 30.0)
    rng = np.random.default_rng(0)
    problem = replace(problem, edges=tuple(replace(edge, matrix=rng.random(edge.matrix.shape)) for edge in problem.edges))
    base, other = np.zeros(30, dtype=np.int64), np.tile([1, 1, 0], 10)
    base[[6, 9]] = 1
    flat = Dual(problem).flat
    members, starts = _components(base, other, flat)
    changes = []
    for begin, end in itertools.pairwise(starts):
        mixed = base.copy()
        mixed[members[begin:end]] = other[members[begin:end]]
        changes.append(problem.objective(mixed) - problem.objective(base))
        assert _change(members[begin:end], base, other, flat) == pytest.approx(changes[-1])
    assert len(changes) == 10
    assert problem.objective(base) + sum(changes) == pytest.approx(problem.objective(other))


def test_fusing_makes_as_many_layers_fast_as_the_memory_holds() -> None:
    """10 layers, 4 each if fast and 2 if slow: 30 holds 5 fast ones."""
    problem = layered(10, 1, 30.0)
    fast, slow = np.zeros(30, dtype=np.int64), np.tile([1, 1, 0], 10)
    fused = fuse_choices(Dual(problem), fast, slow)
    assert problem.objective(fused) == best_of_layers(10, 5)
    assert problem.peak(fused) == 30.0


def best_of_layers(layers: int, fast: int) -> float:
    return 0.5 * layers + (layers - fast)


@pytest.mark.parametrize("times", [1, 100])
def test_an_interrupt_before_the_ilp_finds_anything_leaves_a_choice(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(HighsIlp, "solve", interrupted)
    monkeypatch.setattr(memory.MultiplierAscent, "step", interrupted)
    rng = np.random.default_rng(0)
    problem = layered(6, times, 17.0)
    held = tuple(
        Demand(d.node, d.start, d.stop, d.amount + rng.integers(0, 2, 2)) for d in problem.demands
    )  # so that no time is like another
    problem = Problem(problem.names, problem.costs, problem.edges, held, 24.0)
    solution = solve_within(problem, seconds=600, watch=lambda known: None)
    assert problem.feasible(solution.choice)
    assert solution.lower_bound <= solution.objective < np.inf
    assert solution.stats["interrupted"] == 1.0
    with pytest.raises(KeyboardInterrupt):
        solve_within(problem, seconds=600)  # nobody looks on


def test_a_gap_that_is_near_enough_ends_the_search() -> None:
    problem = layered(9, 1, 25.0)
    exact, rough = solve_within(problem, seconds=600), solve_within(problem, seconds=600, gap=0.9)
    assert exact.gap == 0.0
    assert 0.0 < rough.gap <= 0.9
    assert rough.lower_bound <= exact.objective <= rough.objective


def test_no_limit_of_time_still_ends() -> None:
    known: list[Progress] = []
    solution = solve_within(layered(9, 1, 25.0), watch=known.append)
    assert solution.gap == 0.0
    assert known[-1].objective == solution.objective


def test_what_is_needed_at_least_is_in_the_refusal() -> None:
    with pytest.raises(OutOfMemory, match="at least 20 bytes"):
        solve_within(layered(10, 1, 19.0))
    assert layered(10, 1, 19.0).peak(least_demand(layered(10, 1, 19.0))) == 20.0


def test_repeated_layers_are_reduced_once() -> None:
    """As many different tables for 60 layers as for 20."""
    count = []
    for layers in (20, 60):
        rng = np.random.default_rng(5)
        block = [rng.random((3, 3)) for _ in range(3)]
        edges = []
        for i in range(layers):
            edges += [Edge(2 * i, 2 * i + 1, block[0]), Edge(2 * i + 1, 2 * i + 2, block[1]), Edge(2 * i, 2 * i + 2, block[2])]
        costs = (np.array([0.0, 0.1, 0.2]),) * (2 * layers + 1)
        held = tuple(Demand(2 * i, 0, 1, np.array([3.0, 2.0, 1.0])) for i in range(layers + 1))
        names = tuple(map(str, range(2 * layers + 1)))
        work = Elimination(Problem(names, costs, tuple(edges), held, 2.5 * layers))
        reduce_in_place(work)
        assert len(work.remaining) == layers + 1
        count.append(len(work.tables.tables))
    assert count[0] == count[1]
