"""The automatic schedule: under its limit, between its bound and the schedules by hand, and equal to the exact one where that can be had."""

from __future__ import annotations

from itertools import permutations

import pytest
from exact_schedule import zb_exact
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir.errors import DeadLock, Unsupported
from planner.schedule import PipelineSchedule, check_schedule
from planner.schedule.actions import Action, Pass
from planner.schedule.automatic import least_cost_s, zb_auto
from planner.schedule.greedy import MemoryLimit
from planner.schedule.legality import peak_memory
from planner.schedule.polish import polish
from planner.schedule.timing import PassTimes, spans_s
from planner.schedule.zero_bubble import zb_h1, zb_h2

SECONDS = st.floats(0.3, 2.0)
SIZES = st.tuples(st.integers(1, 4), st.integers(1, 8))


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, PassTimes, MemoryLimit]:
    p, m = draw(SIZES)
    times = PassTimes(
        forward_s=tuple(draw(SECONDS) for _ in range(p)),
        backward_input_s=tuple(draw(SECONDS) for _ in range(p)),
        backward_weight_s=tuple(draw(SECONDS) for _ in range(p)),
        comm_s=draw(st.floats(0.0, 0.5)),
    )
    return m, times, MemoryLimit(limit=draw(st.integers(p, 2 * p)), weight_activation=draw(st.floats(0.1, 1.0)))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_automatic_schedule_is_legal_and_keeps_its_limit(problem: tuple[int, PassTimes, MemoryLimit]) -> None:
    m, times, memory = problem
    outcome = zb_auto(m, times, memory)
    check_schedule(outcome.schedule, memory.limit, weight_activation=memory.weight_activation)
    assert max(spans_s(outcome.schedule, times)) == outcome.cost_s


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_automatic_schedule_costs_no_more_than_h1_and_no_less_than_its_bound(problem: tuple[int, PassTimes, MemoryLimit]) -> None:
    m, times, memory = problem
    outcome = zb_auto(m, times, memory)
    assert outcome.bound_s <= outcome.cost_s * (1 + 1e-9)
    assert outcome.cost_s <= max(spans_s(zb_h1(len(times.forward_s), m), times))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_no_schedule_by_hand_that_fits_the_limit_beats_the_bound(problem: tuple[int, PassTimes, MemoryLimit]) -> None:
    m, times, memory = problem
    p = len(times.forward_s)
    for schedule in (zb_h1(p, m), zb_h2(p, m)):
        if max(peak_memory(schedule, weight_activation=memory.weight_activation)) <= memory.limit:
            assert max(spans_s(schedule, times)) >= least_cost_s(m, times, memory) * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_polishing_keeps_a_schedule_legal_and_under_its_limit_and_never_lengthens_it(problem: tuple[int, PassTimes, MemoryLimit]) -> None:
    m, times, memory = problem
    before = zb_h1(len(times.forward_s), m)
    after = polish(before, times, memory, 60)
    check_schedule(after, memory.limit, weight_activation=memory.weight_activation)
    assert sorted(map(str, after.actions())) == sorted(map(str, before.actions()))
    assert max(spans_s(after, times)) <= max(spans_s(before, times))


def test_polishing_lets_a_weight_part_wait_for_what_others_wait_for() -> None:
    """Device 1 does a weight part first while device 0 has nothing but the gradient to wait for."""
    f, i, w = Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT
    first = tuple(Action(0, kind, k) for kind, k in ((f, 0), (f, 1), (i, 0), (w, 0), (i, 1), (w, 1)))
    greedy = tuple(Action(1, kind, k) for kind, k in ((f, 0), (i, 0), (w, 0), (f, 1), (i, 1), (w, 1)))
    mended = polish(PipelineSchedule("x", (first, greedy)), PassTimes.even(2, 1.0, 1.0, 1.0), MemoryLimit(limit=2), 20)
    assert [str(action) for action in mended.orders[1]] == ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]


def exhaustive_cost_s(p: int, m: int, times: PassTimes, limit: float) -> float:
    """The least cost over every weaving of F, I and W on every device."""
    kinds = (Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT)
    weavings = set()
    for sequence in set(permutations([kind for kind in kinds for _ in range(m)])):
        counts = dict.fromkeys(kinds, 0)
        order = []
        for kind in sequence:
            order.append((kind, counts[kind]))
            counts[kind] += 1
            if not counts[kinds[0]] >= counts[kinds[1]] >= counts[kinds[2]]:
                break
        else:
            weavings.add(tuple(order))
    best = float("inf")

    def extend(orders: tuple[tuple[Action, ...], ...]) -> None:
        nonlocal best
        if len(orders) == p:
            schedule = PipelineSchedule("any", orders)
            if max(peak_memory(schedule)) <= limit:
                try:
                    best = min(best, max(spans_s(schedule, times)))
                except DeadLock:
                    return
            return
        for order in weavings:
            extend((*orders, tuple(Action(len(orders), kind, k) for kind, k in order)))

    extend(())
    return best


@pytest.mark.parametrize("limit", [1, 2])
def test_the_exact_schedule_is_the_best_of_all_weavings(limit: int) -> None:
    times = PassTimes.even(2, 1.0, 0.9, 0.6, 0.1)
    outcome = zb_exact(2, times, MemoryLimit(limit=limit))
    assert outcome.cost_s == pytest.approx(exhaustive_cost_s(2, 2, times, limit))
    assert outcome.bound_s == pytest.approx(outcome.cost_s, rel=1e-4)


@pytest.mark.parametrize(("p", "m", "limit"), [(2, 3, 2), (3, 4, 3), (3, 4, 6), (3, 5, 3)])
def test_the_automatic_schedule_is_the_exact_one_on_small_pipelines(p: int, m: int, limit: int) -> None:
    times, memory = PassTimes.even(p, 1.0, 0.9, 0.6, 0.1), MemoryLimit(limit=limit, weight_activation=0.4)
    exact = zb_exact(m, times, memory)
    check_schedule(exact.schedule, limit, weight_activation=0.4)
    assert exact.bound_s == pytest.approx(exact.cost_s, rel=1e-4)
    assert zb_auto(m, times, memory).cost_s == pytest.approx(exact.cost_s)


def test_twice_the_memory_shortens_the_schedule() -> None:
    times = PassTimes.even(4, 1.0, 0.9, 0.5, 0.05)
    small, large = (zb_auto(10, times, MemoryLimit(limit=limit, weight_activation=0.5)).cost_s for limit in (4, 8))
    assert large < small


def test_a_limit_below_one_micro_batch_is_refused() -> None:
    with pytest.raises(Unsupported, match="a device holds at least one micro-batch"):
        zb_auto(4, PassTimes.even(2, 1.0, 1.0, 1.0), MemoryLimit(limit=0.5))
