"""Bounds are bounds, what is called optimal is, and nothing breaks the limit: against trying every choice and against a second ILP in PuLP."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from planner.ir.errors import OutOfMemory, Unsupported
from planner.solve.arrays import matrix_classes
from planner.solve.bounds.local_search import improve_at_multipliers, improve_within_limit
from planner.solve.bounds.memory_multipliers import MultiplierAscent
from planner.solve.bounds.message_passing import Dual
from planner.solve.highs import HighsIlp
from planner.solve.ilp import solve_ilp
from planner.solve.limited import memory, partial_ilps
from planner.solve.limited.memory import solve_within
from planner.solve.problem import Contradiction, Demand, Edge, Floats, Ints, NotFoundInTime, Problem, Progress
from planner.solve.reduce.contract import reduce_problem
from planner.solve.time_limit import TimeLimit
from planner.solve.without_limit import Sizes, solve_exactly
from tests.planner.solve.small import ManualClock, best_by_trying, random_problem, tangled


def reduced(seed: int, limit: float = 0.4, nodes: int = 7) -> Problem | None:
    try:
        small = reduce_problem(random_problem(seed, nodes=nodes, limit=limit, functional=0.0), dominance=False, eliminate=False).problem
    except (Contradiction, OutOfMemory):
        return None
    return small if best_by_trying(small) < np.inf and small.demands else None


@pytest.mark.parametrize("limit", [0.1, 0.5, 2.0])
def test_solve_within_finds_and_proves_the_optimum_of_small_problems(limit: float) -> None:
    solved = 0
    for seed in range(25):
        problem = random_problem(seed, limit=limit, whole=seed % 3 > 0)
        best = best_by_trying(problem)
        if best == np.inf:
            with pytest.raises((Unsupported, OutOfMemory)):
                solve_within(problem, seconds=600)
            continue
        solution = solve_within(problem, seconds=600)
        assert problem.feasible(solution.choice)
        assert solution.objective == problem.objective(solution.choice) == pytest.approx(best)
        assert best - 1e-6 <= solution.lower_bound + 1e-6 <= best + 2e-6
        assert solution.proof
        solved += 1
    assert solved > 8


def test_solve_within_agrees_with_pulp_where_trying_all_takes_too_long() -> None:
    for seed in range(4):
        problem = random_problem(seed, nodes=9, strategies=4, limit=0.3, forbidden=0.0, functional=0.0)
        assert solve_within(problem, seconds=600).objective == pytest.approx(solve_ilp(problem)[1])


@pytest.mark.thorough
def test_parts_of_a_problem_too_large_for_one_ilp_still_end_in_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_ilps, "_SMALL", 20)
    monkeypatch.setattr(partial_ilps, "_PART", 5)
    for seed in range(4):
        problem = tangled(seed)
        solution = solve_within(problem, seconds=600)
        assert problem.feasible(solution.choice)
        assert solution.objective == pytest.approx(solve_ilp(problem)[1])
        assert solution.lower_bound <= solution.objective * (1 + 1e-9)
        assert solution.stats["parts"] >= 2


def test_bound_of_prices_and_messages_is_below_every_choice_within_the_limit() -> None:
    tried = 0
    for seed in range(40):
        problem = reduced(seed)
        if problem is None:
            continue
        tried += 1
        rng = np.random.default_rng(seed)
        dual = Dual(problem)
        best = best_by_trying(problem)
        for _ in range(4):
            dual.charge(rng.random(dual.times) * rng.choice([0.0, 0.1, 2.0]))
            before = dual.sweep(1)
            after = dual.sweep(4)
            assert before - 1e-9 <= after <= best + 1e-9
    assert tried > 8


def test_ascent_ends_at_the_bound_of_the_relaxed_ilp_or_below() -> None:
    near = tried = 0
    for seed in range(40):
        problem = reduced(seed)
        if problem is None:
            continue
        tried += 1
        ascent = MultiplierAscent(problem)
        while ascent.steps < 40 and ascent.stalled < 9:
            ascent.step()
        ascent.finish()
        _, relaxed = HighsIlp(problem).relaxed(TimeLimit(10))
        assert ascent.bound <= relaxed + 1e-6
        near += ascent.bound > relaxed - 0.02 * abs(relaxed)
    assert near > 0.8 * tried > 5


def test_strategy_that_fixing_drops_is_in_no_choice_as_good_as_the_best() -> None:
    dropped = 0
    for seed in range(40):
        problem = reduced(seed)
        if problem is None:
            continue
        ascent = MultiplierAscent(problem)
        for _ in range(15):
            ascent.step()
        ascent.finish()
        best = best_by_trying(problem)
        excess, first = ascent.dual.fixing(), ascent.dual.flat.first
        for choice in itertools.product(*(range(c.size) for c in problem.costs)):
            if problem.feasible(choice):
                for v, s in enumerate(choice):
                    assert problem.objective(choice) >= ascent.bound + excess[first[v] + s] - 1e-6
        dropped += int((ascent.bound + excess > best + 1e-6).sum())
    assert dropped > 20


def test_classes_of_rows_give_the_matrix_back() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 5, (3, 2)).astype(float)
    base[1, 0] = np.inf
    rows, columns = rng.integers(0, 3, 8), rng.integers(0, 2, 5)
    matrix = base[rows][:, columns] + rng.integers(0, 9, (8, 1)) + rng.integers(0, 9, 5)
    of_row, of_column, price, extra_row, extra_column = matrix_classes(matrix)
    assert price.size <= 6
    assert (price[of_row][:, of_column] + extra_row[:, None] + extra_column == matrix).all()


@pytest.mark.parametrize("seed", range(20))
def test_classes_of_rows_ascend_and_equal_rows_are_one_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 3, (4, rng.integers(1, 9))).astype(float)
    base[rng.random(base.shape) < 0.3] = np.inf
    matrix = base[rng.integers(0, 4, 12)] + rng.integers(-2, 3, (12, 1))
    least = matrix.min(axis=1, keepdims=True)
    distinct, of_row = np.unique(matrix - np.where(np.isfinite(least), least, 0.0), axis=0, return_inverse=True)
    found, of_column, price, *_ = matrix_classes(matrix)
    assert found.tolist() == of_row.reshape(-1).tolist()
    assert len(price) == len(distinct) == found.max() + 1
    assert all(price[:, c].tolist() != price[:, d].tolist() for c in range(price.shape[1]) for d in range(c))
    assert len(of_column) == matrix.shape[1]


def test_core_leaves_nothing_cheaper_than_the_cutoff_unseen() -> None:
    for seed in range(12):
        problem = reduced(seed)
        if problem is None:
            continue
        best = best_by_trying(problem)
        none = HighsIlp(problem, best, 1.0).solve(TimeLimit(10))
        assert none.choice is None
        assert none.bound == pytest.approx(best)
        outcome = HighsIlp(problem, best + 1.0, 1.0).solve(TimeLimit(10))
        assert outcome.choice is not None
        assert problem.feasible(outcome.choice)
        assert problem.objective(outcome.choice) == pytest.approx(best)


def test_a_limit_of_nothing_leaves_what_holds_nothing() -> None:
    """The ILP scaled its memory rows by the limit: a ZeroDivisionError on a random problem whose limit was 0."""
    problem = Problem(("a",), (np.array([0.0, 1.0]),), (), (Demand(0, 0, 1, np.array([1.0, 0.0])),), 0.0)
    assert HighsIlp(problem).solve(TimeLimit(10)).choice == [1]


def test_single_moves_lower_the_objective_and_keep_the_limit() -> None:
    for seed in range(15):
        problem = reduced(seed)
        if problem is None:
            continue
        dual = Dual(problem)
        settled = improve_at_multipliers(dual, start(problem))
        assert problem.objective(settled) == min(problem.objective(other) for other in neighbours(problem, settled))
        assert problem.objective(settled) <= problem.objective(start(problem))
        for choice in itertools.islice(itertools.product(*(range(c.size) for c in problem.costs)), 0, None, 7):
            if problem.feasible(choice) and np.isfinite(problem.objective(choice)):
                moved = improve_within_limit(dual, np.array(choice))
                assert problem.feasible(moved)
                assert problem.objective(moved) <= problem.objective(choice)
                assert problem.objective(moved) == min(problem.objective(n) for n in neighbours(problem, moved) if problem.feasible(n))


def neighbours(problem: Problem, choice: Ints) -> Iterator[Ints]:
    """The choice itself, and all that differ from it at one node."""
    yield choice
    for node, costs in enumerate(problem.costs):
        for strategy in range(costs.size):
            other = choice.copy()
            other[node] = strategy
            yield other


def start(problem: Problem) -> Ints:
    return np.zeros(len(problem.costs), dtype=np.int64)


def chain(nodes: int, strategies: int) -> Problem:
    """A grid of random costs with a tight limit, which the bounds of messages and prices do not close."""
    rng = np.random.default_rng(1)
    edges = [
        Edge(u, v, rng.integers(0, 1000, (strategies, strategies)).astype(float))
        for u in range(nodes)
        for v in (u + 1, u + 7, u + 31)
        if v < nodes
    ]
    costs: tuple[Floats, ...] = tuple(rng.integers(0, 1000, strategies).astype(float) for _ in range(nodes))
    demands = tuple(Demand(v, 0, 5, np.concatenate([[0.0], rng.integers(50, 100, strategies - 1).astype(float)])) for v in range(nodes))
    return Problem(tuple(f"n{v}" for v in range(nodes)), costs, tuple(edges), demands, 30.0 * nodes)


def test_no_part_begins_after_the_deadline_and_the_answer_is_allowed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part takes a second of the test's clock, whatever it takes in truth; so each kind of part is the last one at some deadline."""
    clock, begun = ManualClock(), list[tuple[str, float]]()

    def takes_a_second(name: str, part: Callable[..., object]) -> Callable[..., object]:
        def timed(*arguments: object, **options: object) -> object:
            begun.append((name, clock.now_s))
            try:
                return part(*arguments, **options)
            finally:
                clock.now_s += 1.0

        return timed

    in_truth = HighsIlp.solve

    def short(ilp: HighsIlp, time_limit: TimeLimit, start: Ints | None = None) -> object:
        assert time_limit.remaining_s() <= deadline_s - clock.now_s
        return in_truth(ilp, TimeLimit(0.05), start)

    monkeypatch.setattr(memory, "solve_exactly", takes_a_second("exact", solve_exactly))
    monkeypatch.setattr(MultiplierAscent, "step", takes_a_second("ascent", MultiplierAscent.step))
    monkeypatch.setattr(HighsIlp, "solve", takes_a_second("ILP", short))
    problem, last, answers = chain(30, 3), set[str](), 0
    for deadline_s in (0.5, 1.5, 2.5, 4.5, 6.5, 12.5, 24.5):
        clock.now_s = 0.0
        begun.clear()
        known: list[Progress] = []
        solution = None
        with suppress(NotFoundInTime):
            solution = solve_within(problem, seconds=deadline_s, clock=clock, watch=known.append)
        if solution is not None:
            answers += 1
            assert problem.feasible(solution.choice)
            assert solution.lower_bound <= solution.objective == problem.objective(solution.choice)
            assert solution.seconds == clock.now_s
        assert begun and all(at_s < deadline_s for _, at_s in begun)
        assert [k.objective for k in known] == sorted((k.objective for k in known), reverse=True)
        assert [k.lower_bound for k in known] == sorted(k.lower_bound for k in known)
        last.add(begun[-1][0])
    assert last == {"exact", "ascent", "ILP"}
    assert answers > 3


