"""The optimiser on plain arrays, against Howard, against trying everything, and against closed forms."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from newton_period import exact_period
from quota_problems import exhaustive, howard_s, small

from experiments.quotas.instances import layered, training
from planner.ir.errors import InvalidPlan
from simulator.quotas.bounds import least_quotas
from simulator.quotas.least_bytes import least_bytes
from simulator.quotas.problem import Buffer, Floats, QuotaArcs, QuotaProblem, Ring
from simulator.quotas.rounding import needed_quotas, reduced
from simulator.theory import chain_period_s
from tests.tiers import examples

seeds = st.integers(0, 2**32 - 1)


def _case(seed: int) -> tuple[random.Random, QuotaProblem]:
    rng = random.Random(seed)
    return rng, small(rng, rng.choice((1, 1, 2, 3)))


def _some_quotas(rng: random.Random, problem: QuotaProblem) -> np.ndarray:
    return np.array([rng.randint(b.lower, b.upper) for b in problem.buffers], dtype=np.int64)


@given(seeds)
@settings(max_examples=examples(150), deadline=None)
def test_the_shortest_period_is_that_of_newtons_method(seed: int) -> None:
    rng, problem = _case(seed)
    quotas = _some_quotas(rng, problem)
    assert exact_period(problem.num_nodes, problem.arcs(quotas)).period_s == pytest.approx(howard_s(problem, quotas), rel=1e-9)


def violation_s(arcs: QuotaArcs, starts_s: Floats, period_s: float) -> float:
    """The largest amount by which an arc is missed; 0 when the start times prove the period."""
    if not len(arcs.tail):
        return 0.0
    missed = starts_s[arcs.tail] + arcs.weight_s - arcs.tokens * period_s - starts_s[arcs.head]
    return max(0.0, float(missed.max()))


@given(seeds)
@settings(max_examples=examples(100), deadline=None)
def test_verdict_is_proved_by_start_times_from_above_and_by_a_cycle_from_below(seed: int) -> None:
    rng, problem = _case(seed)
    arcs = problem.arcs(_some_quotas(rng, problem))
    verdict = exact_period(problem.num_nodes, arcs)
    assert violation_s(arcs, verdict.starts_s, verdict.period_s) <= 1e-8
    cycle = list(verdict.cycle)
    assert [int(arcs.head[e]) for e in cycle] == [int(arcs.tail[e]) for e in cycle[1:] + cycle[:1]]
    assert arcs.weight_s[cycle].sum() / arcs.tokens[cycle].sum() == pytest.approx(verdict.period_s, rel=1e-9)


@given(seeds)
@settings(max_examples=examples(100), deadline=None)
def test_one_block_more_never_slows(seed: int) -> None:
    rng, problem = _case(seed)
    quotas = _some_quotas(rng, problem)
    more = quotas.copy()
    more[rng.randrange(len(more))] += rng.randint(1, 3)
    before, after = (exact_period(problem.num_nodes, problem.arcs(q)).period_s for q in (quotas, more))
    assert after <= before * (1 + 1e-12)


@given(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=6), seeds)
@settings(max_examples=examples(100), deadline=None)
def test_chain_has_the_period_of_the_closed_form(durations_s: list[float], seed: int) -> None:
    rng = random.Random(seed)
    quotas = [rng.randint(1, 4) for _ in durations_s[1:]]
    n = len(durations_s)
    own, links = list(range(n)), list(range(n - 1))
    problem = QuotaProblem(
        num_nodes=n,
        tail=np.array(own + links),
        head=np.array(own + [i + 1 for i in links]),
        tokens=np.array([1] * n + [0] * (n - 1)),
        weight_s=np.array(durations_s + durations_s[:-1]),
        buffers=tuple(Buffer(name=str(i), block_bytes=1, upper=9, rings=(Ring((i,), (i + 1,), durations_s[i + 1]),)) for i in links),
    )
    assert exact_period(n, problem.arcs(quotas)).period_s == pytest.approx(chain_period_s(durations_s, [*quotas, 1]), rel=1e-9)


def _wanted_s(rng: random.Random, problem: QuotaProblem) -> float:
    """A period between that of unlimited quotas and that of one block each."""
    low = exact_period(problem.num_nodes, problem.arcs(problem.upper)).period_s
    high = exact_period(problem.num_nodes, problem.arcs(problem.lower)).period_s
    return rng.choice((low, high, low + rng.random() * (high - low)))


@given(seeds)
@settings(max_examples=examples(120), deadline=None)
def test_no_quotas_of_fewer_bytes_reach_the_period(seed: int) -> None:
    rng, problem = _case(seed)
    wanted_s = _wanted_s(rng, problem)
    sized = least_bytes(problem, wanted_s)
    assert sized is not None
    assert sized.total_bytes == exhaustive(problem, wanted_s) == sized.bound_bytes
    assert howard_s(problem, sized.quotas) <= wanted_s * (1 + 1e-8)


@given(seeds)
@settings(max_examples=examples(120), deadline=None)
def test_no_quotas_of_fewer_bytes_reach_the_period_within_budgets(seed: int) -> None:
    rng, problem = _case(seed)
    wanted_s = _wanted_s(rng, problem)
    held = problem.place_bytes(_some_quotas(rng, problem))
    budgets = {place: held[place] for place in held if rng.random() < 0.8}
    sized = least_bytes(problem, wanted_s, budgets)
    best = exhaustive(problem, wanted_s, budgets)
    if sized is None:
        assert best == inf
        return
    assert sized.total_bytes == best
    assert all(problem.place_bytes(sized.quotas)[place] <= budget for place, budget in budgets.items())


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_quotas_that_reach_the_period_are_at_least_the_bounds(seed: int) -> None:
    rng, problem = _case(seed)
    quotas = _some_quotas(rng, problem)
    lower = least_quotas(problem, howard_s(problem, quotas) * (1 + 1e-9))
    assert lower is not None and (quotas >= lower).all()


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_start_times_prove_the_quotas_read_off_them(seed: int) -> None:
    _, problem = _case(seed)
    verdict = exact_period(problem.num_nodes, problem.arcs(problem.upper))
    needed = needed_quotas(problem, verdict.starts_s, verdict.period_s)
    assert howard_s(problem, needed) <= verdict.period_s * (1 + 1e-8)
    assert (needed <= problem.upper).all()


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_no_reduced_quota_can_be_lowered_alone(seed: int) -> None:
    rng, problem = _case(seed)
    wanted_s = _wanted_s(rng, problem)
    lowest = reduced(problem, wanted_s, problem.upper)
    assert howard_s(problem, lowest) <= wanted_s * (1 + 1e-8)
    for r in range(len(lowest)):
        if lowest[r] > problem.lower[r]:
            less = lowest.copy()
            less[r] -= 1
            assert howard_s(problem, less) > wanted_s


def test_period_below_that_of_unlimited_quotas_is_answered_with_none() -> None:
    problem = layered(60, 70, seed=3)
    unlimited_s = exact_period(problem.num_nodes, problem.fixed_arcs()).period_s
    assert least_bytes(problem, unlimited_s * 0.99) is None
    assert least_bytes(problem, unlimited_s) is not None


def test_training_graph_of_200_regsts_is_solved_to_certified_optimality() -> None:
    """500 are measured in python -m experiments.quotas --speed."""
    problem = training(88, seed=1)
    assert len(problem.buffers) >= 200
    sized = least_bytes(problem, 2.0, seconds=60.0)
    assert sized is not None and sized.total_bytes == sized.bound_bytes
    assert howard_s(problem, sized.quotas) <= 2.0 * (1 + 1e-8)


def test_arcs_to_nodes_that_do_not_exist_are_refused() -> None:
    ring = Ring((0,), (5,), 1.0)
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(InvalidPlan, match=r"nodes 0 \.\. 5, the problem has 0 \.\. 1"):
        QuotaProblem(
            num_nodes=2,
            tail=none,
            head=none,
            tokens=none,
            weight_s=np.zeros(0),
            buffers=(Buffer(name="r", block_bytes=1, upper=2, rings=(ring,)),),
        )