@pytest.mark.parametrize("sizes", [Sizes(narrow=1, wide=1, widest=1), Sizes(narrow=1)], ids=["branch and bound", "elimination"])
def test_a_bound_that_the_time_ended_is_below_the_optimum_wherever_it_ended(sizes: Sizes) -> None:
    """The clock goes on by a second whenever somebody looks, so every look is the last one in time for some limit."""
    unproven = 0
    for seed in range(4):
        problem = tangled(seed, nodes=8, strategies=3).without_limit()
        best = best_by_trying(problem)
        for seconds in range(12):
            try:
                solution = solve_exactly(problem, seconds=seconds, clock=ManualClock(1.0), sizes=sizes)
            except NotFoundInTime as error:
                bound = error.lower_bound
            else:
                bound = solution.lower_bound
                unproven += solution.gap > 0
                assert solution.objective == problem.objective(solution.choice) >= best * (1 - 1e-9)
            assert bound <= best * (1 + 1e-9)
    assert unproven > 0


@pytest.mark.thorough
def test_interrupt_returns_the_best_so_far() -> None:
    def stop(known: Progress) -> None:
        if np.isfinite(known.objective):
            raise KeyboardInterrupt

    problem = chain(60, 5)
    solution = solve_within(problem, seconds=30, watch=stop)
    assert problem.feasible(solution.choice)
    assert solution.stats["interrupted"] == 1.0


def test_limit_that_no_choice_keeps_is_refused() -> None:
    """Each strategy fits somewhere, each time looks satisfiable, and together nothing does."""
    pairs = np.array([[np.inf, 0.0, 0.0], [0.0, np.inf, 0.0], [0.0, 0.0, np.inf]])
    amount = np.array([2.0, 1.0, 0.0])
    demands = [Demand(v, 0, 1, amount) for v in range(3)] + [Demand(v, 1, 2, amount[::-1].copy()) for v in range(3)]
    edges = tuple(Edge(u, v, pairs) for u, v in ((0, 1), (0, 2), (1, 2)))
    problem = Problem(("a", "b", "c"), (np.zeros(3),) * 3, edges, tuple(demands), 2.5)
    assert best_by_trying(problem) == np.inf
    with pytest.raises(OutOfMemory, match=r"limit 2\.5"):
        solve_within(problem, seconds=600)


@pytest.mark.parametrize("calls", [1, 2])
def test_an_ilp_that_its_time_ends_bounds_every_choice_whether_it_found_one_or_not(calls: int) -> None:
    """After so many looks at the clock a millisecond is left, which ends the solver with or without a choice."""
    problem, looks = chain(60, 6), itertools.count()
    outcome = HighsIlp(problem).solve(TimeLimit(10, lambda: 9.999 if next(looks) > calls else 0.0))
    assert problem.feasible(start(problem))
    assert outcome.bound <= problem.objective(start(problem))
    assert outcome.choice is None or outcome.bound <= problem.objective(outcome.choice)


@pytest.mark.parametrize("looks_until_the_end", [2, 3, 5])
def test_a_search_whose_time_is_up_at_once_comes_back_with_a_choice(looks_until_the_end: int) -> None:
    problem, looks = replace(chain(40, 4), demands=()), itertools.count()
    solution = solve_exactly(problem, seconds=1, clock=lambda: 2.0 if next(looks) >= looks_until_the_end else 0.0)
    assert solution.lower_bound <= solution.objective == problem.objective(solution.choice) < np.inf
